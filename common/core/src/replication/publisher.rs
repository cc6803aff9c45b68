//! The relay's side: one pool's filter, its numbered changes, and what subscribers need next.
//!
//! Changes gather in an open batch and are applied to the table only when the batch is closed,
//! so at any moment the table is exactly what its sequence says and a chunk can be cut without
//! copying anything. Subscribers pull: [`Publisher::poll_frame`] and [`Publisher::poll_chunk`]
//! are asked whenever a stream can take more, so slowness costs only the slow one.
//!
//! A subscriber that fell off the ring of deltas is sent the chunks that changed since it last
//! had them, no others, and moves on from the present sequence.
//!
//! A table never grows in place. [`Publisher::growth`] says when a larger one is due; the owner
//! builds a [`Replacement`] from all live hashes and hands it to [`Publisher::replace`], which
//! begins a new epoch. A batch that doesn't fit is dropped whole and nothing is published until
//! then, so subscribers stay at the last true sequence.

mod batch;
mod replacement;
mod ring;
mod serve;
mod sources;
mod subscription;

use core::time::Duration;
use std::sync::Arc;

use batch::{Batch, Net};
pub use replacement::Replacement;
use replacement::larger;
use ring::Ring;
use sources::Sources;
pub use subscription::Subscription;

use super::message::{Completeness, Delta, Epoch, Seq};
use crate::block::ChainHash;
use crate::filter::{Geometry, MixKey, Writer, encode_classes};
use crate::time::Instant;

/// How a publisher batches and remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherConfig {
    /// Changes after which a batch is closed at once.
    pub batch_changes: usize,
    /// Time after its first change when a batch is closed.
    pub batch_after: Duration,
    /// Most bytes of deltas kept for subscribers that are behind.
    pub ring_bytes: usize,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            batch_changes: 10_000,
            batch_after: Duration::from_millis(20),
            ring_bytes: 16 * 1024 * 1024,
        }
    }
}

/// Owns the filter of one pool and serves its subscribers.
#[derive(Debug)]
pub struct Publisher {
    config: PublisherConfig,
    key: Arc<MixKey>,
    epoch: Epoch,
    seq: Seq,
    writer: Writer,
    batch: Batch,
    sources: Sources,
    close_at: Option<Instant>,
    ring: Ring,
    chunks: Vec<ChunkState>,
    /// A batch did not fit: the table is of no more use.
    overrun: bool,
    /// Subscribers have something to poll that they were not woken for.
    news: bool,
}

/// What is known of one chunk of the table.
#[derive(Clone, Debug, Default)]
struct ChunkState {
    changed: Seq,
    /// Its classes as coded since the last change: many subscribers want the same chunk.
    coded: Option<Arc<[u8]>>,
}

impl Publisher {
    /// A publisher of an empty pool.
    pub fn new(config: PublisherConfig, table: Replacement, epoch: Epoch) -> Self {
        let Replacement { key, writer } = table;
        Self {
            config,
            key,
            epoch,
            seq: Seq::default(),
            batch: Batch::default(),
            sources: Sources::default(),
            close_at: None,
            ring: Ring::new(config.ring_bytes),
            chunks: vec![ChunkState::default(); writer.geometry().chunks() as usize],
            writer,
            overrun: false,
            news: false,
        }
    }

    /// A publisher of the same blocks and positions in another table, of another form say.
    /// `table` holds every live hash, those of this one's open batch included. Told of the same
    /// changes from now on, the two stay alike.
    pub fn beside(&self, table: Replacement, epoch: Epoch) -> Self {
        let mut sources = self.sources.clone();
        sources.publish();
        Self {
            sources,
            news: true,
            ..Self::new(self.config, table, epoch)
        }
    }

    /// A block came into the pool. The caller tells only changes: a block is in at most once.
    pub fn insert(&mut self, chain: ChainHash, now: Instant) {
        self.batch
            .add(self.writer.geometry().class(&self.key, chain));
        self.changed(now);
    }

    /// A block left the pool, which had it.
    pub fn remove(&mut self, chain: ChainHash, now: Instant) {
        self.batch
            .remove(self.writer.geometry().class(&self.key, chain));
        self.changed(now);
    }

    /// All changes of a source publisher up to this sequence of its own have been told.
    pub fn set_applied(&mut self, publisher: u64, sequence: u64, now: Instant) {
        self.sources.tell(publisher, sequence);
        self.open(now);
    }

    /// A source publisher is gone, and its changes have been told.
    pub fn forget_applied(&mut self, publisher: u64, now: Instant) {
        self.sources.forget(publisher);
        self.open(now);
    }

    /// How much the pool knows of its site.
    pub fn set_completeness(&mut self, completeness: Completeness, now: Instant) {
        self.sources.set_completeness(completeness);
        self.open(now);
    }

    /// When [`Self::handle_timeout`] has to be called, if nothing else happens.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.close_at
    }

    /// Closes the open batch if its time is up.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.close_at.is_some_and(|at| at <= now) {
            self.close();
        }
    }

    /// Closes the open batch.
    pub fn close(&mut self) {
        self.close_at = None;
        let net = self.batch.take_net();
        if self.overrun {
            return;
        }
        let before = self.sources.version();
        let changed = !(net.adds.is_empty() && net.removes.is_empty());
        if changed && !self.apply(&net) {
            self.overrun = true;
            return;
        }
        self.sources.publish();
        self.news |= changed || self.sources.version() != before;
    }

    /// Whether subscribers have something to poll since this was last asked.
    pub const fn take_news(&mut self) -> bool {
        core::mem::replace(&mut self.news, false)
    }

    /// The life of the filter.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The sequence of the last closed batch.
    pub const fn seq(&self) -> Seq {
        self.seq
    }

    /// Blocks in the pool as of the last closed batch.
    pub const fn blocks(&self) -> u64 {
        self.writer.len()
    }

    /// The size of the table.
    pub fn geometry(&self) -> &Geometry {
        self.writer.geometry()
    }

    /// How much the pool knew as of the last closed batch.
    pub const fn completeness(&self) -> Completeness {
        self.sources.completeness()
    }

    /// The geometry that should take over, if this one is crowded. To be asked after a close.
    pub fn growth(&self) -> Option<Geometry> {
        let geometry = self.writer.geometry();
        let wanted = larger(geometry, self.writer.len());
        let due = self.overrun || self.writer.len() >= self.growth_threshold();
        (due && wanted.chunks() > geometry.chunks()).then_some(wanted)
    }

    /// Begins a new epoch with a table that holds every live hash, those of the open batch and
    /// of batches that did not fit included.
    pub fn replace(&mut self, table: Replacement) {
        let Replacement { key, writer } = table;
        self.key = key;
        self.epoch = self.epoch.next();
        self.seq = Seq::default();
        self.batch.clear();
        self.sources.publish();
        self.close_at = None;
        self.ring.clear();
        self.chunks = vec![ChunkState::default(); writer.geometry().chunks() as usize];
        self.writer = writer;
        self.overrun = false;
        self.news = true;
    }

    fn changed(&mut self, now: Instant) {
        self.open(now);
        if self.batch.len() >= self.config.batch_changes {
            self.close();
        }
    }

    fn open(&mut self, now: Instant) {
        self.close_at.get_or_insert(now + self.config.batch_after);
    }

    /// Applies a batch to the table and numbers it; false if it doesn't fit.
    fn apply(&mut self, net: &Net) -> bool {
        self.writer.remove_all(&net.removes);
        if self.writer.insert_all(&net.adds).is_err() {
            return false;
        }
        let base = self.seq;
        self.seq = base.next();
        for class in net.removes.iter().chain(&net.adds) {
            let chunk = self.writer.geometry().chunk(*class);
            self.chunks[chunk as usize] = ChunkState {
                changed: self.seq,
                coded: None,
            };
        }
        let geometry = self.writer.geometry();
        self.ring.push(Arc::new(Delta {
            epoch: self.epoch,
            base,
            seq: self.seq,
            adds: encode_classes(geometry, &net.adds).into(),
            removes: encode_classes(geometry, &net.removes).into(),
            digest: self.writer.digest_sum(),
        }));
        true
    }

    fn count(&self) -> u32 {
        self.writer.geometry().chunks()
    }

    /// Blocks at which growth is asked for: from the soft load on, spread by the epoch so that
    /// the pools of a grid that fill up together don't all send snapshots in one moment.
    fn growth_threshold(&self) -> u64 {
        let geometry = self.writer.geometry();
        let (soft, hard) = (geometry.soft_capacity(), geometry.hard_capacity());
        let spread = self.epoch.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        soft + (hard - soft) * spread / 512
    }
}
