//! One tier's pools of a source that tells which worker holds which blocks.
//!
//! A source that is told its publishers has one part, which is there from the start. One that
//! finds them lists its parts, each a pool of its own (`part`), and says to which each publisher
//! belongs. What a publisher tells before that is kept and taken in then, up to a bound. Edges
//! are told of the parts that the source says; the others are followed all the same, so that
//! one that takes over is known as well as the one before.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use kvgrid_core::Instant;
use kvgrid_core::residency::{Copies, ResidencyStats};
use tracing::warn;

use super::knowledge::Knowledge;
use super::part::Part;
use super::{Holdings, Owner, PoolReport};
use crate::config::{Feeds, LimitsTable, SourceSettings};
use crate::publish::PoolStatus;
use crate::sources::{FeedState, ListedPart, PartInfo, SourceEvent};

/// The feed of what finds the others; its state is every part's.
const DISCOVERY: usize = 0;

/// Most messages kept of a publisher of whose blocks nobody knows what they are.
const KEPT: usize = 1024;

/// What the source's workers hold, and where that is told.
pub(super) struct Resident {
    owner: Owner,
    limits: LimitsTable,
    copies: Copies,
    /// Whether publishers are found, and parts with them.
    finds: bool,
    feeds: BTreeMap<usize, FeedState>,
    knowledge: Knowledge,
    /// The part of all feeds that belong to no other; the only one of a source that finds none.
    root: Part,
    parts: Vec<Part>,
    /// Parts that feeds belong to.
    of: BTreeMap<usize, Arc<PartInfo>>,
    /// What feeds have told that belong nowhere yet.
    kept: BTreeMap<usize, Vec<SourceEvent>>,
    /// Pools that were offered before.
    offers: u16,
    /// Counts of parts that are no more.
    past: ResidencyStats,
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
        let finds = matches!(settings.feeds, Feeds::DynamoEvents(_));
        let mut resident = Self {
            feeds: (0..feeds)
                .map(|feed| (feed, FeedState::Connecting))
                .collect(),
            knowledge: Knowledge::partial(limits.partial_after, now),
            root: Part::new(feeds, (owner.tier, copies), limits, now),
            owner,
            limits: limits.clone(),
            copies,
            finds,
            parts: Vec::new(),
            of: BTreeMap::new(),
            kept: BTreeMap::new(),
            offers: 0,
            past: ResidencyStats::default(),
        };
        if let Some(shape) = settings.shape.filter(|_| !finds) {
            resident.root.pool.repairs = Some(0);
            if !settings.role.spares_prefill() {
                return resident;
            }
            let spec = resident.owner.spec(None, shape, capacity_blocks);
            resident.root.offer(&resident.owner.hub, &spec, now);
        }
        resident
    }

    /// Takes over which parts there are. One that isn't listed any more has no workers: it stays
    /// as it was, unless edges are told of another.
    fn list(&mut self, listed: Vec<ListedPart>, now: Instant) {
        let told = listed.iter().any(|part| part.told);
        for part in &mut self.parts {
            part.is_listed = listed.iter().any(|it| part.is(&it.of));
            if !part.is_listed && told {
                part.withdraw();
            }
        }
        for ListedPart {
            of,
            capacity_blocks,
            told,
        } in listed
        {
            let place = match self.parts.iter().position(|part| part.is(&of)) {
                Some(place) => place,
                None => self.add(&of, now),
            };
            let spec = self.owner.spec(Some(&of), of.shape, capacity_blocks);
            let spec = spec.generation(self.offers);
            let Some(part) = self.parts.get_mut(place) else {
                continue;
            };
            part.is_listed = true;
            if !told {
                part.withdraw();
            } else if part.offer(&self.owner.hub, &spec, now) {
                self.offers = self.offers.wrapping_add(1);
            }
        }
        self.drop_unused();
    }

    fn add(&mut self, of: &Arc<PartInfo>, now: Instant) -> usize {
        let tier = (self.owner.tier, self.copies);
        let mut part = Part::new(0, tier, &self.limits, now);
        part.of = Some(Arc::clone(of));
        part.set_state(DISCOVERY, self.feeds.get(&DISCOVERY).copied(), now);
        self.parts.push(part);
        self.parts.len() - 1
    }

    /// Drops the parts that nobody lists, tells of or feeds.
    fn drop_unused(&mut self) {
        let Self { of, root, past, .. } = self;
        self.parts.retain(|part| {
            let is_fed = || of.values().any(|of| part.is(of));
            let is_used = part.is_listed || part.is_offered() || is_fed();
            if !is_used {
                root.pool.take_counts(&part.pool);
                *past += part.pool.residency.stats().counts();
            }
            is_used
        });
    }

    /// A feed belongs to a part, and with it what it has told so far.
    fn belong(&mut self, feed: usize, of: Arc<PartInfo>, now: Instant) {
        self.of.insert(feed, of);
        let state = self.feeds.get(&feed).copied();
        let kept = self.kept.remove(&feed).unwrap_or_default();
        self.root.set_state(feed, None, now);
        let part = self.part(feed);
        part.set_state(feed, state, now);
        for event in kept {
            part.handle(event);
        }
    }

    /// The part that a feed belongs to.
    fn part(&mut self, feed: usize) -> &mut Part {
        let of = self.of.get(&feed);
        let mut parts = self.parts.iter_mut();
        let part = of.and_then(|of| parts.find(|part| part.is(of)));
        part.unwrap_or(&mut self.root)
    }

    fn set_state(&mut self, feed: usize, state: Option<FeedState>, now: Instant) {
        match state {
            Some(state) => drop(self.feeds.insert(feed, state)),
            None => drop(self.feeds.remove(&feed)),
        }
        let whole = self.feeds.values().all(|state| state.is_known());
        self.knowledge.set_whole(whole, now);
        if feed == DISCOVERY {
            let parts = self.parts.iter_mut();
            parts.for_each(|part| part.set_state(feed, state, now));
        }
        self.part(feed).set_state(feed, state, now);
        if state.is_none() {
            self.kept.remove(&feed);
            if self.of.remove(&feed).is_some() {
                self.drop_unused();
            }
        }
    }

    /// Keeps what a publisher says until it is known of whose blocks it is.
    fn keep(&mut self, event: SourceEvent, now: Instant) {
        let feed = event.feed();
        let kept = self.kept.entry(feed.endpoint).or_default();
        let is_full = kept.len() >= KEPT;
        if is_full || matches!(event, SourceEvent::PublisherGone { .. }) {
            kept.clear();
        }
        kept.push(event);
        if is_full {
            warn!(source = %self.owner.source, "Publisher's worker tells no card: what it said is dropped");
            self.root.handle(SourceEvent::Gap { feed });
            self.set_state(feed.endpoint, Some(FeedState::Partial), now);
        }
    }

    /// Tokens of a block, where all that the source's workers have is in one pool.
    fn block_size(&self) -> Option<NonZeroU32> {
        match self.parts.as_slice() {
            [] => self.root.block_size(),
            [only] if only.is_of_whole_requests() => only.block_size(),
            _ => None,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Part> {
        core::iter::once(&self.root).chain(&self.parts)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        core::iter::once(&mut self.root).chain(&mut self.parts)
    }
}

impl Holdings for Resident {
    fn handle(&mut self, event: SourceEvent, now: Instant) {
        let feed = event.feed().endpoint;
        match event {
            SourceEvent::Parts { parts, .. } => self.list(parts, now),
            SourceEvent::Belongs { of, .. } => self.belong(feed, of, now),
            SourceEvent::Feed { state, .. } => self.set_state(feed, Some(state), now),
            SourceEvent::FeedEnded { .. } => self.set_state(feed, None, now),
            event if self.finds && feed != DISCOVERY && !self.of.contains_key(&feed) => {
                self.keep(event, now);
            }
            event => self.part(feed).handle(event),
        }
    }

    fn work(&mut self, now: Instant) -> bool {
        let mut more = false;
        for part in self.all_mut() {
            more |= part.work(now);
        }
        more
    }

    fn settle(&mut self, now: Instant) {
        self.all_mut().for_each(|part| part.settle(now));
    }

    fn tell_due(&mut self, now: Instant) {
        self.all_mut().for_each(|part| part.tell_due(now));
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        let parts = self.all().filter_map(|part| part.due(now));
        parts.chain(self.knowledge.incomplete_at(now)).min()
    }

    fn report(&self, now: Instant) -> PoolReport {
        let mut report = PoolReport {
            source: Arc::clone(&self.owner.source),
            model: self.owner.model.clone(),
            tier: self.owner.tier,
            block_size: self.block_size(),
            stats: self.past,
            completeness: self.knowledge.completeness(now),
            told: None,
            feeds: FeedState::counted(&self.feeds),
            batches: 0,
            blocks: 0,
            refused: kvgrid_core::event::Refusals::default(),
            gaps: 0,
            repairs: None,
            counts_copies: self.copies == Copies::Counted,
            counts_orphans: true,
            pools: Vec::new(),
            heard_at: None,
            ends: BTreeMap::new(),
            ready: None,
            eviction_age: None,
        };
        for part in self.all() {
            part.add_to(&mut report, now);
        }
        report
    }
}

impl PoolStatus {
    /// Of several pools, all blocks and the first one's life.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            blocks: self.blocks + other.blocks,
            ..self
        }
    }
}
