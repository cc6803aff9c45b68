//! One tier's pool of a source that tells which worker holds which blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvgrid_core::Instant;
use kvgrid_core::ckf::Naming;
use kvgrid_core::event::Tier;
use kvgrid_core::eviction::EvictionAges;
use kvgrid_core::replication::Completeness;
use kvgrid_core::residency::{Copies, PoolOp};

use super::pool::{Pool, Then};
use super::{GENERATIONS_PER_OFFER, Holdings, Owner, PoolReport, STEP, unhurried};
use crate::config::{Feeds, LimitsTable, SourceSettings};
use crate::publish::{PoolPublisher, PoolShape, PoolSpec};
use crate::sources::SourceEvent;

/// What the source's workers hold, and where that is told.
pub(super) struct Resident {
    owner: Owner,
    pool: Pool,
    copies: Copies,
    /// Where the pool is told to edges, once it is known what its blocks look like.
    offer: Option<Offer>,
    /// Pools that were offered before.
    offers: u16,
    /// What is to be told once the last event is worked off.
    then: Then,
    ages: EvictionAges,
    /// Whether the last event tells how old blocks get.
    tells_ages: bool,
}

struct Offer {
    shape: PoolShape,
    publisher: PoolPublisher,
    /// How much the pool knows, as edges were told.
    told: Completeness,
}

impl Resident {
    /// Nothing yet, offered if it is known already what the blocks look like. `capacity_blocks`
    /// is how many blocks the workers have, where that is known.
    pub(super) fn new(
        owner: Owner,
        settings: &SourceSettings,
        limits: &LimitsTable,
        capacity_blocks: Option<u64>,
        now: Instant,
    ) -> Self {
        let (feeds, copies) = (settings.feeds.known(), settings.feeds.copies());
        let tier = owner.tier;
        let mut resident = Self {
            owner,
            pool: Pool::new(feeds, (tier, copies), limits, now),
            copies,
            offer: None,
            offers: 0,
            then: Then::Nothing,
            ages: EvictionAges::default(),
            tells_ages: false,
        };
        if matches!(settings.feeds, Feeds::EngineZmq(_)) {
            resident.pool.repairs = Some(0);
        }
        if let Some(shape) = settings.shape {
            resident.offer(shape, capacity_blocks, now);
        }
        resident
    }

    /// Offers the pool to edges as one of blocks of this shape, with all it holds.
    fn offer(&mut self, shape: PoolShape, capacity_blocks: Option<u64>, now: Instant) {
        if self
            .offer
            .as_ref()
            .is_some_and(|offer| offer.shape == shape)
        {
            return;
        }
        // Another shape's pool is withdrawn: no edge may look for these blocks in it.
        self.offer = None;
        let publisher = self.owner.hub.pool(&PoolSpec {
            model: self.owner.model.clone(),
            source: self.owner.source.to_string(),
            part: None,
            shape,
            naming: Naming::Chain,
            tier: self.owner.tier,
            closed: true,
            // What is told of capacity is of devices.
            capacity_blocks: capacity_blocks.filter(|_| self.owner.tier == Tier::Device),
            generation: self.offers.wrapping_mul(GENERATIONS_PER_OFFER),
        });
        self.offers = self.offers.wrapping_add(1);
        publisher.apply(self.pool.residency.published().map(PoolOp::Insert), now);
        self.offer = Some(Offer {
            shape,
            publisher,
            told: Completeness::Partial,
        });
    }
}

impl Holdings for Resident {
    fn handle(&mut self, event: SourceEvent, now: Instant) {
        if let SourceEvent::Shape {
            shape,
            capacity_blocks,
            ..
        } = event
        {
            self.offer(shape, capacity_blocks, now);
        }
        self.tells_ages = event.tells_ages();
        self.then = self.pool.handle(event, now);
    }

    fn work(&mut self, now: Instant) -> bool {
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

    fn settle(&mut self, now: Instant) {
        let then = std::mem::replace(&mut self.then, Then::Nothing);
        let Some(Offer {
            publisher: pool, ..
        }) = &self.offer
        else {
            return;
        };
        match then {
            Then::Nothing => {}
            Then::Applied {
                publisher,
                sequence,
            } => pool.applied(publisher, sequence, now),
            Then::Forget { publisher } => pool.forget(publisher, now),
        }
    }

    fn tell_due(&mut self, now: Instant) {
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
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        let incomplete = self.pool.incomplete_at(now);
        let offer = self.offer.as_ref();
        let batch = offer.and_then(|offer| offer.publisher.poll_timeout());
        incomplete.into_iter().chain(batch).min()
    }

    fn report(&self, now: Instant) -> PoolReport {
        let offer = self.offer.as_ref();
        PoolReport {
            source: Arc::clone(&self.owner.source),
            model: self.owner.model.clone(),
            tier: self.owner.tier,
            block_size: offer.map(|offer| offer.shape.block_size),
            stats: self.pool.residency.stats(),
            completeness: self.pool.completeness(now),
            told: offer.map(|offer| offer.publisher.status()),
            feeds: self.pool.feeds(),
            batches: self.pool.batches,
            blocks: self.pool.blocks,
            refused: self.pool.refused,
            gaps: self.pool.gaps,
            repairs: self.pool.repairs,
            counts_copies: self.copies == Copies::Counted,
            counts_orphans: true,
            pools: offer.iter().map(|offer| offer.publisher.id()).collect(),
            heard_at: None,
            ends: BTreeMap::new(),
            ready: None,
            eviction_age: self.ages.age(now),
        }
    }
}
