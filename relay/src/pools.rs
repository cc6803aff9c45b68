//! Pools: what sources tell, turned into what edges are told.
//!
//! One task owns all that pools hold: the residency of workers (`resident`), or copies of
//! filters that somebody else publishes (`mirrored`). It takes one source event at a time,
//! works on it in bounded steps, and tells changes between them, so that a worker's death with
//! a million blocks holds up neither other tasks nor the batches that are due. Sources wait
//! meanwhile.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::ckf::Naming;
use kvgrid_core::event::{Refusals, Tier};
use kvgrid_core::replication::Completeness;
use kvgrid_core::residency::ResidencyStats;
use kvgrid_core::{Instant, ModelName, PoolId};
use kvgrid_runtime::Clock;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{block_in_place, yield_now};

use crate::config::{Feeds, LimitsTable, SourceSettings};
use crate::publish::{Hub, PoolShape, PoolSpec, PoolStatus};
use crate::sources::{FeedState, PartInfo, SourceEvent};

mod facts;
mod knowledge;
mod mirrored;
mod part;
mod pool;
mod resident;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod tests;

pub(crate) use facts::tell as tell_facts;
use mirrored::Mirrored;
use resident::Resident;

/// Entries worked on between two looks at the clock, about a millisecond's work.
const STEP: usize = 1024;

/// How a pool stands, for metrics and health.
#[derive(Clone, Debug)]
pub(crate) struct PoolReport {
    /// The source that feeds it.
    pub(crate) source: Arc<str>,
    /// The model whose blocks it holds.
    pub(crate) model: ModelName,
    /// Where they are kept.
    pub(crate) tier: Tier,
    /// Tokens of its blocks, where all are of one size and that is known.
    pub(crate) block_size: Option<NonZeroU32>,
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
    /// How often messages that had not come were had by asking again, where that can be.
    pub(crate) repairs: Option<u64>,
    /// Whether physical copies are counted.
    pub(crate) counts_copies: bool,
    /// Whether it is known which held blocks miss an ancestor.
    pub(crate) counts_orphans: bool,
    /// The pools that are offered of it.
    pub(crate) pools: Vec<PoolId>,
    /// When the last message was applied.
    pub(crate) heard_at: Option<Instant>,
    /// How often a peer's streams have ended, by reason.
    pub(crate) ends: BTreeMap<&'static str, u64>,
    /// Whether the peer says that the model is served, where it says so.
    pub(crate) ready: Option<bool>,
    /// At what age blocks that nobody uses are evicted, where that is known.
    pub(crate) eviction_age: Option<Duration>,
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
    /// Says that edges want something else of a pool.
    wishes: Arc<Notify>,
}

/// Whose pools they are, and where they are told.
#[derive(Clone)]
struct Owner {
    source: Arc<str>,
    model: ModelName,
    tier: Tier,
    hub: Hub,
}

impl Owner {
    /// What is told to edges as one pool: of a part, or of all that the source tells.
    fn spec(
        &self,
        of: Option<&PartInfo>,
        shape: PoolShape,
        capacity_blocks: Option<u64>,
    ) -> PoolSpec {
        PoolSpec {
            model: self.model.clone(),
            source: self.source.to_string(),
            part: of.map(|of| of.place.clone()),
            cohort: of.and_then(|of| of.cohort).map(|cohort| cohort.0),
            shape,
            naming: Naming::Chain,
            tier: self.tier,
            closed: true,
            // What is told of capacity is of devices.
            capacity_blocks: capacity_blocks.filter(|_| self.tier == Tier::Device),
            generation: 0,
        }
    }
}

/// What one source's pools hold.
trait Holdings: Send {
    /// Takes an event in; what it comes to may be left for later.
    fn handle(&mut self, event: SourceEvent, now: Instant);

    /// Does a step's work and tells its changes; says whether more is left.
    fn work(&mut self, now: Instant) -> bool;

    /// All that was taken in is told: tells how far that goes.
    fn settle(&mut self, now: Instant);

    /// Tells what is due.
    fn tell_due(&mut self, now: Instant);

    /// When something is due.
    fn due(&self, now: Instant) -> Option<Instant>;

    /// How the pools stand.
    fn report(&self, now: Instant) -> PoolReport;
}

/// A source and when it said something last.
struct Source {
    holdings: Box<dyn Holdings>,
    heard_at: Option<Instant>,
}

impl Source {
    fn report(&self, now: Instant) -> PoolReport {
        PoolReport {
            heard_at: self.heard_at,
            ..self.holdings.report(now)
        }
    }
}

impl Pools {
    /// A pool for each tier of each source, empty, and offered by the hub if it is known
    /// already what its blocks look like. `capacity` tells how many blocks a model's workers
    /// have, where that is known.
    pub(crate) fn new(
        sources: &[SourceSettings],
        limits: &LimitsTable,
        hub: &Hub,
        capacity: impl Fn(&ModelName) -> Option<u64>,
        (events, clock): (mpsc::Receiver<SourceEvent>, Clock),
    ) -> Self {
        let now = clock.now();
        let source = |settings: &SourceSettings, tier| {
            let owner = Owner {
                source: settings.name.as_str().into(),
                model: settings.model.clone(),
                tier,
                hub: hub.clone(),
            };
            let capacity = capacity(&settings.model);
            let holdings: Box<dyn Holdings> = match &settings.feeds {
                Feeds::DynamoRelay(_) => {
                    Box::new(Mirrored::new(owner, capacity, limits.partial_after, now))
                }
                Feeds::EngineZmq(_) | Feeds::DynamoEvents(_) => {
                    Box::new(Resident::new(owner, settings, limits, capacity, now))
                }
            };
            Source {
                holdings,
                heard_at: None,
            }
        };
        let source = &source;
        let tiers = sources.iter().enumerate().flat_map(|(place, settings)| {
            let tiers = settings.tiers.iter();
            tiers.map(move |tier| (place, source(settings, *tier)))
        });
        let (sources, pools): (Vec<_>, Vec<_>) = tiers.unzip();
        let reports = pools.iter().map(|source| source.report(now)).collect();
        Self {
            pools,
            sources,
            events,
            reports: watch::Sender::new(reports),
            clock,
            wishes: hub.wishes(),
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
                .filter_map(|source| source.holdings.due(self.clock.now()));
            let deadline = due.min().unwrap_or(Instant::from_micros(u64::MAX));
            // All arms may be dropped while they wait.
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.take(event).await,
                    None => return,
                },
                () = tokio::time::sleep_until(self.clock.deadline(deadline)) => self.tell_all(),
                () = self.wishes.notified() => self.tell_all(),
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
        if event.is_message() {
            source.heard_at = Some(now);
        }
        let holdings = &mut source.holdings;
        holdings.handle(event, now);
        while holdings.work(self.clock.now()) {
            yield_now().await;
        }
        holdings.settle(self.clock.now());
        self.tell(place);
    }

    fn tell_all(&mut self) {
        for place in 0..self.pools.len() {
            self.tell(place);
        }
    }

    /// Tells what is due of one pool.
    fn tell(&mut self, place: usize) {
        let now = self.clock.now();
        if let Some(source) = self.pools.get_mut(place) {
            source.holdings.tell_due(now);
            self.reports.send_modify(|reports| {
                if let Some(report) = reports.get_mut(place) {
                    *report = source.report(now);
                }
            });
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
