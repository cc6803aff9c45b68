//! What readers see of a replica: an immutable snapshot.

use core::time::Duration;
use std::sync::Arc;

use super::message::{Completeness, Epoch, Seq};
use crate::filter::{Form, MixKey, Reader, Target};
use crate::time::Instant;

/// Whether what a replica has can be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaState {
    /// It has nothing and nothing is coming.
    #[default]
    Empty,
    /// It has nothing that is whole, and the first whole one is coming.
    Syncing,
    /// It is whole and follows its publisher.
    Live,
    /// It was whole at this time and is not known to be right since.
    Stale {
        /// When it stopped being live.
        since: Instant,
    },
}

impl ReplicaState {
    /// How long it has been stale; zero if it is not.
    pub fn stale_for(self, now: Instant) -> Duration {
        match self {
            Self::Stale { since } => now.saturating_since(since),
            Self::Empty | Self::Syncing | Self::Live => Duration::ZERO,
        }
    }
}

/// A table to look into, and the key that places hashes in it.
#[derive(Clone, Debug)]
pub struct ReplicaFilter {
    /// The table, which the replica goes on writing.
    pub reader: Reader,
    /// The geometry's key.
    pub key: Arc<MixKey>,
}

impl ReplicaFilter {
    /// How much it knows of each hash.
    pub fn form(&self) -> Form {
        self.reader.geometry().form()
    }

    /// What a search looks into; `closed` says whether the pool publishes closed sets only.
    pub fn target(&self, closed: bool) -> Target<'_> {
        Target {
            reader: &self.reader,
            key: &self.key,
            closed,
        }
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syncing {
    /// The epoch that is being fetched.
    pub epoch: Epoch,
    /// Chunks still to come.
    pub missing: u32,
    /// Chunks of the whole table.
    pub chunks: u32,
}

/// A replica as it was at one moment. The filter inside stays alive and is written on.
#[derive(Clone, Debug, Default)]
pub struct ReplicaView {
    /// Whether it can be believed.
    pub state: ReplicaState,
    /// The epoch of what can be searched.
    pub epoch: Option<Epoch>,
    /// The last sequence that can be searched whole.
    pub seq: Seq,
    /// Source publishers, in order, and the last sequence of each that can be searched whole.
    pub applied: Arc<[(u64, u64)]>,
    /// Blocks that can be searched.
    pub blocks: u64,
    /// How much the pool knew.
    pub completeness: Completeness,
    /// The table, once one was whole.
    pub filter: Option<ReplicaFilter>,
    /// The transfer in progress, if there is one.
    pub syncing: Option<Syncing>,
}

impl ReplicaView {
    /// The last sequence of a source publisher that can be searched whole.
    pub fn applied(&self, publisher: u64) -> Option<u64> {
        let at = |entry: &(u64, u64)| entry.0.cmp(&publisher);
        let index = self.applied.binary_search_by(at).ok()?;
        self.applied.get(index).map(|(_, sequence)| *sequence)
    }
}
