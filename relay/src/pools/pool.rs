//! One pool: what its source's feeds have told, as residency and completeness.

use std::collections::{BTreeMap, BTreeSet};

use kvgrid_core::Instant;
use kvgrid_core::event::{Refusal, Refusals, Tier, WorkerKey};
use kvgrid_core::replication::Completeness;
use kvgrid_core::residency::{Copies, Residency, ResidencyConfig};
use tracing::warn;

use super::knowledge::Knowledge;
use crate::config::LimitsTable;
use crate::sources::{FeedState, SourceEvent};

/// What is to be told once the residency has done its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The publisher's messages up to this sequence are applied.
    Applied {
        /// Which life of which publisher.
        publisher: u64,
        /// Its own count.
        sequence: u64,
    },
    /// The publisher is gone.
    Forget {
        /// Which life of which publisher.
        publisher: u64,
    },
}

/// What one source's workers hold in one tier.
pub(super) struct Pool {
    pub(super) residency: Residency,
    feeds: BTreeMap<usize, FeedState>,
    /// Ranks that a publisher has spoken for.
    ranks: BTreeMap<u64, BTreeSet<u32>>,
    max_ranks: usize,
    knowledge: Knowledge,
    /// Messages that were applied.
    pub(super) batches: u64,
    /// Blocks that the messages stored or removed.
    pub(super) blocks: u64,
    /// What could not be used of them.
    pub(super) refused: Refusals,
    /// How often messages were lost for good.
    pub(super) gaps: u64,
    /// How often messages that had not come were had by asking again; nothing where the source
    /// has no way to.
    pub(super) repairs: Option<u64>,
}

impl Pool {
    /// A pool of `feeds` feeds that have told nothing yet; more may be found.
    pub(super) fn new(
        feeds: usize,
        (tier, copies): (Tier, Copies),
        limits: &LimitsTable,
        now: Instant,
    ) -> Self {
        Self {
            residency: Residency::new(ResidencyConfig {
                tier,
                copies,
                max_entries: limits.entries,
                max_workers: limits.workers,
            }),
            feeds: (0..feeds)
                .map(|feed| (feed, FeedState::Connecting))
                .collect(),
            ranks: BTreeMap::new(),
            max_ranks: usize::from(limits.workers),
            knowledge: Knowledge::partial(limits.partial_after, now),
            batches: 0,
            blocks: 0,
            refused: Refusals::default(),
            gaps: 0,
            repairs: None,
        }
    }

    /// A feed has another state, or is no more.
    pub(super) fn set_state(&mut self, feed: usize, state: Option<FeedState>, now: Instant) {
        match state {
            Some(state) => drop(self.feeds.insert(feed, state)),
            None => drop(self.feeds.remove(&feed)),
        }
        let whole = self.feeds.values().all(|state| state.is_known());
        self.knowledge.set_whole(whole, now);
    }

    /// Queues an event in the residency.
    pub(super) fn handle(&mut self, event: SourceEvent) -> Option<Then> {
        match event {
            SourceEvent::Gap { .. } => {
                self.gaps += 1;
                None
            }
            SourceEvent::Repaired { .. } => {
                *self.repairs.get_or_insert(0) += 1;
                None
            }
            SourceEvent::Refused { refused, .. } => {
                self.note_refused(&refused);
                None
            }
            // Of feeds and parts the pool's owner takes care; the others are what sources tell
            // that have a peer with filters of its own.
            SourceEvent::Feed { .. }
            | SourceEvent::FeedEnded { .. }
            | SourceEvent::Parts { .. }
            | SourceEvent::Belongs { .. }
            | SourceEvent::Table { .. }
            | SourceEvent::Filter { .. }
            | SourceEvent::Ended { .. }
            | SourceEvent::Served { .. } => None,
            SourceEvent::PublisherGone { publisher, .. } => {
                for rank in self.ranks.remove(&publisher).unwrap_or_default() {
                    self.residency.drop_worker(WorkerKey { publisher, rank });
                }
                Some(Then::Forget { publisher })
            }
            SourceEvent::Batch {
                worker,
                sequence,
                events,
                refused,
                ..
            } => {
                self.batches += 1;
                self.note_refused(&refused);
                let ranks = self.ranks.entry(worker.publisher).or_default();
                if ranks.len() < self.max_ranks || ranks.contains(&worker.rank) {
                    ranks.insert(worker.rank);
                    for event in events {
                        self.blocks += event.blocks() as u64;
                        self.residency.apply(worker, event);
                    }
                } else {
                    self.note_unfollowed(events.len());
                }
                Some(Then::Applied {
                    publisher: worker.publisher,
                    sequence,
                })
            }
        }
    }

    /// Takes over what was counted of a pool that is no more.
    pub(super) fn take_counts(&mut self, other: &Self) {
        self.batches += other.batches;
        self.blocks += other.blocks;
        self.refused.add(&other.refused);
        self.gaps += other.gaps;
    }

    /// Blocks of another size are a wrong configuration, and would leave the pool empty.
    fn note_refused(&mut self, refused: &Refusals) {
        let size = Refusal::BlockSize;
        if self.refused.of(size) == 0 && refused.of(size) > 0 {
            warn!("Blocks of another size than the configured one are refused");
        }
        self.refused.add(refused);
    }

    fn note_unfollowed(&mut self, events: usize) {
        if self.refused.of(Refusal::Limit) == 0 {
            warn!("More ranks than limits.workers: what the others have cached is not followed");
        }
        (0..events).for_each(|_| self.refused.count(Refusal::Limit));
    }

    /// Whether something was left out for want of room. What is left of it nobody can tell.
    fn is_cut(&self) -> bool {
        self.refused.of(Refusal::Limit) > 0 || self.residency.stats().refused > 0
    }

    /// How much the pool knows at `now`.
    pub(super) fn completeness(&self, now: Instant) -> Completeness {
        match self.knowledge.completeness(now) {
            Completeness::Whole if self.is_cut() => Completeness::Incomplete,
            known => known,
        }
    }

    /// When the completeness changes by itself.
    pub(super) fn incomplete_at(&self, now: Instant) -> Option<Instant> {
        self.knowledge.incomplete_at(now)
    }
}

#[cfg(test)]
mod tests {
    use kvgrid_core::block::BlockHash;
    use kvgrid_core::event::{EngineHash, KvEvent, StoredBlock};

    use super::*;
    use crate::sources::FeedId;

    const DEVICE: (Tier, Copies) = (Tier::Device, Copies::Counted);

    fn feed(endpoint: usize) -> FeedId {
        FeedId {
            source: 0,
            endpoint,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    fn pool(feeds: usize) -> Pool {
        Pool::new(feeds, DEVICE, &LimitsTable::default(), at(0))
    }

    fn stored(publisher: u64, rank: u32, sequence: u64, local: u64) -> SourceEvent {
        SourceEvent::Batch {
            feed: feed(0),
            worker: WorkerKey { publisher, rank },
            sequence,
            live: true,
            events: vec![KvEvent::Stored {
                parent: None,
                tier: Tier::Device,
                blocks: vec![StoredBlock {
                    engine: EngineHash(local + 1000),
                    local: BlockHash(local),
                }],
            }],
            refused: Refusals::default(),
        }
    }

    impl Pool {
        fn published(&mut self) -> Vec<u64> {
            while self.residency.step(1000) {}
            let mut chains: Vec<_> = self.residency.published().map(|chain| chain.0).collect();
            chains.sort_unstable();
            chains
        }
    }

    #[test]
    fn a_batch_is_applied_and_says_so() {
        let mut pool = pool(1);

        let then = pool.handle(stored(7, 0, 42, 1));

        let (publisher, sequence) = (7, 42);
        assert_eq!(
            then,
            Some(Then::Applied {
                publisher,
                sequence
            })
        );
        assert_eq!(pool.published(), [1]);
        assert_eq!((pool.batches, pool.blocks), (1, 1));
    }

    #[test]
    fn a_gone_publisher_takes_all_its_ranks_along() {
        let mut pool = pool(1);
        pool.handle(stored(7, 0, 0, 1));
        pool.handle(stored(7, 1, 1, 2));
        pool.handle(stored(8, 0, 0, 3));

        let (feed, publisher) = (feed(0), 7);
        let then = pool.handle(SourceEvent::PublisherGone { feed, publisher });

        assert_eq!(then, Some(Then::Forget { publisher }));
        assert_eq!(pool.published(), [3]);
    }

    #[test]
    fn a_pool_is_whole_when_every_feed_is_whole_or_gone() {
        let mut pool = pool(2);
        let tell = |pool: &mut Pool, endpoint, state| {
            pool.set_state(endpoint, Some(state), at(1));
            pool.completeness(at(1))
        };

        assert_eq!(pool.completeness(at(1)), Completeness::Partial);
        assert_eq!(tell(&mut pool, 0, FeedState::Whole), Completeness::Partial);
        assert_eq!(tell(&mut pool, 1, FeedState::Gone), Completeness::Whole);
        assert_eq!(
            tell(&mut pool, 1, FeedState::Partial),
            Completeness::Partial
        );
    }

    #[test]
    fn a_feed_that_was_found_counts_until_it_ends() {
        let mut pool = pool(0);

        pool.set_state(7, Some(FeedState::Partial), at(1));
        let with = pool.completeness(at(1));
        pool.set_state(7, None, at(2));

        assert_eq!(with, Completeness::Partial);
        assert_eq!(pool.completeness(at(2)), Completeness::Whole);
    }

    #[test]
    fn a_pool_that_stays_partial_is_incomplete_in_the_end() {
        let pool = pool(1);

        assert_eq!(pool.completeness(at(599)), Completeness::Partial);
        assert_eq!(pool.incomplete_at(at(599)), Some(at(600)));
        assert_eq!(pool.completeness(at(600)), Completeness::Incomplete);
        assert_eq!(pool.incomplete_at(at(600)), None);
    }

    #[test]
    fn ranks_past_the_limit_are_not_followed() {
        let limits = LimitsTable {
            workers: 1,
            ..LimitsTable::default()
        };
        let mut pool = Pool::new(1, DEVICE, &limits, at(0));
        pool.handle(stored(7, 0, 0, 1));

        pool.set_state(0, Some(FeedState::Whole), at(1));
        assert_eq!(pool.completeness(at(1)), Completeness::Whole);
        pool.handle(stored(7, 1, 1, 2));

        assert_eq!(pool.published(), [1]);
        assert_eq!(pool.refused.of(Refusal::Limit), 1);
        assert_eq!(pool.completeness(at(1)), Completeness::Incomplete);
    }

    #[test]
    fn a_pool_without_room_for_a_block_is_not_whole() {
        let limits = LimitsTable {
            entries: 1,
            ..LimitsTable::default()
        };
        let mut pool = Pool::new(1, DEVICE, &limits, at(0));
        pool.set_state(0, Some(FeedState::Whole), at(1));
        pool.handle(stored(7, 0, 0, 1));
        assert_eq!(pool.published(), [1]);
        assert_eq!(pool.completeness(at(1)), Completeness::Whole);

        pool.handle(stored(7, 0, 1, 2));

        assert_eq!(pool.published(), [1]);
        assert_eq!(pool.completeness(at(1)), Completeness::Incomplete);
    }
}
