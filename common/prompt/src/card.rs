//! A model's card: all that makes an edge tokenise as the site does.
//!
//! A card is content-addressed: its digest is the BLAKE3 of its encoding, and a decoder
//! accepts only the one canonical encoding, so equal digests mean equal cards. It holds the
//! tokenizer's files whole, and what the site's frontend was told on its command line.
//!
//! Encoding: the magic line, the length of the header as u32 little-endian, the header as
//! JSON, then the files' bytes in the header's order. An unknown field is refused, because
//! a rule this build doesn't know may change the tokens.

mod files;
mod model_dir;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use model_dir::local_time_zone;

/// BLAKE3 of a card's encoding.
pub type Digest = [u8; 32];

const MAGIC: &[u8] = b"kvgrid-card-1\n";
const MAX_HEADER_BYTES: usize = 1 << 20;

/// A model's tokenizer and chat template, and how its site uses them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// The name clients ask for.
    pub model: String,
    /// Versions of the crates that render and tokenise at the site.
    pub software: Software,
    /// The tokenizer implementation that the site was told to use.
    pub tokenizer_backend: TokenizerBackend,
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// Whether blocks overlap by one token (EAGLE).
    pub eagle: bool,
    /// Device blocks of all ranks together; 0 = unknown.
    pub capacity_blocks: u64,
    /// The longest sequence the model takes, in tokens; 0 = unknown.
    pub context_length: u32,
    /// The adapter's canonical name, if this model is a LoRA adapter; it enters the hashes.
    pub lora: Option<String>,
    /// `model_type` of config.json, lower case; selects formatters that need no template.
    pub model_type: Option<String>,
    /// Time zone of the site's frontend, for templates that print the date.
    pub time_zone: String,
    /// How the site treats a chat request before it renders it.
    pub chat: ChatRules,
    /// The files, by name: `tokenizer.json` always, the rest where the model has them.
    #[serde(skip)]
    files: BTreeMap<String, Arc<[u8]>>,
}

/// Versions of the crates that turn a request into tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// Version of `dynamo-renderer`.
    pub renderer: String,
    /// Version of `dynamo-tokenizers`.
    pub tokenizers: String,
    /// Version of `dynamo-protocols`.
    pub protocols: String,
}

impl Software {
    /// What this build contains, which is what Dynamo 1.6.1 contains.
    pub fn current() -> Self {
        Self {
            renderer: "8.0.3".into(),
            tokenizers: "3.1.1".into(),
            protocols: "8.2.0".into(),
        }
    }
}

/// A tokenizer implementation, as Dynamo names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerBackend {
    /// Hugging Face `tokenizers`.
    #[default]
    Default,
    /// `fastokens`.
    Fastokens,
    /// `basetenkenizer`.
    Basetenkenizer,
}

/// How a site's frontend treats chat requests before it renders them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatRules {
    /// Whether `tool_choice: "none"` hides the tools from the template.
    pub exclude_tools_when_tool_choice_none: bool,
    /// Whether tool calls in the history reach the template as objects, not as strings.
    pub tool_arguments_as_objects: bool,
    /// Whether the model thinks when a request doesn't say.
    pub default_thinking: Option<DefaultThinking>,
    /// The site's reasoning parser; some imply template arguments.
    pub reasoning_parser: Option<String>,
    /// The site's tool call parser; some imply template arguments.
    pub tool_call_parser: Option<String>,
    /// Arguments for the template where a request gives none of that name.
    pub template_args: BTreeMap<String, serde_json::Value>,
    /// Extra values that the site offers to its templates.
    pub context: Vec<ContextMixin>,
}

impl Default for ChatRules {
    fn default() -> Self {
        Self {
            exclude_tools_when_tool_choice_none: true,
            tool_arguments_as_objects: false,
            default_thinking: None,
            reasoning_parser: None,
            tool_call_parser: None,
            template_args: BTreeMap::new(),
            context: Vec::new(),
        }
    }
}

/// Whether a model thinks unless told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultThinking {
    /// It thinks.
    Enabled,
    /// It doesn't.
    Disabled,
}

/// Values that a site's renderer offers to templates beyond the request's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextMixin {
    /// Messages and tools as in OpenAI's chat.
    OaiChat,
    /// `datetime`, today's date in UTC.
    Llama3DateTime,
}

/// What a model directory doesn't say and an operator or a site's card must.
#[derive(Clone, Debug, PartialEq)]
pub struct CardOptions {
    /// The name clients ask for.
    pub model: String,
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// Whether blocks overlap by one token (EAGLE).
    pub eagle: bool,
    /// Device blocks of all ranks together; 0 = unknown.
    pub capacity_blocks: u64,
    /// The longest sequence, in tokens; `None` takes config.json's.
    pub context_length: Option<u32>,
    /// The adapter's canonical name, if the model is a LoRA adapter.
    pub lora: Option<String>,
    /// The tokenizer implementation the site was told to use.
    pub tokenizer_backend: TokenizerBackend,
    /// Versions at the site; `None` means this build's.
    pub software: Option<Software>,
    /// Time zone of the site's frontend; `None` takes this process's.
    pub time_zone: Option<String>,
    /// A template that the site uses instead of the model's own.
    pub chat_template: Option<PathBuf>,
    /// How the site treats chat requests.
    pub chat: ChatRules,
}

impl CardOptions {
    /// Options for a model served with a frontend's defaults.
    pub fn new(model: impl Into<String>, block_size: NonZeroU32) -> Self {
        Self {
            model: model.into(),
            block_size,
            eagle: false,
            capacity_blocks: 0,
            context_length: None,
            lora: None,
            tokenizer_backend: TokenizerBackend::Default,
            software: None,
            time_zone: None,
            chat_template: None,
            chat: ChatRules::default(),
        }
    }
}

/// Why a card can't be made or read. Nothing was changed.
#[derive(Debug, Error)]
pub enum CardError {
    /// The model directory lacks a file that tokenising needs; the operator's to fix.
    #[error("the model directory has no {0}")]
    MissingFile(&'static str),
    /// A file can't be read; the operator's to fix.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file isn't what its name promises; the model's fault.
    #[error("{file}: {reason}")]
    BadFile {
        /// The file's name.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The card is larger than a card may be; the sender's or the model's fault.
    #[error("{bytes} bytes are too many for a card, which has at most {limit}")]
    TooLarge {
        /// Bytes found, or announced.
        bytes: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// The bytes are no card of this version; the sender's fault.
    #[error("not a card: {0}")]
    Malformed(String),
}

/// Why this build can't predict the tokens of a card's model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unsupported {
    /// The site runs other versions than this build contains.
    #[error("the site runs {name} {site}, this build has {ours}")]
    Version {
        /// The crate.
        name: &'static str,
        /// Its version at the site.
        site: String,
        /// Its version here.
        ours: String,
    },
    /// The site's tokenizer implementation isn't in this build.
    #[error("the site tokenises with {0:?}, which this build doesn't contain")]
    Backend(TokenizerBackend),
}

impl Card {
    /// The most bytes an encoded card may have.
    pub const MAX_BYTES: usize = 64 << 20;

    /// Makes the card of the model in `dir`.
    pub fn from_model_dir(dir: &std::path::Path, options: CardOptions) -> Result<Self, CardError> {
        model_dir::read(dir, options)
    }

    /// Makes the card of a model whose files are given by name, as they would be called in its
    /// directory. Names that no card needs are refused; `options.chat_template` is not read.
    pub fn from_files(
        files: BTreeMap<String, Vec<u8>>,
        options: CardOptions,
    ) -> Result<Self, CardError> {
        model_dir::of_files(files, options)
    }

    /// The contents of a file, if the model has it.
    pub fn file(&self, name: &str) -> Option<&Arc<[u8]>> {
        self.files.get(name)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        files::encode(self)
    }

    /// Reads a canonical encoding of at most [`Card::MAX_BYTES`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CardError> {
        files::decode(bytes)
    }

    /// BLAKE3 of the encoding.
    pub fn digest(&self) -> Digest {
        Self::digest_of(&self.encode())
    }

    /// The digest that a card with this encoding has.
    pub fn digest_of(encoding: &[u8]) -> Digest {
        *blake3::hash(encoding).as_bytes()
    }

    /// Whether this build turns requests into the very tokens that the site does.
    pub fn supported(&self) -> Result<(), Unsupported> {
        let ours = Software::current();
        let versions = [
            ("dynamo-renderer", &self.software.renderer, ours.renderer),
            (
                "dynamo-tokenizers",
                &self.software.tokenizers,
                ours.tokenizers,
            ),
            ("dynamo-protocols", &self.software.protocols, ours.protocols),
        ];
        for (name, site, ours) in versions {
            if *site != ours {
                let site = site.clone();
                return Err(Unsupported::Version { name, site, ours });
            }
        }
        match self.tokenizer_backend {
            TokenizerBackend::Default | TokenizerBackend::Fastokens => Ok(()),
            backend @ TokenizerBackend::Basetenkenizer => Err(Unsupported::Backend(backend)),
        }
    }
}

/// A card as a careless relay might make it.
#[cfg(test)]
pub(crate) fn without_files(mut card: Card) -> Card {
    card.files.clear();
    card
}

#[cfg(test)]
mod tests;
