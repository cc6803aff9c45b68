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
mod ring;
mod sources;
mod subscription;

use core::time::Duration;
use std::sync::Arc;

use batch::{Batch, Net};
use ring::Ring;
use sources::Sources;
pub use subscription::Subscription;

use super::message::{
    Announced, Begin, Chunk, Completeness, Delta, Digests, End, Epoch, Frame, Resume, Seq,
};
use crate::block::ChainHash;
use crate::filter::{Geometry, Header, MixKey, Writer, encode_classes};
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

/// A table built from a pool's live hashes, to take the place of one that is too small.
#[derive(Debug)]
pub struct Replacement {
    key: Arc<MixKey>,
    writer: Writer,
}

impl Replacement {
    /// An empty table.
    pub fn empty(key: Arc<MixKey>, geometry: Geometry) -> Self {
        Self {
            key,
            writer: Writer::new(geometry),
        }
    }

    /// A table of these hashes, larger than `geometry` if they would crowd it.
    pub fn build<I>(key: Arc<MixKey>, geometry: Geometry, live: I) -> Self
    where
        I: IntoIterator<Item = ChainHash, IntoIter: Clone>,
    {
        let live = live.into_iter();
        let mut geometry = geometry;
        loop {
            let mut writer = Writer::new(geometry);
            let full = live.clone().any(|chain| {
                let class = geometry.class(&key, chain);
                writer.is_crowded() || writer.insert(class).is_err()
            });
            let next = larger(&geometry, geometry.slots());
            if !full || next == geometry {
                return Self { key, writer };
            }
            geometry = next;
        }
    }

    /// The size of the table.
    pub fn geometry(&self) -> &Geometry {
        self.writer.geometry()
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

    /// A subscriber that has nothing, or what it says it has.
    pub fn subscribe(&self, resume: Option<Resume>) -> Subscription {
        Subscription {
            resume,
            ..Subscription::default()
        }
    }

    /// The next frame of a subscription's stream; `None` until the next close or replacement.
    pub fn poll_frame(&self, subscription: &mut Subscription) -> Option<Frame> {
        if subscription.epoch != Some(self.epoch) {
            if self.overrun {
                return None;
            }
            if let Some(begin) = self.begin(subscription) {
                return Some(Frame::Begin(begin));
            }
        }
        if subscription.cursor < self.seq {
            let Some(delta) = self.ring.after(subscription.cursor) else {
                return (!self.overrun).then(|| Frame::Begin(self.catch_up(subscription)));
            };
            subscription.cursor = delta.seq;
            return Some(Frame::Delta(Arc::clone(delta)));
        }
        if self.overrun {
            return None;
        }
        self.poll_news(subscription)
    }

    /// The next chunk that a subscription waits for, cut at this moment.
    pub fn poll_chunk(&mut self, subscription: &mut Subscription) -> Option<Chunk> {
        if self.overrun || subscription.epoch != Some(self.epoch) {
            return None;
        }
        let index = subscription.queue.pop_first()?;
        if let Some(cut) = subscription.cuts.get_mut(index as usize) {
            *cut = self.seq;
        }
        Some(Chunk {
            epoch: self.epoch,
            index,
            cut: self.seq,
            classes: self.coded(index),
            digest: self.writer.digest(index),
        })
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
        for class in &net.removes {
            self.writer.remove(*class);
        }
        if net
            .adds
            .iter()
            .any(|class| self.writer.insert(*class).is_err())
        {
            return false;
        }
        let base = self.seq;
        self.seq = base.next();
        for class in net.removes.iter().chain(&net.adds) {
            self.chunks[class.chunk() as usize] = ChunkState {
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

    /// Puts a subscription into this epoch; `None` if what it has needs no chunks.
    fn begin(&self, subscription: &mut Subscription) -> Option<Begin> {
        let resume = subscription.resume.take();
        let audit = subscription.audit;
        *subscription = Subscription {
            epoch: Some(self.epoch),
            audit,
            ..Subscription::default()
        };
        let known = resume.filter(|resume| resume.epoch == self.epoch && resume.seq <= self.seq);
        let Some(resume) = known else {
            subscription.announce(0..self.count(), self.count(), self.seq);
            return Some(self.announcement(Announced::All));
        };
        subscription.cursor = resume.seq;
        let missing = resume.missing.into_iter().filter(|c| *c < self.count());
        subscription.queue.extend(missing);
        if self.reaches(resume.seq) {
            if subscription.queue.is_empty() {
                return None;
            }
            subscription.announce([], self.count(), resume.seq);
            let chunks = subscription.queue.iter().copied().collect();
            return Some(Begin {
                seq: resume.seq,
                ..self.announcement(Announced::Only(chunks))
            });
        }
        let queued = subscription.queue.clone();
        let begin = self.catch_up(subscription);
        let Announced::Only(mut chunks) = begin.chunks else {
            return Some(begin);
        };
        chunks.extend(queued);
        chunks.sort_unstable();
        chunks.dedup();
        Some(Begin {
            chunks: Announced::Only(chunks),
            ..begin
        })
    }

    /// Moves a subscription past the deltas it missed: the chunks that they touched come again.
    fn catch_up(&self, subscription: &mut Subscription) -> Begin {
        let touched = |(_, index): &(&ChunkState, u32)| {
            !subscription.queue.contains(index)
                && self.chunks[*index as usize].changed > subscription.covered(*index)
        };
        let touched: Vec<u32> = self
            .chunks
            .iter()
            .zip(0..)
            .filter(touched)
            .map(|(_, index)| index)
            .collect();
        subscription.announce(touched.iter().copied(), self.count(), self.seq);
        self.announcement(Announced::Only(touched))
    }

    /// What there is to say to a subscription that has all deltas.
    fn poll_news(&self, subscription: &mut Subscription) -> Option<Frame> {
        let version = self.sources.version();
        if subscription.status != Some(version) {
            let seen = subscription.status.replace(version);
            return Some(Frame::Status(
                self.sources.status(self.epoch, self.seq, seen),
            ));
        }
        if core::mem::take(&mut subscription.audit) {
            return Some(Frame::Digests(Digests {
                epoch: self.epoch,
                seq: self.seq,
                digests: (0..self.count()).map(|c| self.writer.digest(c)).collect(),
            }));
        }
        if subscription.ended || !subscription.queue.is_empty() {
            return None;
        }
        subscription.end();
        Some(Frame::End(End {
            epoch: self.epoch,
            seq: self.seq,
            digest: self.writer.digest_sum(),
        }))
    }

    fn announcement(&self, chunks: Announced) -> Begin {
        Begin {
            epoch: self.epoch,
            seq: self.seq,
            geometry: *self.writer.geometry(),
            chunks,
        }
    }

    /// Whether the ring leads from `seq` to the present.
    fn reaches(&self, seq: Seq) -> bool {
        seq == self.seq || self.ring.after(seq).is_some()
    }

    fn count(&self) -> u32 {
        self.writer.geometry().chunks()
    }

    fn coded(&mut self, index: u32) -> Arc<[u8]> {
        let Some(state) = self.chunks.get_mut(index as usize) else {
            return Arc::default();
        };
        let code = || {
            let classes = self.writer.chunk_classes(index);
            encode_classes(self.writer.geometry(), &classes).into()
        };
        Arc::clone(state.coded.get_or_insert_with(code))
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

/// A geometry with room for a quarter more blocks than there are, and at least that much
/// larger than this one.
fn larger(geometry: &Geometry, blocks: u64) -> Geometry {
    let chunks = u64::from(geometry.chunks());
    let capacity = geometry.soft_capacity() / chunks;
    let wanted = (blocks + blocks / 4).max((chunks + chunks.div_ceil(4)) * capacity);
    let chunks = wanted.div_ceil(capacity.max(1));
    let header = Header {
        chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
        ..geometry.header()
    };
    Geometry::from_header(header).unwrap_or(*geometry)
}
