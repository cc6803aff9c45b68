//! Sources of KV events: whatever tells which worker holds which blocks.
//!
//! Every source ends in the same [`SourceEvent`]s on one bounded channel. When the pool task is
//! slow, sources wait, their publishers' buffers fill, and what is dropped there shows up as a
//! gap, which the source repairs or answers for.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvgrid_core::ckf::Format;
use kvgrid_core::event::{KvEvent, Refusals, WorkerKey};

use crate::discovery::CohortId;
use crate::publish::PoolShape;

pub(crate) mod dynamo_events;
pub(crate) mod dynamo_relay;
pub(crate) mod engine_zmq;
mod zmq;

/// Events on their way to the pool task. A batch may have thousands of blocks, so few fit.
pub(crate) const CHANNEL_CAPACITY: usize = 64;

/// One of the feeds of one configured source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FeedId {
    /// Place in the configuration's list of sources.
    pub(crate) source: usize,
    /// Place in the source's list of endpoints, or the number it was given when it was found.
    pub(crate) endpoint: usize,
}

/// How much of a publisher's life a feed has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedState {
    /// Nothing is known yet.
    Connecting,
    /// All of it, from the first event on.
    Whole,
    /// It was joined late, or a gap could not be repaired.
    Partial,
    /// There is no publisher: it holds nothing, and that is known.
    Gone,
    /// Its blocks are of no use, or have another form than is configured: it is not followed.
    Unfit,
}

impl FeedState {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [
        Self::Connecting,
        Self::Whole,
        Self::Partial,
        Self::Gone,
        Self::Unfit,
    ];

    /// How many of these are in which state.
    pub(crate) fn counted(feeds: &BTreeMap<usize, Self>) -> Vec<(Self, u64)> {
        let count = |state| {
            let feeds = feeds.values().filter(|feed| **feed == state);
            (state, feeds.map(|_| 1).sum())
        };
        Self::ALL.map(count).to_vec()
    }

    /// Whether nothing is missing of what it has to tell.
    pub(crate) const fn is_known(self) -> bool {
        match self {
            Self::Whole | Self::Gone | Self::Unfit => true,
            Self::Connecting | Self::Partial => false,
        }
    }
}

/// What sources tell the pool task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SourceEvent {
    /// A feed has a new state.
    Feed {
        /// The feed.
        feed: FeedId,
        /// Its state from now on.
        state: FeedState,
    },
    /// A feed that was found is no more.
    FeedEnded {
        /// The feed.
        feed: FeedId,
    },
    /// The source has found out into which pools its workers' blocks belong.
    Parts {
        /// A feed of the source.
        feed: FeedId,
        /// All that there are now.
        parts: Vec<ListedPart>,
    },
    /// A feed tells of a listed part's blocks, and so did what it has told before.
    Belongs {
        /// The feed.
        feed: FeedId,
        /// The part.
        of: Arc<PartInfo>,
    },
    /// Messages were lost for good.
    Gap {
        /// The feed they should have come by.
        feed: FeedId,
    },
    /// Messages that had not come were had by asking again.
    Repaired {
        /// The feed they came by.
        feed: FeedId,
    },
    /// A message that is none of the publisher's.
    Refused {
        /// The feed it came by.
        feed: FeedId,
        /// Why.
        refused: Refusals,
    },
    /// One message of a publisher. It counts as applied even when it has no events.
    Batch {
        /// The feed it came by.
        feed: FeedId,
        /// The rank that published it, in this life of its publisher.
        worker: WorkerKey,
        /// The publisher's own count.
        sequence: u64,
        /// Whether it came as it happened, or is told again.
        live: bool,
        /// What changed.
        events: Vec<KvEvent>,
        /// What could not be used.
        refused: Refusals,
    },
    /// A life of a publisher is over, and with it all that its ranks held.
    PublisherGone {
        /// The feed it came by.
        feed: FeedId,
        /// Which life of which publisher.
        publisher: u64,
    },
    /// A feed is of a filter that somebody else publishes.
    Table {
        /// The feed.
        feed: FeedId,
        /// What it is of.
        of: Arc<TableInfo>,
    },
    /// Such a filter has changed.
    Filter {
        /// The feed.
        feed: FeedId,
        /// Which life of which publisher.
        publisher: u64,
        /// The publisher's own count.
        sequence: u64,
        /// What changed.
        change: FilterChange,
    },
    /// A peer's stream has ended, and will be asked for again.
    Ended {
        /// The feed that it was for.
        feed: FeedId,
        /// Why, in a fixed word.
        reason: &'static str,
    },
    /// A peer says whether the model is served.
    Served {
        /// A feed of the source.
        feed: FeedId,
        /// What it says; nothing if it doesn't know.
        ready: Option<bool>,
    },
}

/// Workers whose blocks are one pool: those of an endpoint whose cards are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartInfo {
    /// Their endpoint.
    pub(crate) place: String,
    /// By what cards prompts become their blocks; `None` where those are others'.
    pub(crate) cohort: Option<CohortId>,
    /// What their blocks look like.
    pub(crate) shape: PoolShape,
}

/// A part as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPart {
    /// The part.
    pub(crate) of: Arc<PartInfo>,
    /// Blocks that its workers have room for, where that is known.
    pub(crate) capacity_blocks: Option<u64>,
    /// Whether edges are told of it.
    pub(crate) told: bool,
}

/// What a filter that somebody else publishes is of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableInfo {
    /// Names it among the source's.
    pub(crate) place: String,
    /// What its blocks look like.
    pub(crate) shape: PoolShape,
    /// What its table looks like.
    pub(crate) format: Format,
}

/// How such a filter has changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FilterChange {
    /// All bucket words as they are now.
    Snapshot(Vec<u64>),
    /// Some buckets and their words as they are now.
    Delta(Vec<(u32, u64)>),
}

impl SourceEvent {
    /// The feed it came by.
    pub(crate) const fn feed(&self) -> FeedId {
        match self {
            Self::Feed { feed, .. }
            | Self::FeedEnded { feed }
            | Self::Parts { feed, .. }
            | Self::Belongs { feed, .. }
            | Self::Gap { feed }
            | Self::Repaired { feed }
            | Self::Refused { feed, .. }
            | Self::Batch { feed, .. }
            | Self::PublisherGone { feed, .. }
            | Self::Table { feed, .. }
            | Self::Filter { feed, .. }
            | Self::Ended { feed, .. }
            | Self::Served { feed, .. } => *feed,
        }
    }

    /// Whether what it stores is new and what it removes is evicted now: neither told again,
    /// nor cleared, nor gone with who held it.
    pub(crate) fn tells_ages(&self) -> bool {
        let Self::Batch { events, live, .. } = self else {
            return false;
        };
        *live && !events.contains(&KvEvent::Cleared)
    }

    /// Whether it is what a publisher said, and was of use.
    pub(crate) const fn is_message(&self) -> bool {
        matches!(self, Self::Batch { .. } | Self::Filter { .. })
    }
}
