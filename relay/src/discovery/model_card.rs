//! A model as its worker describes it: Dynamo's model deployment card.

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
        Ok(Self { raw, fields })
    }

    /// Whether clients may ask for it by this name.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let aliases = self.fields.aliases.as_array();
        let mut aliases = aliases.into_iter().flatten();
        self.fields.display_name == name || aliases.any(|alias| alias == name)
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
