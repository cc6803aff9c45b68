//! The workers of a source whose blocks are one pool, and where that is told.

use std::num::NonZeroU32;
use std::sync::Arc;

use kvgrid_core::Instant;
use kvgrid_core::event::Tier;
use kvgrid_core::eviction::EvictionAges;
use kvgrid_core::replication::Completeness;
use kvgrid_core::residency::{Copies, PoolOp};

use super::pool::{Pool, Then};
use super::{PoolReport, STEP, unhurried};
use crate::config::LimitsTable;
use crate::publish::{Hub, PoolPublisher, PoolSpec};
use crate::sources::{FeedState, PartInfo, SourceEvent};

/// A pool, offered to edges or not.
pub(super) struct Part {
    /// Whose blocks it has, where its source has several parts.
    pub(super) of: Option<Arc<PartInfo>>,
    /// Whether its source says that it has workers.
    pub(super) is_listed: bool,
    pub(super) pool: Pool,
    offer: Option<Offer>,
    /// What is to be told once the last events are worked off.
    then: Vec<Then>,
    ages: EvictionAges,
    /// Whether the last event tells how old blocks get.
    tells_ages: bool,
}

struct Offer {
    publisher: PoolPublisher,
    /// How much the pool knows, as edges were told.
    told: Completeness,
}

impl Part {
    /// A pool of `feeds` feeds that have told nothing yet.
    pub(super) fn new(
        feeds: usize,
        tier: (Tier, Copies),
        limits: &LimitsTable,
        now: Instant,
    ) -> Self {
        Self {
            of: None,
            is_listed: false,
            pool: Pool::new(feeds, tier, limits, now),
            offer: None,
            then: Vec::new(),
            ages: EvictionAges::default(),
            tells_ages: false,
        }
    }

    pub(super) fn is(&self, of: &PartInfo) -> bool {
        self.of.as_deref() == Some(of)
    }

    /// Offers the pool to edges with all it holds, unless it is; says whether it was not.
    pub(super) fn offer(&mut self, hub: &Hub, spec: &PoolSpec, now: Instant) -> bool {
        if self.is_offered() {
            return false;
        }
        let publisher = hub.pool(spec);
        publisher.apply(self.pool.residency.published().map(PoolOp::Insert), now);
        self.offer = Some(Offer {
            publisher,
            told: Completeness::Partial,
        });
        true
    }

    /// No edge may look for blocks in it any more.
    pub(super) fn withdraw(&mut self) {
        self.offer = None;
    }

    /// Tokens of a block, while the pool is offered.
    pub(super) fn block_size(&self) -> Option<NonZeroU32> {
        let offer = self.offer.as_ref()?;
        Some(offer.publisher.block_size())
    }

    /// Whether its workers do whole requests, and no others have blocks of them.
    pub(super) fn is_of_whole_requests(&self) -> bool {
        self.of.as_ref().is_some_and(|of| of.cohort.is_some())
    }

    pub(super) const fn is_offered(&self) -> bool {
        self.offer.is_some()
    }

    pub(super) fn set_state(&mut self, feed: usize, state: Option<FeedState>, now: Instant) {
        self.pool.set_state(feed, state, now);
    }

    pub(super) fn handle(&mut self, event: SourceEvent) {
        self.tells_ages = event.tells_ages();
        self.then.extend(self.pool.handle(event));
    }

    pub(super) fn work(&mut self, now: Instant) -> bool {
        let more = self.pool.residency.step(STEP);
        let changes = self.pool.residency.drain_ops();
        let changes = changes.inspect(|change| match (change, self.tells_ages) {
            (PoolOp::Insert(block), true) => self.ages.handle_stored(*block, now),
            (PoolOp::Remove(block), true) => self.ages.handle_evicted(*block, now),
            (PoolOp::Insert(block) | PoolOp::Remove(block), false) => {
                self.ages.handle_gone(*block);
            }
        });
        match &self.offer {
            Some(offer) => offer.publisher.apply(changes, now),
            // Whoever offers the pool will tell all that it holds.
            None => changes.for_each(drop),
        }
        self.tell_due(now);
        more
    }

    /// All that was taken in is told: tells how far that goes.
    pub(super) fn settle(&mut self, now: Instant) {
        let then = std::mem::take(&mut self.then);
        let Some(Offer {
            publisher: pool, ..
        }) = &self.offer
        else {
            return;
        };
        for then in then {
            match then {
                Then::Applied {
                    publisher,
                    sequence,
                } => pool.applied(publisher, sequence, now),
                Then::Forget { publisher } => pool.forget(publisher, now),
            }
        }
    }

    pub(super) fn tell_due(&mut self, now: Instant) {
        let completeness = self.pool.completeness(now);
        let Some(offer) = &mut self.offer else {
            return;
        };
        if offer.told != completeness {
            offer.told = completeness;
            offer.publisher.set_completeness(completeness, now);
        }
        offer.publisher.set_eviction_age(self.ages.age(now), now);
        offer.publisher.handle_timeout(now);
        if offer.publisher.growth_is_due() {
            let live = || self.pool.residency.published();
            unhurried(|| offer.publisher.grow_if_due(live));
        }
        let live = || self.pool.residency.published();
        if offer.publisher.exact_is_due() {
            unhurried(|| offer.publisher.tell_exact(live, now));
        } else {
            offer.publisher.tell_exact(live, now);
        }
    }

    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let incomplete = self.pool.incomplete_at(now);
        let offer = self.offer.as_ref();
        let batch = offer.and_then(|offer| offer.publisher.poll_timeout());
        incomplete.into_iter().chain(batch).min()
    }

    /// Adds what there is to tell of it to what there is of others of its source.
    pub(super) fn add_to(&self, report: &mut PoolReport, now: Instant) {
        let pool = &self.pool;
        report.stats += pool.residency.stats();
        report.batches += pool.batches;
        report.blocks += pool.blocks;
        report.refused.add(&pool.refused);
        report.gaps += pool.gaps;
        if let Some(repairs) = pool.repairs {
            *report.repairs.get_or_insert(0) += repairs;
        }
        let ages = [report.eviction_age, self.ages.age(now)];
        report.eviction_age = ages.into_iter().flatten().min();
        if let Some(offer) = &self.offer {
            let status = offer.publisher.status();
            let told = report.told.map(|told| told.and(status));
            report.told = Some(told.unwrap_or(status));
            report.pools.push(offer.publisher.id());
        }
    }
}
