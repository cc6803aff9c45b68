//! KV events, normalised: what every source's messages are turned into.
//!
//! An event says which blocks a worker stored or dropped on one storage tier. Blocks carry two
//! names: the engine's own, which finds parents and resolves removals within that worker, and
//! the local hash of their tokens, which is the same everywhere. Salt and adapter are already
//! folded into the local hash.

use crate::block::BlockHash;

pub mod dynamo;
pub mod engine;
mod msgpack;
mod refusal;

pub use refusal::{Refusal, Refusals};

/// A worker's rank in one life of its publisher; after a restart the publisher is a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerKey {
    /// Names the publisher's life.
    pub publisher: u64,
    /// Data-parallel rank within it.
    pub rank: u32,
}

/// Where a worker keeps a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Accelerator memory: a hit costs nothing.
    Device,
    /// Host memory of the worker's machine.
    HostPinned,
    /// The worker's local disk.
    Disk,
    /// Storage shared by several machines.
    External,
}

impl Tier {
    /// What it is called in metrics, answers and configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::HostPinned => "host_pinned",
            Self::Disk => "disk",
            Self::External => "external",
        }
    }
}

/// An engine's own name of a block, meaningful only within one worker; never a key elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

/// One block of a stored run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// The engine's name of the block.
    pub engine: EngineHash,
    /// The hash of the block's tokens, salt and adapter included.
    pub local: BlockHash,
}

/// A change of what one worker holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Consecutive blocks were stored, each the child of the one before it.
    Stored {
        /// The block before the first one; `None` when the first one begins a prompt.
        parent: Option<EngineHash>,
        /// Where they are kept.
        tier: Tier,
        /// The blocks in prompt order.
        blocks: Vec<StoredBlock>,
    },
    /// One physical copy of each of these blocks was dropped.
    Removed {
        /// Where they were kept.
        tier: Tier,
        /// The blocks, in any order.
        blocks: Vec<EngineHash>,
    },
    /// The worker holds nothing any more, on any tier.
    Cleared,
}

impl KvEvent {
    /// How many blocks the event names.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Stored { blocks, .. } => blocks.len(),
            Self::Removed { blocks, .. } => blocks.len(),
            Self::Cleared => 0,
        }
    }
}
