//! The pools of a source whose peer publishes ready-made filters: copies of these filters, and
//! what edges are told of them.
//!
//! A pool's entries are told under the names of their classes, each as often as the peer's
//! filter has it. What is told is always the difference to what was told before, so that a
//! peer that starts anew, and builds its table in another order, costs edges only what has
//! really changed. A table of another format is another pool, which takes the place of the one
//! before when its content is there.
//!
//! Nothing empties a pool but its peer's word: while streams are down it stays as it was.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::Instant;
use kvgrid_core::ckf::{Changes, Format, Mirror, Naming};
use kvgrid_core::event::Refusals;
use kvgrid_core::eviction::EvictionAges;
use kvgrid_core::replication::Completeness;
use kvgrid_core::residency::{PoolOp, ResidencyStats};

use super::knowledge::Knowledge;
use super::{Holdings, Owner, PoolReport, STEP, unhurried};
use crate::publish::{PoolPublisher, PoolShape, PoolSpec, PoolStatus};
use crate::sources::{FeedState, FilterChange, SourceEvent, TableInfo};

/// The feed of the peer's list of pools; the others are of one pool each.
const CATALOG: usize = 0;

/// All pools of one peer.
pub(super) struct Mirrored {
    owner: Owner,
    /// Blocks that the workers have, where the card says so.
    capacity_blocks: Option<u64>,
    partial_after: Duration,
    knowledge: Knowledge,
    feeds: BTreeMap<usize, FeedState>,
    tables: BTreeMap<usize, Table>,
    /// Pools that were offered before.
    offers: u16,
    batches: u64,
    blocks: u64,
    refused: Refusals,
    gaps: u64,
    /// Gaps that a snapshot has closed.
    repairs: u64,
    /// Feeds whose last gap is open.
    open_gaps: BTreeSet<usize>,
    ends: BTreeMap<&'static str, u64>,
    ready: Option<bool>,
}

/// One filter of the peer's, and the pool as which it is told.
struct Table {
    of: Arc<TableInfo>,
    mirror: Mirror,
    knowledge: Knowledge,
    offer: Offer,
    /// Changes that are yet to be told.
    queue: VecDeque<PoolOp>,
    /// Whose content the mirror has, and how far.
    position: Option<(u64, u64)>,
    /// Whether that is to be told once the queue is empty.
    unsettled: bool,
    /// A publisher that is to be forgotten then.
    gone: Option<u64>,
    ages: EvictionAges,
}

struct Offer {
    shape: PoolShape,
    format: Format,
    publisher: PoolPublisher,
    /// How much the pool knows, as edges were told.
    told: Completeness,
}

impl Offer {
    fn is_for(&self, of: &TableInfo) -> bool {
        (self.shape, self.format) == (of.shape, of.format)
    }
}

impl Mirrored {
    /// No pools yet. `capacity_blocks` is how many blocks the workers have, where known.
    pub(super) fn new(
        owner: Owner,
        capacity_blocks: Option<u64>,
        partial_after: Duration,
        now: Instant,
    ) -> Self {
        Self {
            owner,
            capacity_blocks,
            partial_after,
            knowledge: Knowledge::partial(partial_after, now),
            feeds: BTreeMap::from([(CATALOG, FeedState::Connecting)]),
            tables: BTreeMap::new(),
            offers: 0,
            batches: 0,
            blocks: 0,
            refused: Refusals::default(),
            gaps: 0,
            repairs: 0,
            open_gaps: BTreeSet::new(),
            ends: BTreeMap::new(),
            ready: None,
        }
    }

    /// Offers a pool for a table of `entries` entries so far, empty.
    ///
    /// Who has sized the peer's table expected half of its slots to be filled.
    fn offer(&mut self, of: &TableInfo, entries: u64) -> Offer {
        let expected = self.capacity_blocks.unwrap_or(of.format.slots() / 2);
        let spec = PoolSpec {
            model: self.owner.model.clone(),
            source: self.owner.source.to_string(),
            part: Some(of.place.clone()),
            cohort: None,
            shape: of.shape,
            naming: Naming::Ckf(of.format),
            tier: self.owner.tier,
            closed: false,
            capacity_blocks: Some(expected.max(entries)),
            generation: 0,
        };
        let publisher = self.owner.hub.pool(&spec.generation(self.offers));
        self.offers = self.offers.wrapping_add(1);
        Offer {
            shape: of.shape,
            format: of.format,
            publisher,
            told: Completeness::Partial,
        }
    }

    /// A filter was found, or is another one from now on; its content comes later.
    fn find(&mut self, feed: usize, of: Arc<TableInfo>, now: Instant) {
        if let Some(table) = self.tables.get_mut(&feed) {
            table.of = of;
            return;
        }
        let table = Table {
            mirror: Mirror::new(of.format),
            knowledge: Knowledge::partial(self.partial_after, now),
            offer: self.offer(&of, 0),
            queue: VecDeque::new(),
            position: None,
            unsettled: false,
            gone: None,
            ages: EvictionAges::default(),
            of,
        };
        self.tables.insert(feed, table);
    }

    fn change(&mut self, feed: usize, position: (u64, u64), change: FilterChange, now: Instant) {
        self.batches += 1;
        let Some(mut table) = self.tables.remove(&feed) else {
            // Only a feed that has ended has none.
            return;
        };
        let changes = match change {
            FilterChange::Delta(images) => {
                let changes = table.mirror.apply(&images);
                table.note_ages(&changes, now);
                changes
            }
            FilterChange::Snapshot(words) => {
                self.repairs += u64::from(self.open_gaps.remove(&feed));
                let other = !table.offer.is_for(&table.of);
                if other {
                    table.mirror = Mirror::new(table.of.format);
                }
                // How old these entries are it doesn't say.
                table.ages = EvictionAges::default();
                let mut changes = Changes::default();
                unhurried(|| changes = table.mirror.replace(words));
                if other {
                    table.position = None;
                    table.offer = self.offer(&table.of, table.mirror.entries());
                }
                changes
            }
        };
        self.blocks += (changes.removed.len() + changes.inserted.len()) as u64;
        table
            .queue
            .extend(changes.removed.into_iter().map(PoolOp::Remove));
        let inserted = changes.inserted.into_iter();
        table.queue.extend(inserted.map(PoolOp::Insert));
        let before = table.position.replace(position);
        let before = before.map(|(publisher, _)| publisher);
        table.gone = before.filter(|publisher| *publisher != position.0);
        table.unsettled = true;
        self.tables.insert(feed, table);
    }

    fn set_state(&mut self, feed: usize, state: Option<FeedState>, now: Instant) {
        match state {
            Some(state) => {
                self.feeds.insert(feed, state);
                if let Some(table) = self.tables.get_mut(&feed) {
                    table.knowledge.set_whole(state.is_known(), now);
                }
            }
            None => {
                self.feeds.remove(&feed);
                self.tables.remove(&feed);
                self.open_gaps.remove(&feed);
            }
        }
        let whole = self.feeds.values().all(|state| state.is_known());
        self.knowledge.set_whole(whole, now);
    }
}

impl Holdings for Mirrored {
    fn handle(&mut self, event: SourceEvent, now: Instant) {
        let feed = event.feed().endpoint;
        match event {
            SourceEvent::Feed { state, .. } => self.set_state(feed, Some(state), now),
            SourceEvent::FeedEnded { .. } => self.set_state(feed, None, now),
            SourceEvent::Gap { .. } => {
                self.gaps += 1;
                self.open_gaps.insert(feed);
            }
            SourceEvent::Refused { refused, .. } => self.refused.add(&refused),
            SourceEvent::Table { of, .. } => self.find(feed, of, now),
            SourceEvent::Filter {
                publisher,
                sequence,
                change,
                ..
            } => self.change(feed, (publisher, sequence), change, now),
            SourceEvent::Ended { reason, .. } => *self.ends.entry(reason).or_default() += 1,
            SourceEvent::Served { ready, .. } => self.ready = ready,
            // What sources tell that hear workers themselves.
            SourceEvent::Parts { .. }
            | SourceEvent::Belongs { .. }
            | SourceEvent::Repaired { .. }
            | SourceEvent::Batch { .. }
            | SourceEvent::PublisherGone { .. } => {}
        }
    }

    fn work(&mut self, now: Instant) -> bool {
        let mut more = false;
        for table in self.tables.values_mut() {
            let step = table.queue.len().min(STEP);
            if step > 0 {
                let changes = table.queue.drain(..step);
                table.offer.publisher.apply(changes, now);
                table.tell_due(now);
                more |= !table.queue.is_empty();
            }
        }
        more
    }

    fn settle(&mut self, now: Instant) {
        for table in self.tables.values_mut() {
            table.settle(now);
        }
    }

    fn tell_due(&mut self, now: Instant) {
        for table in self.tables.values_mut() {
            table.tell_due(now);
        }
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        let tables = self.tables.values().filter_map(|table| table.due(now));
        tables.chain(self.knowledge.incomplete_at(now)).min()
    }

    fn report(&self, now: Instant) -> PoolReport {
        let entries: u64 = self.tables.values().map(|it| it.mirror.entries()).sum();
        let entries = usize::try_from(entries).unwrap_or(usize::MAX);
        let told = self.tables.values().map(|it| it.offer.publisher.status());
        let ages = self.tables.values().filter_map(|it| it.ages.age(now));
        PoolReport {
            source: Arc::clone(&self.owner.source),
            model: self.owner.model.clone(),
            tier: self.owner.tier,
            block_size: None,
            stats: ResidencyStats {
                published: entries,
                held: entries,
                ..ResidencyStats::default()
            },
            completeness: self.knowledge.completeness(now),
            told: told.reduce(PoolStatus::and),
            feeds: FeedState::counted(&self.feeds),
            batches: self.batches,
            blocks: self.blocks,
            refused: self.refused,
            gaps: self.gaps,
            repairs: Some(self.repairs),
            counts_copies: false,
            counts_orphans: false,
            pools: self
                .tables
                .values()
                .map(|it| it.offer.publisher.id())
                .collect(),
            heard_at: None,
            ends: self.ends.clone(),
            ready: self.ready,
            eviction_age: ages.min(),
        }
    }
}

impl Table {
    /// The peer doesn't say why entries go: those of a dead worker are taken for evicted.
    fn note_ages(&mut self, changes: &Changes, now: Instant) {
        for name in &changes.removed {
            self.ages.handle_evicted(*name, now);
        }
        for name in &changes.inserted {
            self.ages.handle_stored(*name, now);
        }
    }

    fn settle(&mut self, now: Instant) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        if let Some(publisher) = self.gone.take() {
            self.offer.publisher.forget(publisher, now);
        }
        if let Some((publisher, sequence)) = self.position {
            self.offer.publisher.applied(publisher, sequence, now);
        }
    }

    fn tell_due(&mut self, now: Instant) {
        let completeness = self.knowledge.completeness(now);
        let Offer {
            publisher, told, ..
        } = &mut self.offer;
        if *told != completeness {
            *told = completeness;
            publisher.set_completeness(completeness, now);
        }
        publisher.set_eviction_age(self.ages.age(now), now);
        publisher.handle_timeout(now);
        if publisher.growth_is_due() {
            let names = || self.mirror.names();
            unhurried(|| publisher.grow_if_due(names));
            // The new table has all of it already.
            self.queue.clear();
        }
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        let batch = self.offer.publisher.poll_timeout();
        batch
            .into_iter()
            .chain(self.knowledge.incomplete_at(now))
            .min()
    }
}

#[cfg(test)]
mod tests;
