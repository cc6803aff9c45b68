//! Looks at what the next blocks of an event will need, before they are worked on.
//!
//! Tables and entries of a large pool lie all over memory. Worked on one after another, each
//! block waits for its own several times; looked at together, they are fetched at once.

use core::hint::black_box;

use super::Residency;
use super::forest::Slot;
use super::slab::Index;
use crate::block::ChainHash;
use crate::event::{EngineHash, StoredBlock};

/// Blocks that are looked at together: about as many as a processor fetches at once.
pub(super) const AHEAD: usize = 32;

impl Residency {
    /// Looks at where the first blocks of a run and their chains will be found. The parent is
    /// its name, and its entry if there is one.
    pub(super) fn fetch_stored(
        &self,
        slot: Slot,
        parent: (Option<EngineHash>, Option<Index>),
        blocks: &[StoredBlock],
    ) {
        let blocks = &blocks[..blocks.len().min(AHEAD)];
        for block in blocks {
            black_box(self.forest.touch(slot, block.engine));
        }
        let mut chain = match parent {
            (None, _) => None,
            (Some(_), parent) => {
                let chain = parent.and_then(|parent| self.forest.get(parent).chain);
                let Some(chain) = chain else { return };
                Some(self.published.hash(chain))
            }
        };
        for block in blocks {
            let next = match chain {
                None => ChainHash::root(block.local),
                Some(before) => before.child(block.local),
            };
            black_box(self.published.touch(next));
            chain = Some(next);
        }
    }

    /// Looks at where the first blocks of a list are, and at their chains.
    pub(super) fn fetch_removed(&self, slot: Slot, blocks: &[EngineHash]) {
        let blocks = &blocks[..blocks.len().min(AHEAD)];
        for block in blocks {
            black_box(self.forest.touch(slot, *block));
        }
        let mut chains = [None; AHEAD];
        for (chain, block) in chains.iter_mut().zip(blocks) {
            let index = self.forest.find(slot, *block);
            *chain = index.and_then(|index| self.forest.get(index).chain);
        }
        let mut hashes = [None; AHEAD];
        for (hash, chain) in hashes.iter_mut().zip(chains) {
            *hash = chain.map(|chain| self.published.hash(chain));
        }
        for hash in hashes.into_iter().flatten() {
            black_box(self.published.touch(hash));
        }
    }
}
