//! Cards made of a model directory as Hugging Face lays it out.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::files::{NAMES, check_size};
use super::{Card, CardError, CardOptions, Software};

/// The fields of config.json that matter; the rest is skipped unread.
#[derive(Default, Deserialize)]
struct Config {
    model_type: Option<String>,
    max_position_embeddings: Option<u32>,
    text_config: Option<TextConfig>,
}

#[derive(Default, Deserialize)]
struct TextConfig {
    max_position_embeddings: Option<u32>,
}

pub(super) fn read(dir: &Path, options: CardOptions) -> Result<Card, CardError> {
    let mut files = BTreeMap::new();
    let mut total = 0;
    let mut take = |name: &'static str, path: &Path| -> Result<bool, CardError> {
        let Some(bytes) = read_file(path)? else {
            return Ok(false);
        };
        total += bytes.len();
        check_size(total)?;
        files.insert(name.to_owned(), Arc::from(bytes));
        Ok(true)
    };
    if !take("tokenizer.json", &dir.join("tokenizer.json"))? {
        return Err(CardError::MissingFile("tokenizer.json"));
    }
    take("tokenizer_config.json", &dir.join("tokenizer_config.json"))?;
    // A template given on the command line wins, then the raw file, then the JSON one.
    if let Some(path) = &options.chat_template {
        if !take("chat_template.jinja", path)? {
            return Err(CardError::MissingFile("chat template of the given path"));
        }
    } else if !take("chat_template.jinja", &dir.join("chat_template.jinja"))? {
        take("chat_template.json", &dir.join("chat_template.json"))?;
    }
    let config = config(dir)?;
    Ok(assemble(options, config, files))
}

/// The file with the model's architecture, which no card carries.
const CONFIG: &str = "config.json";

pub(super) fn of_files(
    mut files: BTreeMap<String, Vec<u8>>,
    options: CardOptions,
) -> Result<Card, CardError> {
    let config = files.remove(CONFIG);
    let mut total = 0;
    for (name, bytes) in &files {
        if !NAMES.contains(&name.as_str()) {
            return Err(CardError::Malformed(format!("file {name:?}")));
        }
        total += bytes.len();
        check_size(total)?;
    }
    if !files.contains_key("tokenizer.json") {
        return Err(CardError::MissingFile("tokenizer.json"));
    }
    let config = config.map_or_else(|| Ok(Config::default()), |bytes| parse_config(&bytes))?;
    let files = files.into_iter().map(|(name, bytes)| (name, bytes.into()));
    Ok(assemble(options, config, files.collect()))
}

fn assemble(options: CardOptions, config: Config, files: BTreeMap<String, Arc<[u8]>>) -> Card {
    let length = config.max_position_embeddings.or(config
        .text_config
        .unwrap_or_default()
        .max_position_embeddings);
    Card {
        model: options.model,
        software: options.software.unwrap_or_else(Software::current),
        tokenizer_backend: options.tokenizer_backend,
        block_size: options.block_size,
        eagle: options.eagle,
        capacity_blocks: options.capacity_blocks,
        context_length: options.context_length.or(length).unwrap_or(0),
        lora: options.lora.filter(|name| !name.is_empty()),
        model_type: config
            .model_type
            .map(|kind| kind.to_lowercase())
            .filter(|kind| !kind.is_empty()),
        time_zone: options.time_zone.unwrap_or_else(local_time_zone),
        chat: options.chat,
        files,
    }
}

fn config(dir: &Path) -> Result<Config, CardError> {
    let bytes = read_file(&dir.join(CONFIG))?;
    bytes.map_or_else(|| Ok(Config::default()), |bytes| parse_config(&bytes))
}

fn parse_config(bytes: &[u8]) -> Result<Config, CardError> {
    serde_json::from_slice(&finite(bytes)).map_err(|error| CardError::BadFile {
        file: CONFIG,
        reason: error.to_string(),
    })
}

/// Python writes `NaN` and `Infinity` as they are; JSON has no such words. Outside of
/// strings they become `null` of the same length.
fn finite(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let mut quoted = false;
    let mut at = 0;
    while at < out.len() {
        match out[at] {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'-' | b'I' | b'N' if !quoted => {
                for word in [&b"-Infinity"[..], b"Infinity", b"NaN"] {
                    if out[at..].starts_with(word) {
                        let null = &b"null     "[..word.len().max(4)];
                        out.splice(at..at + word.len(), null.iter().copied());
                        break;
                    }
                }
            }
            _ => {}
        }
        at += 1;
    }
    out
}

/// A file's bytes, at most a card's worth; `None` if there is no such file.
fn read_file(path: &Path) -> Result<Option<Vec<u8>>, CardError> {
    let fail = |source| CardError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let mut bytes = Vec::new();
    let limit = u64::try_from(Card::MAX_BYTES).unwrap_or(u64::MAX);
    file.take(limit + 1).read_to_end(&mut bytes).map_err(fail)?;
    check_size(bytes.len())?;
    Ok(Some(bytes))
}

/// The name of this process's time zone: `TZ`, else where /etc/localtime points, else UTC.
pub fn local_time_zone() -> String {
    let named = std::env::var("TZ").ok().map(|zone| {
        let zone = zone.trim_start_matches(':');
        zone.split("zoneinfo/").last().unwrap_or(zone).to_owned()
    });
    let linked = || {
        let target = fs::read_link("/etc/localtime").ok()?;
        let target = target.to_str()?;
        target
            .split_once("zoneinfo/")
            .map(|(_, zone)| zone.to_owned())
    };
    let zone = named.filter(|zone| !zone.is_empty()).or_else(linked);
    match zone.as_deref() {
        None | Some("Etc/UTC" | "UTC" | "UTC0" | "Etc/UCT" | "Universal" | "Zulu") => "UTC".into(),
        Some(zone) => zone.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_json_lacks_become_null_outside_of_strings() {
        let text = br#"{"a": NaN, "b": [-Infinity, Infinity], "c": "NaN \" Infinity", "d": -1}"#;

        let value: serde_json::Value = serde_json::from_slice(&finite(text)).unwrap();

        assert_eq!(
            value,
            serde_json::json!({"a": null, "b": [null, null], "c": "NaN \" Infinity", "d": -1})
        );
    }
}
