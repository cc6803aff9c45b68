//! What a prompt's blocks are called, and what holding some of them is worth.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use kvgrid_core::block::{HashFormat, HashSeed, chain_hashes};

use crate::traffic::BLOCK;

/// How many of a prompt's leading blocks are held, by the mocker's names.
pub(crate) fn depth(held: &BTreeSet<u64>, prompt: &[u32]) -> usize {
    let block_size = u32::try_from(BLOCK).ok().and_then(NonZeroU32::new).unwrap();
    let names = chain_hashes(
        prompt,
        block_size,
        HashFormat::Standard,
        HashSeed::default(),
    );
    names
        .iter()
        .take_while(|name| held.contains(&name.0))
        .count()
}

/// Tokens of a prompt that needn't be computed: the last one always is.
pub(crate) fn overlap(depth: usize, prompt_tokens: usize) -> u64 {
    let reusable = depth.min((prompt_tokens - 1) / BLOCK);
    u64::try_from(reusable * BLOCK).unwrap()
}
