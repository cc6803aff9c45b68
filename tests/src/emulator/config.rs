//! What an emulated site is told, as TOML.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use kvgrid_sim::{SiteConfig, Timing};
use serde::{Deserialize, Serialize};

use super::events::EventForm;

/// An emulated site's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmulatorConfig {
    /// What clients call the model.
    pub model: String,
    /// Where its tokenizer and chat template are; without it prompts must be token ids.
    pub model_dir: Option<PathBuf>,
    /// Address of the HTTP server.
    pub listen: SocketAddr,
    /// Where to write the bound addresses as JSON once everything is up.
    pub ready_file: Option<PathBuf>,
    /// The engine.
    pub engine: EngineConfig,
    /// Its KV events.
    pub events: EventsConfig,
}

/// The engine behind an emulated site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// Blocks that fit into its memory.
    pub capacity_blocks: usize,
    /// Requests that run at the same time.
    pub slots: usize,
    /// How many of them may be in their prefill.
    pub prefills: usize,
    /// Requests that may wait; more get 429.
    pub queue: usize,
    /// All times are multiplied by it; 0 takes no time.
    pub factor: f64,
    /// Length of an answer when the client does not say.
    pub max_tokens: u32,
    /// Where the engine's names for blocks come from; a restarted engine would have another.
    pub seed: u64,
}

/// How an emulated site publishes KV events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventsConfig {
    /// Whether to publish at all.
    pub enabled: bool,
    /// Where the PUB socket is bound.
    pub publish: SocketAddr,
    /// Where the replay ROUTER is bound.
    pub replay: SocketAddr,
    /// First frame of every message.
    pub topic: String,
    /// How events are encoded.
    pub form: EventForm,
    /// Messages that replay can go back; older ones are forgotten.
    pub buffer: usize,
}

const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

impl Default for EmulatorConfig {
    fn default() -> Self {
        Self {
            model: "tiny-chat".into(),
            model_dir: None,
            listen: ANY_PORT,
            ready_file: None,
            engine: EngineConfig::default(),
            events: EventsConfig::default(),
        }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            block_size: const { NonZeroU32::new(16).expect("16 is not zero") },
            capacity_blocks: 16_384,
            slots: 256,
            prefills: 1,
            queue: 4_096,
            factor: 1.0,
            max_tokens: 32,
            seed: 0,
        }
    }
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            publish: ANY_PORT,
            replay: ANY_PORT,
            topic: String::new(),
            form: EventForm::Map,
            buffer: 10_000,
        }
    }
}

impl EngineConfig {
    /// The model of this engine, which answers in words of `vocabulary`.
    pub(super) fn site(&self, vocabulary: Vec<u32>) -> SiteConfig {
        SiteConfig {
            block_size: self.block_size,
            capacity_blocks: self.capacity_blocks,
            slots: self.slots,
            prefills: self.prefills,
            queue: self.queue,
            timing: Timing::new(self.factor),
            vocabulary: vocabulary.into(),
            seed: self.seed,
        }
    }
}
