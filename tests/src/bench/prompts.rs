//! Prompts that workers cache and evict, made from their numbers, so that a bench remembers
//! nothing of them.

use kvgrid_core::block::BlockHash;
use kvgrid_core::event::{EngineHash, KvEvent, StoredBlock, Tier, WorkerKey};

/// Blocks of a prompt.
const PROMPT: u64 = 512;
/// Blocks of an event: what an engine has computed in one step.
pub(super) const RUN: usize = 32;
const RUN_BLOCKS: u64 = RUN as u64;
/// Blocks that one set of prompts may have before it has those of the next one.
const SET: u64 = 1 << 40;

/// Blocks of workers that take turns, prompt by prompt; the oldest prompts go first.
pub(super) struct Prompts {
    workers: u64,
    /// Runs that were stored.
    stored: u64,
    /// Runs that were removed.
    removed: u64,
}

impl Prompts {
    /// Those of so many workers, and unlike those of another set.
    pub(super) const fn of(workers: u64, set: u64) -> Self {
        let first = set * SET / RUN_BLOCKS;
        Self {
            workers,
            stored: first,
            removed: first,
        }
    }

    /// The next blocks that come, in events.
    pub(super) fn stored(&mut self, blocks: usize) -> Vec<(WorkerKey, KvEvent)> {
        let runs = self.stored..self.stored + blocks as u64 / RUN_BLOCKS;
        self.stored = runs.end;
        runs.map(|run| {
            let first = run * RUN_BLOCKS;
            let event = KvEvent::Stored {
                parent: (!first.is_multiple_of(PROMPT)).then(|| name(first - 1)),
                tier: Tier::Device,
                blocks: (first..first + RUN_BLOCKS).map(block).collect(),
            };
            (self.worker(run), event)
        })
        .collect()
    }

    /// The next blocks that go, each prompt's last ones first.
    pub(super) fn removed(&mut self, blocks: usize) -> Vec<(WorkerKey, KvEvent)> {
        let runs = self.removed..self.removed + blocks as u64 / RUN_BLOCKS;
        self.removed = runs.end;
        runs.map(|run| {
            let runs = PROMPT / RUN_BLOCKS;
            let mirrored = run / runs * runs + (runs - 1 - run % runs);
            let first = mirrored * RUN_BLOCKS;
            let event = KvEvent::Removed {
                tier: Tier::Device,
                blocks: (first..first + RUN_BLOCKS).rev().map(name).collect(),
            };
            (self.worker(mirrored), event)
        })
        .collect()
    }

    const fn worker(&self, run: u64) -> WorkerKey {
        WorkerKey {
            publisher: run * RUN_BLOCKS / PROMPT % self.workers,
            rank: 0,
        }
    }
}

const fn block(number: u64) -> StoredBlock {
    StoredBlock {
        engine: name(number),
        local: BlockHash(spread(number ^ (1 << 63))),
    }
}

const fn name(number: u64) -> EngineHash {
    EngineHash(spread(number))
}

/// Looks random, and is of no two numbers the same.
const fn spread(number: u64) -> u64 {
    let number = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
