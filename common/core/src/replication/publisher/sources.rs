//! How far the pool's sources are applied: as told, and as published with a closed batch.

use std::collections::BTreeMap;

use crate::replication::message::{Completeness, Epoch, Seq, Status};

/// Positions of source publishers and the pool's completeness.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// Told since the last close; `None` for a publisher that is gone.
    told: BTreeMap<u64, Option<u64>>,
    told_completeness: Option<Completeness>,
    published: BTreeMap<u64, Position>,
    completeness: Completeness,
    version: Version,
    /// The last version that dropped a publisher: older readers need the whole list.
    dropped_at: Version,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    sequence: u64,
    changed_at: Version,
}

/// Counts what subscribers may have missed; zero is before anything was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u64);

impl Sources {
    /// A publisher's operations up to this sequence have been given to the pool.
    pub(super) fn tell(&mut self, publisher: u64, sequence: u64) {
        self.told.insert(publisher, Some(sequence));
    }

    pub(super) fn forget(&mut self, publisher: u64) {
        self.told.insert(publisher, None);
    }

    pub(super) fn set_completeness(&mut self, completeness: Completeness) {
        self.told_completeness = Some(completeness);
    }

    /// What was told becomes true of the batch that is being closed.
    pub(super) fn publish(&mut self) {
        let version = Version(self.version.0 + 1);
        let mut changed = false;
        if let Some(completeness) = self.told_completeness.take() {
            changed |= completeness != self.completeness || self.version == Version::default();
            self.completeness = completeness;
        }
        for (publisher, sequence) in core::mem::take(&mut self.told) {
            if let Some(sequence) = sequence {
                let position = Position {
                    sequence,
                    changed_at: version,
                };
                let old = self.published.insert(publisher, position);
                changed |= old.is_none_or(|old| old.sequence != sequence);
            } else if self.published.remove(&publisher).is_some() {
                self.dropped_at = version;
                changed = true;
            }
        }
        if changed {
            self.version = version;
        }
    }

    pub(super) const fn version(&self) -> Version {
        self.version
    }

    pub(super) const fn completeness(&self) -> Completeness {
        self.completeness
    }

    /// What somebody who knows version `seen`, or nothing, has to be told.
    pub(super) fn status(&self, epoch: Epoch, seq: Seq, seen: Option<Version>) -> Status {
        let since = seen.filter(|seen| *seen >= self.dropped_at);
        let news = |position: &Position| since.is_none_or(|seen| position.changed_at > seen);
        let positions = self.published.iter().filter(|(_, p)| news(p));
        Status {
            epoch,
            seq,
            completeness: self.completeness,
            all: since.is_none(),
            applied: positions.map(|(id, p)| (*id, p.sequence)).collect(),
        }
    }
}
