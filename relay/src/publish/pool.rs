//! One pool as edges may subscribe to it.

use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvgrid_core::block::{ChainHash, HashFormat};
use kvgrid_core::ckf::Naming;
use kvgrid_core::event::Tier;
use kvgrid_core::filter::{Form, Geometry, MixKey};
use kvgrid_core::replication::{Completeness, Epoch, Publisher, Replacement, ReplicaView, Seq};
use kvgrid_core::residency::PoolOp;
use kvgrid_core::view::PoolView;
use kvgrid_core::{Instant, ModelName, PoolId};
use kvgrid_runtime::Clock;
use tokio::sync::{Notify, watch};
use tracing::info;

use super::forms::Publishers;
use super::{Hub, HubConfig};

/// Blocks a pool is made for when nobody knows how many there can be: a table of 32 KiB, which
/// grows when it must.
const UNKNOWN_CAPACITY: u64 = 10_000;

/// Another eviction age is told when it differs by this share, since all edges are told.
const AGE_STEP: f64 = 0.2;
/// And no more often than this.
const AGE_PAUSE: Duration = Duration::from_secs(5);

/// What all blocks of a pool look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolShape {
    /// Tokens of a block.
    pub(crate) block_size: NonZeroU32,
    /// How its blocks are hashed.
    pub(crate) format: HashFormat,
}

/// What a pool is of.
#[derive(Clone, Debug)]
pub(crate) struct PoolSpec {
    /// The model whose blocks it holds.
    pub(crate) model: ModelName,
    /// The configured source that feeds it.
    pub(crate) source: String,
    /// Which of the source's pools it is, where that feeds several.
    pub(crate) part: Option<String>,
    /// By which of the site's cards prompts become its blocks, where that may change.
    pub(crate) cohort: Option<u64>,
    /// What its blocks look like.
    pub(crate) shape: PoolShape,
    /// By what names its filter knows them.
    pub(crate) naming: Naming,
    /// Where the blocks are kept.
    pub(crate) tier: Tier,
    /// Whether a block is published only while all before it are.
    pub(crate) closed: bool,
    /// Blocks that there can be, where known.
    pub(crate) capacity_blocks: Option<u64>,
    /// Sets apart the lives of a pool that is withdrawn and offered again by one relay.
    pub(crate) generation: u16,
}

/// Geometries that one offer of a pool may go through before its epochs come near the next
/// offer's.
const GENERATIONS_PER_OFFER: u16 = 256;

impl PoolSpec {
    /// The same as the offer after so many others.
    pub(crate) fn generation(self, offers: u16) -> Self {
        Self {
            generation: offers.wrapping_mul(GENERATIONS_PER_OFFER),
            ..self
        }
    }

    /// The source as operators see it.
    fn shown_source(&self) -> String {
        match &self.part {
            None => self.source.clone(),
            Some(part) => format!("{}:{part}", self.source),
        }
    }

    /// The same for the same pool after a restart, so that edges know it again.
    fn id(&self) -> PoolId {
        let mut name = String::new();
        let part = self.part.iter().map(String::as_str);
        for part in [self.model.as_str(), &self.source].into_iter().chain(part) {
            // Lengths keep two names from flowing into each other.
            let _ = write!(name, "{}:{part}/", part.len());
        }
        let _ = write!(
            name,
            "{}/{:?}/{:?}",
            self.shape.block_size, self.shape.format, self.tier
        );
        if self.naming != Naming::Chain {
            let _ = write!(name, "/{:?}", self.naming);
        }
        // Under another card the same place has other blocks, and an edge must not look for
        // these in what it has of those.
        if let Some(cohort) = self.cohort {
            let _ = write!(name, "/{cohort:016x}");
        }
        PoolId::of_text(&name)
    }
}

/// Whether a pool is still fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    Offered,
    Withdrawn,
}

/// A pool and who waits for its news.
pub(super) struct Pool {
    view: PoolView,
    /// As edges are told it, and since when.
    eviction_age: Mutex<(Option<Duration>, Instant)>,
    key: Arc<MixKey>,
    /// Held for microseconds, never across an await.
    publishers: Mutex<Publishers>,
    news: watch::Sender<Lifetime>,
    pub(super) clock: Clock,
    pub(super) wishes: Arc<Notify>,
}

impl Pool {
    pub(super) fn new(spec: &PoolSpec, config: &HubConfig, wishes: &Arc<Notify>) -> Self {
        let capacity = spec.capacity_blocks.unwrap_or(UNKNOWN_CAPACITY);
        let geometry = Geometry::for_capacity(capacity, config.key.id());
        let table = Replacement::empty(Arc::clone(&config.key), geometry);
        let epoch = Epoch::new(config.incarnation, spec.generation);
        let mut publisher = Publisher::new(config.publisher, table, epoch);
        publisher.set_completeness(Completeness::Partial, config.clock.now());
        publisher.close();
        Self {
            view: PoolView {
                id: spec.id(),
                model: spec.model.id(),
                source: spec.shown_source().into(),
                block_size: spec.shape.block_size,
                format: spec.shape.format,
                naming: spec.naming,
                tier: spec.tier,
                closed: spec.closed,
                eviction_age: None,
                replica: ReplicaView::default(),
                facts: None,
            },
            eviction_age: Mutex::new((None, Instant::ZERO)),
            key: Arc::clone(&config.key),
            publishers: Mutex::new(Publishers::new(
                publisher,
                (config.incarnation, spec.generation),
            )),
            news: watch::Sender::new(Lifetime::Offered),
            clock: config.clock,
            wishes: Arc::clone(wishes),
        }
    }

    pub(super) const fn id(&self) -> PoolId {
        self.view.id
    }

    /// The pool as it is listed now.
    pub(super) fn view(&self) -> PoolView {
        PoolView {
            eviction_age: self.eviction_age().0,
            ..self.view.clone()
        }
    }

    fn eviction_age(&self) -> MutexGuard<'_, (Option<Duration>, Instant)> {
        self.eviction_age
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Woken whenever a subscription may have something to poll, and when the pool is withdrawn.
    pub(super) fn news(&self) -> watch::Receiver<Lifetime> {
        self.news.subscribe()
    }

    /// The form in which it can be told to somebody who wants this one: the names of a filter's
    /// classes are no hashes, so that keeping all of them would make nothing exact.
    pub(super) fn form(&self, wanted: Form) -> Form {
        match self.view.naming {
            Naming::Chain => wanted,
            Naming::Ckf(_) | Naming::Unknown => Form::Filter,
        }
    }

    /// A panic elsewhere leaves at worst a batch half told, which the digests would show.
    pub(super) fn publishers(&self) -> MutexGuard<'_, Publishers> {
        self.publishers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a pool stands, for metrics and operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolStatus {
    /// The life of its filter.
    pub(crate) epoch: Epoch,
    /// The last closed batch.
    pub(crate) seq: Seq,
    /// Blocks in it.
    pub(crate) blocks: u64,
    /// How much it knows.
    pub(crate) completeness: Completeness,
}

/// Where one pool's changes are told. Dropping it withdraws the pool, unless the relay is
/// leaving: what it knew stays worth something, and edges keep it as stale.
///
/// Told changes are published with the next batch: the owner calls [`Self::handle_timeout`] at
/// [`Self::poll_timeout`], and [`Self::grow_if_due`] and [`Self::tell_exact`] after it.
pub(crate) struct PoolPublisher {
    pool: Arc<Pool>,
    hub: Hub,
}

impl PoolPublisher {
    pub(super) const fn new(pool: Arc<Pool>, hub: Hub) -> Self {
        Self { pool, hub }
    }

    /// Tells changes of the published set, in their order.
    pub(crate) fn apply(&self, changes: impl IntoIterator<Item = PoolOp>, now: Instant) {
        self.update(|publishers| {
            for change in changes {
                publishers.each(|publisher| match change {
                    PoolOp::Insert(chain) => publisher.insert(chain, now),
                    PoolOp::Remove(chain) => publisher.remove(chain, now),
                });
            }
        });
    }

    /// All changes of a source publisher up to this sequence of its own have been told.
    pub(crate) fn applied(&self, publisher: u64, sequence: u64, now: Instant) {
        self.update(|pool| pool.each(|it| it.set_applied(publisher, sequence, now)));
    }

    /// A source publisher is gone, and its changes have been told.
    pub(crate) fn forget(&self, publisher: u64, now: Instant) {
        self.update(|pool| pool.each(|it| it.forget_applied(publisher, now)));
    }

    /// How much the pool knows of its site.
    pub(crate) fn set_completeness(&self, completeness: Completeness, now: Instant) {
        self.update(|pool| pool.each(|it| it.set_completeness(completeness, now)));
    }

    /// At what age the site evicts blocks of the pool that nobody uses.
    pub(crate) fn set_eviction_age(&self, age: Option<Duration>, now: Instant) {
        // Shorter than a millisecond is nothing on the wire.
        let age = age.map(|age| age.max(Duration::from_millis(1)));
        {
            let mut known = self.pool.eviction_age();
            let (told, at) = *known;
            let differs = match (told, age) {
                (Some(told), Some(age)) => told.abs_diff(age) > told.mul_f64(AGE_STEP),
                _ => told != age,
            };
            if !differs || (told.is_some() && now.saturating_since(at) < AGE_PAUSE) {
                return;
            }
            *known = (age, now);
        }
        self.hub.0.pools.send_modify(|_| {});
    }

    /// When an open batch is due, or [`Self::tell_exact`] has to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.pool.publishers().poll_timeout()
    }

    /// Closes the open batches that are due.
    pub(crate) fn handle_timeout(&self, now: Instant) {
        self.update(|pool| pool.each(|publisher| publisher.handle_timeout(now)));
    }

    /// Whether [`Self::grow_if_due`] has something to do, which may take long.
    pub(crate) fn growth_is_due(&self) -> bool {
        let publishers = self.pool.publishers();
        let mut forms = [Form::Filter, Form::Exact].into_iter();
        forms.any(|form| publishers.growth(form).is_some())
    }

    /// Moves to larger tables where they are crowded. `live` gives every block that was told as
    /// inserted and not as removed, and is not asked otherwise.
    pub(crate) fn grow_if_due<I>(&self, live: impl Fn() -> I)
    where
        I: IntoIterator<Item = ChainHash, IntoIter: Clone>,
    {
        for form in [Form::Filter, Form::Exact] {
            let growth = self.pool.publishers().growth(form);
            let Some(geometry) = growth else {
                continue;
            };
            let table = self.build(geometry, live());
            let chunks = table.geometry().chunks();
            self.update(|publishers| {
                if let Some(publisher) = publishers.of(form) {
                    publisher.replace(table);
                }
            });
            let status = self.status();
            info!(pool = %self.pool.view.source, form = form.name(), blocks = status.blocks, chunks, "Pool grew");
        }
    }

    /// Whether [`Self::tell_exact`] has to ask for the blocks, which may take long.
    pub(crate) fn exact_is_due(&self) -> bool {
        self.pool.publishers().exact_is_due()
    }

    /// Begins to publish whole hashes if an edge wants them, and ends it some time after the last
    /// that did. `live` as in [`Self::grow_if_due`].
    pub(crate) fn tell_exact<I>(&self, live: impl FnOnce() -> I, now: Instant)
    where
        I: IntoIterator<Item = ChainHash, IntoIter: Clone>,
    {
        let pool = &self.pool.view.source;
        if self.exact_is_due() {
            let geometry = *self.pool.publishers().filter.geometry();
            let table = self.build(geometry.with_form(Form::Exact), live());
            let bytes = table.geometry().bytes();
            self.update(|publishers| publishers.begin_exact(table));
            info!(%pool, bytes, "Whole hashes are published");
        } else if self.pool.publishers().end_exact(now) {
            info!(%pool, "Whole hashes are published no more");
        }
    }

    /// A table of these blocks, built outside the lock: subscribers go on with what there is.
    fn build<I>(&self, geometry: Geometry, live: I) -> Replacement
    where
        I: IntoIterator<Item = ChainHash, IntoIter: Clone>,
    {
        Replacement::build(Arc::clone(&self.pool.key), geometry, live)
    }

    /// What edges know the pool by.
    pub(crate) fn id(&self) -> PoolId {
        self.pool.id()
    }

    /// Tokens of its blocks.
    pub(crate) fn block_size(&self) -> NonZeroU32 {
        self.pool.view.block_size
    }

    /// How the pool stands.
    pub(crate) fn status(&self) -> PoolStatus {
        let publishers = self.pool.publishers();
        let publisher = &publishers.filter;
        PoolStatus {
            epoch: publisher.epoch(),
            seq: publisher.seq(),
            blocks: publisher.blocks(),
            completeness: publisher.completeness(),
        }
    }

    fn update(&self, change: impl FnOnce(&mut Publishers)) {
        let news = {
            let mut publishers = self.pool.publishers();
            change(&mut publishers);
            publishers.take_news()
        };
        if news {
            self.pool.news.send_modify(|_| {});
        }
    }
}

impl Drop for PoolPublisher {
    fn drop(&mut self) {
        if *self.hub.0.leaving.borrow() {
            return;
        }
        self.hub.remove_pool(&self.pool);
        self.pool.publishers().withdraw_exact();
        self.pool.news.send_replace(Lifetime::Withdrawn);
    }
}
