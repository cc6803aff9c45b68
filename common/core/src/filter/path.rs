//! The search for a place: which entries to push on so that a new one fits.
//!
//! Breadth first from both buckets of the new entry, so the path is a shortest one, and with
//! a fixed order, so it is the same on every machine. Nothing is moved while searching.

use super::bucket::{self, LANES};
use super::class::Seat;
use super::geometry::Geometry;

/// Buckets looked at before giving up; at the hard load a path takes about a hundred.
const MAX_NODES: usize = 2_000;

/// The fingerprint to push from one bucket to its other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Push {
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) fingerprint: u16,
}

/// A bucket reached, and the entry of its parent's that would be pushed into it.
struct Node {
    bucket: u16,
    fingerprint: u16,
    parent: Option<usize>,
}

/// The search's memory, kept between searches.
#[derive(Default)]
pub(super) struct PathSearch {
    nodes: Vec<Node>,
    /// One bit for each bucket of the chunk; a bucket is on a path at most once, so that no
    /// push changes what a later one relies on.
    seen: Box<[u64]>,
}

impl PathSearch {
    /// Finds pushes, in the order to be done, after which a bucket of the seat has a place.
    /// `word` tells the fingerprints in a bucket.
    ///
    /// Says nothing if there is no such path of reasonable length.
    pub(super) fn find(
        &mut self,
        geometry: &Geometry,
        seat: Seat,
        word: impl Fn(u16) -> u64,
    ) -> Option<Vec<Push>> {
        self.start(geometry, seat);
        let mut at = 0;
        while at < self.nodes.len() && self.nodes.len() < MAX_NODES {
            let bucket = self.nodes[at].bucket;
            let entries = word(bucket);
            for lane in 0..LANES {
                let fingerprint = bucket::lane(entries, lane);
                let next = geometry.alternate(bucket, fingerprint);
                if !self.reach(next, fingerprint, Some(at)) {
                    continue;
                }
                if bucket::empty_lanes(word(next)) > 0 {
                    return Some(self.pushes());
                }
            }
            at += 1;
        }
        None
    }

    fn start(&mut self, geometry: &Geometry, seat: Seat) {
        let words = usize::from(geometry.chunk_buckets()).div_ceil(64);
        if self.seen.len() == words {
            self.seen.fill(0);
        } else {
            self.seen = vec![0; words].into();
        }
        self.nodes.clear();
        let (even, fingerprint) = (seat.bucket(), seat.fingerprint());
        self.reach(even, fingerprint, None);
        self.reach(geometry.alternate(even, fingerprint), fingerprint, None);
    }

    /// Adds a bucket unless it was reached before.
    fn reach(&mut self, bucket: u16, fingerprint: u16, parent: Option<usize>) -> bool {
        let word = &mut self.seen[usize::from(bucket / 64)];
        let bit = 1 << (bucket % 64);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.nodes.push(Node {
            bucket,
            fingerprint,
            parent,
        });
        true
    }

    /// The pushes that lead to the last bucket reached, last one first.
    fn pushes(&self) -> Vec<Push> {
        let mut pushes = Vec::new();
        let mut node = self.nodes.last();
        while let Some(Node {
            bucket,
            fingerprint,
            parent: Some(parent),
        }) = node
        {
            let from = &self.nodes[*parent];
            pushes.push(Push {
                from: from.bucket,
                to: *bucket,
                fingerprint: *fingerprint,
            });
            node = Some(from);
        }
        pushes
    }
}
