//! From what a worker says of its model to the card an edge can tokenise by, or to the reason
//! why there can be none.

use std::collections::BTreeMap;

use http::Uri;
use http::uri::Scheme;
use kvgrid_core::ModelName;
use kvgrid_prompt::{CardOptions, ChatRules, ContextMixin, TokenizerBackend};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::discovery::{FileRef, ModelCard};

/// What the operator knows better than the workers: their cards say nothing of the frontend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overrides {
    /// The tokenizer implementation that the frontend was told to use.
    pub(crate) tokenizer: Option<TokenizerBackend>,
    /// Time zone of the frontend; the relay's own if absent.
    pub(crate) time_zone: Option<String>,
    /// The longest sequence, in tokens.
    pub(crate) context_length: Option<u32>,
}

/// Why no card can be made of what a worker says. Another version of kvgrid may.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unsupported {
    /// The engine takes text and tokenises itself.
    #[error("the engine takes {0:?} instead of tokens")]
    Input(String),
    /// Another kind of file than tokenizer.json.
    #[error("its tokenizer is of kind {0}")]
    Tokenizer(String),
    /// Another kind of template.
    #[error("its template is of kind {0}")]
    Template(String),
    /// A word that is not known here where a known one must stand.
    #[error("{field} is {word:?}, which is not known here")]
    Word {
        /// Where it stands.
        field: &'static str,
        /// The word.
        word: String,
    },
    /// A file that is not to be had over HTTP.
    #[error("{0:?} is no address to get a file from; is the worker's DYN_SYSTEM_PORT set?")]
    Address(String),
    /// A checksum that can't be checked.
    #[error("{0:?} is no checksum that can be checked")]
    Checksum(String),
    /// No size of blocks.
    #[error("it has no block size")]
    BlockSize,
}

/// A file to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedFile {
    pub(super) url: Uri,
    pub(super) hash: blake3::Hash,
}

/// A card to make.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// By the names that files have in a model's directory.
    pub(super) files: BTreeMap<&'static str, PlannedFile>,
    pub(super) options: CardOptions,
}

impl Plan {
    /// The plan of a worker's card.
    pub(super) fn of(
        model: &ModelName,
        card: &ModelCard,
        overrides: &Overrides,
    ) -> Result<Self, Unsupported> {
        let input = card.fields.model_input.as_deref();
        if let Some(other) = input.filter(|input| *input != "Tokens") {
            return Err(Unsupported::Input(other.to_owned()));
        }
        Ok(Self {
            files: files(card)?,
            options: options(model, card, overrides)?,
        })
    }

    /// Whether the same card comes of it, wherever the files lie.
    pub(super) fn makes_the_same_as(&self, other: &Self) -> bool {
        let hashes = |plan: &Self| -> Vec<_> {
            let files = plan.files.iter();
            files.map(|(name, file)| (*name, file.hash)).collect()
        };
        self.options == other.options && hashes(self) == hashes(other)
    }
}

fn options(
    model: &ModelName,
    card: &ModelCard,
    overrides: &Overrides,
) -> Result<CardOptions, Unsupported> {
    let (fields, runtime) = (&card.fields, &card.fields.runtime_config);
    let block_size = fields.kv_cache_block_size.try_into();
    let block_size = block_size.map_err(|_| Unsupported::BlockSize)?;
    let mut options = CardOptions::new(model.as_str(), block_size);
    options.eagle = runtime.enable_eagle;
    let told = [runtime.context_length, Some(fields.context_length)];
    let told = told.into_iter().flatten().find(|length| *length > 0);
    options.context_length = overrides.context_length.or(told);
    options.lora = fields.lora.as_ref().map(|lora| lora.name.clone());
    options.tokenizer_backend = match (&overrides.tokenizer, &runtime.tokenizer_backend) {
        (Some(backend), _) => *backend,
        (None, Some(word)) => known("runtime_config.tokenizer_backend", word)?,
        (None, None) => TokenizerBackend::default(),
    };
    options.time_zone.clone_from(&overrides.time_zone);
    options.chat = ChatRules {
        exclude_tools_when_tool_choice_none: runtime
            .exclude_tools_when_tool_choice_none
            .unwrap_or(true),
        tool_arguments_as_objects: match runtime.tool_call_arguments_format.as_deref() {
            None | Some("json_string") => false,
            Some("json_object") => true,
            Some(word) => {
                let field = "runtime_config.tool_call_arguments_format";
                let word = word.to_owned();
                return Err(Unsupported::Word { field, word });
            }
        },
        reasoning_parser: runtime.reasoning_parser.clone(),
        tool_call_parser: runtime.tool_call_parser.clone(),
        context: context(&fields.prompt_context)?,
        ..ChatRules::default()
    };
    Ok(options)
}

fn context(words: &Value) -> Result<Vec<ContextMixin>, Unsupported> {
    let words = words.as_array().into_iter().flatten();
    let word = |value: &Value| {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        known("prompt_context", &text)
    };
    words.map(word).collect()
}

fn known<T: for<'a> Deserialize<'a>>(field: &'static str, word: &str) -> Result<T, Unsupported> {
    T::deserialize(Value::from(word)).map_err(|_| Unsupported::Word {
        field,
        word: word.to_owned(),
    })
}

fn files(card: &ModelCard) -> Result<BTreeMap<&'static str, PlannedFile>, Unsupported> {
    let fields = &card.fields;
    let mut files = BTreeMap::new();
    match kind_of(&fields.tokenizer) {
        Some(("hf_tokenizer_json", file)) => {
            files.insert("tokenizer.json", planned(file)?);
        }
        other => {
            let kind = other.map_or("none", |(kind, _)| kind);
            return Err(Unsupported::Tokenizer(kind.to_owned()));
        }
    }
    if let Some(("hf_config_json", file)) = kind_of(&fields.model_info) {
        files.insert("config.json", planned(file)?);
    }
    for artifact in [&fields.prompt_formatter, &fields.chat_template_file] {
        let Some((kind, value)) = kind_of(artifact) else {
            continue;
        };
        // Templates say beside the file whether it is the model's own, which changes nothing.
        let file = value.get("file").unwrap_or(value);
        let name = match kind {
            "hf_tokenizer_config_json" => "tokenizer_config.json",
            "hf_chat_template" | "hf_chat_template_jinja" => "chat_template.jinja",
            "hf_chat_template_json" => "chat_template.json",
            other => return Err(Unsupported::Template(other.to_owned())),
        };
        files.insert(name, planned(file)?);
    }
    Ok(files)
}

/// The one entry of a map that names what it holds.
fn kind_of(value: &Value) -> Option<(&str, &Value)> {
    let (kind, value) = value.as_object()?.iter().next()?;
    Some((kind, value))
}

fn planned(value: &Value) -> Result<PlannedFile, Unsupported> {
    let unsupported = |_| Unsupported::Address(value.to_string());
    let file = FileRef::deserialize(value).map_err(unsupported)?;
    let url: Option<Uri> = file.path.parse().ok();
    let url = url.filter(|url| url.scheme() == Some(&Scheme::HTTP) && url.host().is_some());
    let digits = file.checksum.strip_prefix("blake3:");
    let hash = digits.and_then(|digits| blake3::Hash::from_hex(digits).ok());
    Ok(PlannedFile {
        url: url.ok_or(Unsupported::Address(file.path))?,
        hash: hash.ok_or(Unsupported::Checksum(file.checksum))?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What Dynamo 1.6.1's mocker says of the small model, with changes.
    fn plan(change: impl Fn(&mut Value)) -> Result<Plan, Unsupported> {
        let mut raw = crate::discovery::tests::model_card("http://127.0.0.1:1");
        change(&mut raw);
        let card = ModelCard::parse(raw).unwrap();
        let model = ModelName::new("tiny-chat").unwrap();
        Plan::of(&model, &card, &Overrides::default())
    }

    #[test]
    fn a_card_says_which_files_and_how_to_use_them() {
        let plan = plan(|_| {}).unwrap();

        let names: Vec<_> = plan.files.keys().copied().collect();
        assert_eq!(
            names,
            ["config.json", "tokenizer.json", "tokenizer_config.json"]
        );
        let mut expected = CardOptions::new("tiny-chat", 16.try_into().unwrap());
        expected.context_length = None;
        assert_eq!(plan.options, expected);
    }

    #[test]
    fn what_alters_tokens_is_taken_over() {
        let plan = plan(|card| {
            let runtime = &mut card["runtime_config"];
            runtime["tool_call_arguments_format"] = "json_object".into();
            runtime["exclude_tools_when_tool_choice_none"] = false.into();
            runtime["reasoning_parser"] = "qwen3".into();
            runtime["tokenizer_backend"] = "fastokens".into();
            runtime["enable_eagle"] = true.into();
            runtime["context_length"] = 4096.into();
            card["prompt_context"] = json!(["oai_chat", "llama3_date_time"]);
            let mut template = card["tokenizer"]["hf_tokenizer_json"].clone();
            template["path"] = "http://127.0.0.1:1/chat_template.jinja".into();
            card["chat_template_file"] =
                json!({"hf_chat_template": {"is_custom": true, "file": template}});
        })
        .unwrap();

        let options = &plan.options;
        assert!(options.chat.tool_arguments_as_objects);
        assert!(!options.chat.exclude_tools_when_tool_choice_none);
        assert_eq!(options.chat.reasoning_parser.as_deref(), Some("qwen3"));
        assert_eq!(options.tokenizer_backend, TokenizerBackend::Fastokens);
        assert_eq!((options.eagle, options.context_length), (true, Some(4096)));
        assert_eq!(options.chat.context.len(), 2);
        assert!(plan.files.contains_key("chat_template.jinja"));
    }

    #[test]
    fn what_is_not_known_here_gives_its_reason() {
        let refused = |change: fn(&mut Value)| plan(change).unwrap_err().to_string();

        assert_eq!(
            refused(|card| card["model_input"] = "Text".into()),
            "the engine takes \"Text\" instead of tokens"
        );
        assert_eq!(
            refused(|card| {
                let file = card["tokenizer"]["hf_tokenizer_json"].take();
                card["tokenizer"] = json!({"tik_token_model": file});
            }),
            "its tokenizer is of kind tik_token_model"
        );
        assert_eq!(
            refused(|card| card["prompt_context"] = json!(["weather"])),
            "prompt_context is \"weather\", which is not known here"
        );
        assert_eq!(
            refused(|card| card["runtime_config"]["tokenizer_backend"] = "tekken".into()),
            "runtime_config.tokenizer_backend is \"tekken\", which is not known here"
        );
        let path = |card: &mut Value| {
            card["tokenizer"]["hf_tokenizer_json"]["path"] = "hf://org/m/tokenizer.json".into();
        };
        assert!(refused(path).starts_with("\"hf://org/m/tokenizer.json\" is no address"));
        let sum = |card: &mut Value| {
            card["tokenizer"]["hf_tokenizer_json"]["checksum"] = "sha1:00".into();
        };
        assert!(refused(sum).starts_with("\"sha1:00\" is no checksum"));
    }
}
