//! A request in a slot, and the blocks it stores.

use std::sync::Arc;

use kvgrid_core::Instant;
use kvgrid_core::block::ChainHash;
use rand::RngExt;
use rand::rngs::SmallRng;

/// A request in a slot.
#[derive(Debug)]
pub(super) struct Job {
    /// Prompt, then answer.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) max_tokens: u32,
    pub(super) answered: u32,
    pub(super) namespace: Option<Arc<str>>,
    /// Blocks of this request that are in the cache and pinned, by their last one.
    pub(super) chain: Vec<ChainHash>,
    pub(super) reserved: usize,
    pub(super) due: Instant,
    pub(super) rng: SmallRng,
}

impl Job {
    pub(super) fn next_token(&mut self, vocabulary: &[u32]) -> u32 {
        if vocabulary.is_empty() {
            self.rng.random_range(0..1_000)
        } else {
            vocabulary[self.rng.random_range(0..vocabulary.len())]
        }
    }
}

/// New blocks that follow each other.
pub(super) struct StoredRun {
    pub(super) parent: Option<ChainHash>,
    pub(super) blocks: Vec<ChainHash>,
    pub(super) tokens: Vec<u32>,
}

impl StoredRun {
    pub(super) const fn after(parent: Option<ChainHash>) -> Self {
        Self {
            parent,
            blocks: Vec::new(),
            tokens: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, block: ChainHash, tokens: &[u32]) {
        self.blocks.push(block);
        self.tokens.extend_from_slice(tokens);
    }
}

pub(super) fn digest(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(0, |digest, token| mix(digest ^ u64::from(*token)))
}

/// SplitMix64's finaliser: a bijection, so two blocks never share a name.
pub(super) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
