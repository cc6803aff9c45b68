//! Prompts, and which site holds how much of each.

use std::num::NonZeroU32;
use std::sync::Arc;

use kvgrid_core::block::{BlockHash, ChainHash, HashFormat, HashSeed, block_hashes, chain_hashes};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Tokens of a block.
pub(super) const BLOCK: NonZeroU32 = NonZeroU32::new(16).expect("it is not zero");

/// How much sites hold of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One site 90 %, two 50 %, four 10 %, all others eight blocks: a conversation that has
    /// moved, after a system prompt that all have seen.
    Shared,
    /// Each site as much as comes by chance.
    Scattered,
    /// None of it.
    Cold,
}

/// A prompt.
pub(super) struct Prompt {
    pub(super) tokens: Arc<[u32]>,
    pub(super) blocks: Vec<BlockHash>,
    pub(super) chain: Vec<ChainHash>,
    /// Leading blocks that each site holds.
    pub(super) depths: Vec<u32>,
}

/// Prompts that are measured together.
pub(super) struct Group {
    pub(super) kind: Kind,
    pub(super) length: u32,
    pub(super) prompts: Vec<Prompt>,
}

impl Group {
    /// So many prompts of so many blocks, of which no two have a block in common.
    pub(super) fn new(kind: Kind, length: u32, prompts: usize, sites: usize, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let prompt = |_| {
            let depths = kind.depths(length, sites, &mut rng);
            let tokens = length * BLOCK.get();
            Prompt::new((0..tokens).map(|_| rng.random()).collect(), depths)
        };
        Self {
            kind,
            length,
            prompts: (0..prompts).map(prompt).collect(),
        }
    }
}

impl Prompt {
    fn new(tokens: Arc<[u32]>, depths: Vec<u32>) -> Self {
        let seed = HashSeed::new(None, None);
        Self {
            blocks: block_hashes(&tokens, BLOCK, HashFormat::Standard, seed),
            chain: chain_hashes(&tokens, BLOCK, HashFormat::Standard, seed),
            tokens,
            depths,
        }
    }

    /// Reads the hashes, as whoever made them has.
    pub(super) fn touch(&self) -> u64 {
        let blocks = self.blocks.iter().map(|block| block.0);
        let hashes = blocks.chain(self.chain.iter().map(|block| block.0));
        hashes.fold(0, u64::wrapping_add)
    }
}

impl Kind {
    fn depths(self, length: u32, sites: usize, rng: &mut SmallRng) -> Vec<u32> {
        let mut depths = vec![
            match self {
                Self::Shared => length.min(8),
                Self::Scattered | Self::Cold => 0,
            };
            sites
        ];
        match self {
            Self::Shared => {
                let shares = [90, 50, 50, 10, 10, 10, 10];
                for share in shares.into_iter().take(sites) {
                    let mut at = rng.random_range(0..sites);
                    while depths[at] != length.min(8) {
                        at = (at + 1) % sites;
                    }
                    depths[at] = length * share / 100;
                }
            }
            Self::Scattered => depths.fill_with(|| rng.random_range(0..=length)),
            Self::Cold => {}
        }
        depths
    }
}
