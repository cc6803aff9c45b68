//! Pools: what sources tell, turned into what edges are told.
//!
//! One task owns every pool's residency. It takes one source event at a time, works on it in
//! bounded steps, and tells changes between them, so that a worker's death with a million
//! blocks holds up neither other tasks nor the batches that are due. Sources wait meanwhile.

use std::sync::Arc;

use kvgrid_core::event::{Refusals, Tier};
use kvgrid_core::replication::Completeness;
use kvgrid_core::residency::{PoolOp, ResidencyStats};
use kvgrid_core::{Instant, ModelName};
use kvgrid_runtime::Clock;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, watch};
use tokio::task::{block_in_place, yield_now};

use crate::config::{LimitsTable, SourceSettings};
use crate::publish::{Hub, PoolPublisher, PoolShape, PoolSpec, PoolStatus};
use crate::sources::{FeedState, SourceEvent};

mod pool;
#[cfg(test)]
mod tests;

use pool::{Pool, Then};

/// Entries worked on between two looks at the clock, about a millisecond's work.
const STEP: usize = 2048;

/// How a pool stands, for metrics and health.
#[derive(Clone, Debug)]
pub(crate) struct PoolReport {
    /// The source that feeds it.
    pub(crate) source: Arc<str>,
    /// The model whose blocks it holds.
    pub(crate) model: ModelName,
    /// Where they are kept.
    pub(crate) tier: Tier,
    /// Counts of its residency.
    pub(crate) stats: ResidencyStats,
    /// How much it knows.
    pub(crate) completeness: Completeness,
    /// What edges have been told, as of the last closed batch; nothing while nobody knows what
    /// its blocks look like.
    pub(crate) told: Option<PoolStatus>,
    /// Its feeds, by state.
    pub(crate) feeds: Vec<(FeedState, u64)>,
    /// Messages that were applied.
    pub(crate) batches: u64,
    /// Blocks that the messages stored or removed.
    pub(crate) blocks: u64,
    /// What could not be used of them.
    pub(crate) refused: Refusals,
    /// How often messages were lost for good.
    pub(crate) gaps: u64,
}

impl PoolReport {
    /// Feeds that have not found out yet whether there is a publisher.
    pub(crate) fn connecting(&self) -> u64 {
        let mut connecting = self.feeds.iter();
        let found = connecting.find(|(state, _)| *state == FeedState::Connecting);
        found.map_or(0, |(_, count)| *count)
    }
}

/// All pools and where their events come from.
pub(crate) struct Pools {
    pools: Vec<Source>,
    /// The source of each, by its place in the configuration.
    sources: Vec<usize>,
    events: mpsc::Receiver<SourceEvent>,
    reports: watch::Sender<Vec<PoolReport>>,
    clock: Clock,
}

/// What a source tells of one tier.
struct Source {
    name: Arc<str>,
    model: ModelName,
    tier: Tier,
    pool: Pool,
    hub: Hub,
    /// Where the pool is told to edges, once it is known what its blocks look like.
    offer: Option<Offer>,
    /// Pools that were offered before.
    offers: u16,
}

struct Offer {
    shape: PoolShape,
    publisher: PoolPublisher,
    /// How much the pool knows, as edges were told.
    told: Completeness,
}

/// Geometries that one offer of a pool may go through before its epochs come near the next
/// offer's.
const GENERATIONS_PER_OFFER: u16 = 256;

impl Pools {
    /// A pool for each tier of each source, empty, and offered by the hub if it is known already what its
    /// blocks look like. `capacity` tells how many blocks a model's workers have, where that
    /// is known.
    pub(crate) fn new(
        sources: &[SourceSettings],
        limits: &LimitsTable,
        hub: &Hub,
        capacity: impl Fn(&ModelName) -> Option<u64>,
        (events, clock): (mpsc::Receiver<SourceEvent>, Clock),
    ) -> Self {
        let source = |settings: &SourceSettings, tier| {
            let (feeds, copies) = (settings.feeds.known(), settings.feeds.copies());
            let mut source = Source {
                name: settings.name.as_str().into(),
                model: settings.model.clone(),
                tier,
                pool: Pool::new(feeds, (tier, copies), limits, clock.now()),
                hub: hub.clone(),
                offer: None,
                offers: 0,
            };
            if let Some(shape) = settings.shape {
                source.offer(shape, capacity(&settings.model), clock.now());
            }
            source
        };
        let source = &source;
        let tiers = sources.iter().enumerate().flat_map(|(place, settings)| {
            let tiers = settings.tiers.iter();
            tiers.map(move |tier| (place, source(settings, *tier)))
        });
        let (sources, pools): (Vec<_>, Vec<_>) = tiers.unzip();
        let now = clock.now();
        let reports = pools.iter().map(|source| source.report(now)).collect();
        Self {
            pools,
            sources,
            events,
            reports: watch::Sender::new(reports),
            clock,
        }
    }

    /// How the pools stand, in the order of their sources and of each one's tiers.
    pub(crate) fn reports(&self) -> watch::Receiver<Vec<PoolReport>> {
        self.reports.subscribe()
    }

    /// Follows the sources until all are gone.
    pub(crate) async fn run(mut self) {
        loop {
            let due = self
                .pools
                .iter()
                .filter_map(|source| source.due(self.clock.now()));
            let deadline = due.min().unwrap_or(Instant::from_micros(u64::MAX));
            // Both arms may be dropped while they wait.
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.take(event).await,
                    None => return,
                },
                () = tokio::time::sleep_until(self.clock.deadline(deadline)) => {
                    for place in 0..self.pools.len() {
                        self.tell(place);
                    }
                }
            }
        }
    }

    async fn take(&mut self, event: SourceEvent) {
        let of = event.feed().source;
        let places = self.sources.iter().enumerate();
        let places = places.filter(|(_, source)| **source == of);
        let places: Vec<_> = places.map(|(place, _)| place).collect();
        let mut places = places.into_iter().peekable();
        let mut event = Some(event);
        // Nearly all sources have one pool, and their events are not copied.
        while let Some(place) = places.next() {
            let next = match places.peek() {
                Some(_) => event.clone(),
                None => event.take(),
            };
            if let Some(event) = next {
                self.take_in(place, event).await;
            }
        }
    }

    async fn take_in(&mut self, place: usize, event: SourceEvent) {
        let Some(source) = self.pools.get_mut(place) else {
            return;
        };
        let now = self.clock.now();
        if let SourceEvent::Shape {
            shape,
            capacity_blocks,
            ..
        } = event
        {
            source.offer(shape, capacity_blocks, now);
        }
        let then = source.pool.handle(event, now);
        loop {
            let more = source.work(self.clock.now());
            if !more {
                break;
            }
            yield_now().await;
        }
        source.tell_progress(then, self.clock.now());
        self.tell(place);
    }

    /// Tells what is due of one pool.
    fn tell(&mut self, place: usize) {
        let now = self.clock.now();
        if let Some(source) = self.pools.get_mut(place) {
            source.tell_due(now);
            self.reports.send_modify(|reports| {
                if let Some(report) = reports.get_mut(place) {
                    *report = source.report(now);
                }
            });
        }
    }
}

impl Source {
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
        let publisher = self.hub.pool(&PoolSpec {
            model: self.model.clone(),
            source: self.name.to_string(),
            shape,
            tier: self.tier,
            closed: true,
            // What is told of capacity is of devices.
            capacity_blocks: capacity_blocks.filter(|_| self.tier == Tier::Device),
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

    /// Does a step's work and tells its changes; says whether more is left.
    fn work(&mut self, now: Instant) -> bool {
        let more = self.pool.residency.step(STEP);
        let changes = self.pool.residency.drain_ops();
        match &self.offer {
            Some(offer) => offer.publisher.apply(changes, now),
            // Whoever offers the pool will tell all that it holds.
            None => drop(changes),
        }
        self.tell_due(now);
        more
    }

    fn tell_progress(&self, then: Then, now: Instant) {
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
            source: Arc::clone(&self.name),
            model: self.model.clone(),
            tier: self.tier,
            stats: self.pool.residency.stats(),
            completeness: self.pool.completeness(now),
            told: offer.map(|offer| offer.publisher.status()),
            feeds: self.pool.feeds(),
            batches: self.pool.batches,
            blocks: self.pool.blocks,
            refused: self.pool.refused,
            gaps: self.pool.gaps,
        }
    }
}

/// Does what may take long (a table of ten million blocks, half a second) without holding up
/// the tasks of this thread.
fn unhurried(work: impl FnOnce()) {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => block_in_place(work),
        _ => work(),
    }
}
