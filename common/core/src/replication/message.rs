//! What a publisher and a replica say to each other, as values.
//!
//! [`Frame`]s travel in order on one stream per subscription; [`Chunk`]s travel each on a
//! stream of its own, so they may overtake frames and each other and be overtaken.

use core::fmt;
use core::num::NonZeroU64;
use std::sync::Arc;

use crate::filter::{Form, Geometry};

/// One life of a pool's filter: a start of its relay, or a change of geometry. Opaque to
/// replicas, which only compare for equality.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(NonZeroU64);

impl Epoch {
    /// Bits of the number that counts geometries within one start.
    const GENERATION_BITS: u32 = 16;

    /// The epoch of a relay's start, by the incarnation's low 48 bits, and of its nth geometry.
    pub const fn new(incarnation: u64, generation: u16) -> Self {
        let bits = incarnation << Self::GENERATION_BITS | generation as u64;
        match NonZeroU64::new(bits) {
            Some(bits) => Self(bits),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// An epoch as another node named it; zero names none.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// The epoch as one number, never zero.
    pub const fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// The epoch of the same start's next geometry.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({self})")
    }
}

/// The number of a delta within an epoch; zero is the epoch's empty beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How much of what its site has cached a pool knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Completeness {
    /// Nothing: no source feeds it.
    #[default]
    None,
    /// What was announced since the relay came; the rest is being recovered.
    Partial,
    /// Partial past its deadline: it won't become whole.
    Incomplete,
    /// All of it.
    Whole,
}

/// Tells one subscription of a replica from those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// What a replica asks of the publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Tell me of this pool; this takes the place of the subscription before.
    Subscribe {
        /// Names the frames that answer.
        subscription: SubscriptionId,
        /// The form that is wanted. A publisher without it gives a filter, as an older one does
        /// that doesn't know the question: which it is, the geometry says.
        form: Form,
        /// What the replica has already.
        resume: Option<Resume>,
    },
    /// Send the digests of all chunks in the subscription's stream.
    Audit {
        /// The subscription they are to come on.
        subscription: SubscriptionId,
    },
}

/// What a replica has: an epoch up to a sequence, but for some chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The life of the filter that it has.
    pub epoch: Epoch,
    /// Frames up to this one are applied.
    pub seq: Seq,
    /// Chunks that it lacks or has found to be wrong, in order.
    pub missing: Vec<u32>,
}

/// What comes in order on a subscription's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Chunks are on their way.
    Begin(Begin),
    /// The next batch of changes.
    Delta(Arc<Delta>),
    /// How far the publisher's own sources are applied.
    Status(Status),
    /// The digests of all chunks.
    Digests(Digests),
    /// Every chunk that was announced is sent and no newer than this point.
    End(End),
}

/// Announces chunks, and moves the subscription to a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The life of the filter that they are of.
    pub epoch: Epoch,
    /// The deltas after this one follow.
    pub seq: Seq,
    /// The size of the table.
    pub geometry: Geometry,
    /// Which chunks come; each has a cut at or after `seq`.
    pub chunks: Announced,
}

/// Which chunks a [`Begin`] announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announced {
    /// All of them.
    All,
    /// These; what the replica has of the others stays right.
    Only(Vec<u32>),
}

/// The content of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The life of the filter that it is of.
    pub epoch: Epoch,
    /// Which chunk.
    pub index: u32,
    /// The operations up to this sequence are contained, and none after.
    pub cut: Seq,
    /// Coded classes.
    pub classes: Arc<[u8]>,
    /// The chunk's digest.
    pub digest: u64,
}

/// One closed batch of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The life of the filter that it is of.
    pub epoch: Epoch,
    /// The sequence that it follows.
    pub base: Seq,
    /// The sequence that it leads to.
    pub seq: Seq,
    /// Coded classes that were added.
    pub adds: Arc<[u8]>,
    /// Coded classes that were removed.
    pub removes: Arc<[u8]>,
    /// The sum of all chunks' digests afterwards.
    pub digest: u64,
}

impl Delta {
    /// Bytes of its two lists.
    pub fn bytes(&self) -> usize {
        self.adds.len() + self.removes.len()
    }
}

/// How far the publisher's sources are applied at a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The life of the filter that it is of.
    pub epoch: Epoch,
    /// The pool's sequence that contains the positions.
    pub seq: Seq,
    /// How much the pool knows.
    pub completeness: Completeness,
    /// Whether positions that are not listed are no longer there, or else unchanged.
    pub all: bool,
    /// Source publishers and the last sequence of each that is contained.
    pub applied: Vec<(u64, u64)>,
}

/// The digests of all chunks at a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// The life of the filter that they are of.
    pub epoch: Epoch,
    /// The sequence they belong to.
    pub seq: Seq,
    /// One for each chunk.
    pub digests: Vec<u64>,
}

/// Says that all announced chunks are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The life of the filter that they are of.
    pub epoch: Epoch,
    /// The stream's sequence here; no cut is after it.
    pub seq: Seq,
    /// The sum of all chunks' digests at this sequence.
    pub digest: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_of_starts_and_geometries_all_differ() {
        let first = Epoch::new(7, 0);

        assert_ne!(first, Epoch::new(8, 0));
        assert_eq!(first.next(), Epoch::new(7, 1));
        assert_eq!(Epoch::from_bits(first.to_bits()), Some(first));
        assert_eq!(Epoch::from_bits(0), None);
    }
}
