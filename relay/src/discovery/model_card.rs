//! A model as its worker describes it: Dynamo's model deployment card.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use kvgrid_core::block::HashFormat;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::publish::PoolShape;

/// A file of a model, somewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRef {
    /// Its address.
    pub(crate) path: String,
    /// Method and hexadecimal digits, `blake3:...`.
    pub(crate) checksum: String,
    /// Its length in bytes, where that is told.
    pub(crate) size: Option<u64>,
}

/// What a worker says of its model. Fields that are not known here are kept in `raw` alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelCard {
    /// The card as it was found.
    pub(crate) raw: Value,
    /// What is read of it.
    pub(crate) fields: Fields,
    /// Which cards it is like.
    pub(crate) cohort: CohortId,
}

/// Names all cards by which prompts become the same tokens in the same blocks, wherever their
/// files lie and however large the workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CohortId(pub(crate) u64);

/// Which part of a request a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// All of it.
    Whole,
    /// The prompt, for others that answer.
    Prefill,
    /// The answer, to prompts that others have computed: what it holds spares no prefill.
    Decode,
    /// Something else, such as encoding images.
    Other,
}

/// The part of a card that matters here. Values that other versions may spell anew are words,
/// so that one odd word costs a reason and not the card.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Fields {
    pub(crate) display_name: String,
    #[serde(default)]
    pub(crate) aliases: Value,
    #[serde(default)]
    pub(crate) model_info: Value,
    #[serde(default)]
    pub(crate) tokenizer: Value,
    #[serde(default)]
    pub(crate) prompt_formatter: Value,
    #[serde(default)]
    pub(crate) chat_template_file: Value,
    #[serde(default)]
    pub(crate) prompt_context: Value,
    #[serde(default)]
    pub(crate) context_length: u32,
    #[serde(default)]
    pub(crate) kv_cache_block_size: u32,
    #[serde(default)]
    pub(crate) model_input: Option<String>,
    #[serde(default)]
    pub(crate) model_type: Value,
    #[serde(default)]
    pub(crate) worker_type: Option<String>,
    #[serde(default)]
    pub(crate) lora: Option<Lora>,
    #[serde(default)]
    pub(crate) runtime_config: RuntimeConfig,
}

/// The adapter that a card is of.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Lora {
    pub(crate) name: String,
}

/// What a worker found out when its engine started.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RuntimeConfig {
    pub(crate) context_length: Option<u32>,
    /// Of each rank.
    pub(crate) total_kv_blocks: Option<u64>,
    pub(crate) tool_call_parser: Option<String>,
    pub(crate) reasoning_parser: Option<String>,
    pub(crate) tool_call_arguments_format: Option<String>,
    pub(crate) exclude_tools_when_tool_choice_none: Option<bool>,
    pub(crate) tokenizer_backend: Option<String>,
    pub(crate) data_parallel_size: Option<u32>,
    pub(crate) data_parallel_start_rank: Option<u32>,
    /// Of each rank.
    pub(crate) max_num_seqs: Option<u32>,
    pub(crate) enable_eagle: bool,
}

impl ModelCard {
    /// Reads a card.
    pub(crate) fn parse(raw: Value) -> Result<Self, serde_json::Error> {
        let fields = Fields::deserialize(&raw)?;
        let cohort = CohortId::of(&fields);
        Ok(Self {
            raw,
            fields,
            cohort,
        })
    }

    /// What its worker does. Before Dynamo told it, a worker of prompts was of a type of its own.
    pub(crate) fn role(&self) -> Role {
        let fields = &self.fields;
        match fields.worker_type.as_deref() {
            Some("aggregated") => Role::Whole,
            Some("prefill") => Role::Prefill,
            Some("decode") => Role::Decode,
            Some(_) => Role::Other,
            None => match fields.model_type.as_str() {
                Some(kind) if kind.split('|').any(|kind| kind.trim() == "Prefill") => Role::Prefill,
                _ => Role::Whole,
            },
        }
    }

    /// What its worker's blocks look like; `None` without a block size.
    pub(crate) fn shape(&self) -> Option<PoolShape> {
        let block_size: Option<NonZeroU32> = self.fields.kv_cache_block_size.try_into().ok();
        Some(PoolShape {
            block_size: block_size?,
            format: match self.fields.runtime_config.enable_eagle {
                true => HashFormat::Eagle,
                false => HashFormat::Standard,
            },
        })
    }

    /// In what prompts or blocks differ by another card, by the names of its fields.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let pairs = traits(&self.fields).into_iter().zip(traits(&other.fields));
        let different = pairs.filter(|((_, ours), (_, theirs))| ours != theirs);
        different.map(|((name, _), _)| name).collect()
    }

    /// Whether clients may ask for it by this name.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// All names that clients may ask for it by.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let aliases = self.fields.aliases.as_array();
        let aliases = aliases.into_iter().flatten().filter_map(Value::as_str);
        std::iter::once(self.fields.display_name.as_str()).chain(aliases)
    }

    /// Device blocks of all of a worker's ranks.
    pub(crate) fn worker_blocks(&self) -> Option<u64> {
        let blocks = self.rank_blocks()?;
        Some(blocks.saturating_mul(u64::from(self.ranks())))
    }

    /// How many ranks its worker has, at least one.
    pub(crate) fn ranks(&self) -> u32 {
        let ranks = self.fields.runtime_config.data_parallel_size;
        ranks.unwrap_or(1).max(1)
    }

    /// Device blocks of one rank.
    pub(crate) fn rank_blocks(&self) -> Option<u64> {
        let blocks = self.fields.runtime_config.total_kv_blocks;
        blocks.filter(|blocks| *blocks > 0)
    }
}

impl CohortId {
    fn of(fields: &Fields) -> Self {
        let text = Value::from_iter(traits(fields).map(|(_, value)| value)).to_string();
        let hash = blake3::hash(text.as_bytes());
        let (first, _) = hash.as_bytes().split_at(8);
        Self(
            first
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    }
}

/// All of a card that tokens and blocks come of, by field; of files their content alone.
fn traits(fields: &Fields) -> [(&'static str, Value); 15] {
    let runtime = &fields.runtime_config;
    [
        ("kv_cache_block_size", fields.kv_cache_block_size.into()),
        ("enable_eagle", runtime.enable_eagle.into()),
        ("tokenizer", content(&fields.tokenizer)),
        ("prompt_formatter", content(&fields.prompt_formatter)),
        ("chat_template_file", content(&fields.chat_template_file)),
        ("model_info", content(&fields.model_info)),
        ("prompt_context", fields.prompt_context.clone()),
        (
            "context_length",
            json!([fields.context_length, runtime.context_length.unwrap_or(0)]),
        ),
        ("model_input", json!(fields.model_input)),
        ("lora", json!(fields.lora.as_ref().map(|lora| &lora.name))),
        ("reasoning_parser", json!(runtime.reasoning_parser)),
        ("tool_call_parser", json!(runtime.tool_call_parser)),
        (
            "tool_call_arguments_format",
            json!(runtime.tool_call_arguments_format),
        ),
        (
            "exclude_tools_when_tool_choice_none",
            json!(runtime.exclude_tools_when_tool_choice_none),
        ),
        ("tokenizer_backend", json!(runtime.tokenizer_backend)),
    ]
}

/// A description of files without where they are, for each worker has an address of its own,
/// and without whose idea they were.
fn content(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter();
            let kept = kept.filter(|(key, _)| !matches!(key.as_str(), "path" | "is_custom"));
            // In the order of names, whatever order they were written in.
            let kept: BTreeMap<_, _> = kept.map(|(key, it)| (key.clone(), content(it))).collect();
            kept.into_iter().collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::tests::model_card;

    fn card(base: &str, change: impl FnOnce(&mut Value)) -> ModelCard {
        let mut raw = model_card(base);
        change(&mut raw);
        ModelCard::parse(raw).unwrap()
    }

    #[test]
    fn cards_are_alike_wherever_their_files_lie_and_however_large_the_workers() {
        let one = card("http://127.0.0.1:1", |_| {});
        let other = card("http://127.0.0.1:2", |card| {
            card["runtime_config"]["total_kv_blocks"] = 7.into();
            card["worker_type"] = "decode".into();
        });

        assert_eq!(one.cohort, other.cohort);
        assert!(one.differences(&other).is_empty());
    }

    #[test]
    fn cards_that_make_other_tokens_or_blocks_say_in_what_they_differ() {
        let one = card("http://127.0.0.1:1", |_| {});
        let blocks = card("http://127.0.0.1:1", |card| {
            card["kv_cache_block_size"] = 32.into();
        });
        let template = card("http://127.0.0.1:1", |card| {
            let file = &mut card["prompt_formatter"]["hf_tokenizer_config_json"];
            file["checksum"] = "blake3:00".into();
            card["runtime_config"]["reasoning_parser"] = "qwen3".into();
        });

        assert_eq!(one.differences(&blocks), ["kv_cache_block_size"]);
        let two = ["prompt_formatter", "reasoning_parser"];
        assert_eq!(one.differences(&template), two);
        assert_ne!(one.cohort, blocks.cohort);
        assert_ne!(one.cohort, template.cohort);
    }

    #[test]
    fn a_role_is_what_the_card_says_in_its_releases_words() {
        let role = |change: fn(&mut Value)| card("http://127.0.0.1:1", change).role();
        let old = |kind: Value| {
            let card = card("http://127.0.0.1:1", |card| {
                card["worker_type"] = Value::Null;
                card["model_type"] = kind;
            });
            card.role()
        };

        assert_eq!(role(|_| {}), Role::Whole);
        assert_eq!(role(|c| c["worker_type"] = "prefill".into()), Role::Prefill);
        assert_eq!(role(|c| c["worker_type"] = "decode".into()), Role::Decode);
        assert_eq!(role(|c| c["worker_type"] = "encode".into()), Role::Other);
        assert_eq!(old("Prefill".into()), Role::Prefill);
        assert_eq!(old("Chat | Completions".into()), Role::Whole);
        assert_eq!(old(json!({"bits": 3})), Role::Whole);
    }
}
