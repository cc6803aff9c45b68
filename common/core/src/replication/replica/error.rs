//! What can be wrong with what a publisher sends.

use thiserror::Error;

use crate::filter::{CodecError, ReplaceError};
use crate::replication::message::{Epoch, Seq};

/// Why a frame or chunk was refused. Whatever it is, the replica goes stale, keeps what can be
/// searched, and will subscribe again after a delay.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplicaError {
    /// A frame is not the next one. The link is at fault, or the publisher; resumed from `expected`.
    #[error("sequence {found} does not follow {expected}")]
    Gap {
        /// Where the replica is.
        expected: Seq,
        /// What the frame builds on.
        found: Seq,
    },
    /// A frame is of an epoch that was not begun. The publisher is at fault.
    #[error("epoch {found} was not begun")]
    NotBegun {
        /// The frame's epoch.
        found: Epoch,
    },
    /// The pool's hashes are mixed with a key that this node doesn't have. The operator is at fault.
    #[error("grid key {key_id:016x} is not known here")]
    UnknownKey {
        /// The key's public id.
        key_id: u64,
    },
    /// Whole hashes came where a filter was asked for. The publisher is at fault.
    #[error("whole hashes came where a filter was asked for")]
    Form,
    /// The table is larger than this node allows. The publisher or the limit is at fault.
    #[error("a table of {chunks} chunks is over the limit of {limit}")]
    TooLarge {
        /// Chunks announced.
        chunks: u32,
        /// Most chunks allowed.
        limit: u32,
    },
    /// An epoch came back with another geometry. The publisher is at fault.
    #[error("epoch {epoch} has changed its geometry")]
    Geometry {
        /// The epoch.
        epoch: Epoch,
    },
    /// A chunk that the table doesn't have was announced. The publisher is at fault.
    #[error("chunk {chunk} is outside the table")]
    NoSuchChunk {
        /// The first such chunk.
        chunk: u32,
    },
    /// A delta can't be decoded; nothing of it was applied. The publisher is at fault.
    #[error("{list} of a delta: {source}")]
    Delta {
        /// Which of its two lists.
        list: &'static str,
        /// What is wrong with it.
        source: CodecError,
    },
    /// A chunk can't be decoded; the old content stays. The publisher is at fault.
    #[error("classes of chunk {index}: {source}")]
    ChunkCode {
        /// Which chunk.
        index: u32,
        /// What is wrong with it.
        source: CodecError,
    },
    /// A chunk's content is not what its digest says; the old content stays. The publisher is at fault.
    #[error("chunk {index} does not have its digest")]
    ChunkDigest {
        /// Which chunk.
        index: u32,
    },
    /// A chunk doesn't fit into the table; some of it is in. The publisher is at fault.
    #[error(transparent)]
    Chunk(ReplaceError),
    /// Digests are not one for each chunk. The publisher is at fault.
    #[error("{found} digests for {chunks} chunks")]
    Digests {
        /// Digests found.
        found: usize,
        /// Chunks of the table.
        chunks: u32,
    },
    /// More source publishers than this node allows. The publisher or the limit is at fault.
    #[error("more than {limit} sources")]
    Sources {
        /// Most allowed.
        limit: usize,
    },
}

impl ReplicaError {
    /// Whether asking for what follows would bring the same again, so that only a fresh start helps.
    pub(super) const fn needs_fresh_start(&self) -> bool {
        match self {
            Self::Gap { .. } | Self::NotBegun { .. } => false,
            Self::UnknownKey { .. }
            | Self::Form
            | Self::TooLarge { .. }
            | Self::Geometry { .. }
            | Self::NoSuchChunk { .. }
            | Self::Delta { .. }
            | Self::ChunkCode { .. }
            | Self::ChunkDigest { .. }
            | Self::Chunk(_)
            | Self::Digests { .. }
            | Self::Sources { .. } => true,
        }
    }
}
