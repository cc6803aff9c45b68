//! The edge's side: a copy of one pool's filter that follows a publisher.
//!
//! It has up to two tables. `current` was whole once and is what readers search; `next` is
//! of another epoch and takes its place in one swap once it is whole and its digests are right.
//! Within one epoch chunks are repaired in place, which never hides a block from a reader.
//!
//! Two streams of one subscription, and subscriptions before and after a lost connection, race
//! each other. What keeps it right: frames and chunks carry the subscription they belong to; a
//! chunk counts only if it is of the table's epoch and its cut is not before the point from
//! which the operations on it are known. So late and doubled chunks do no harm.
//!
//! While a restarted relay still recovers ([`Completeness::Partial`]), its new epoch is followed
//! but not swapped in: the old one, stale, knows more.

mod config;
mod early;
mod error;
#[cfg(test)]
mod inspect;
mod retry;
mod table;

use std::sync::Arc;

pub use config::ReplicaConfig;
use early::Early;
pub use error::ReplicaError;
use retry::Retry;
use table::{Loaded, Table};

use super::message::{
    Announced, Begin, Chunk, Completeness, Digests, End, Epoch, Frame, Request, Seq, SubscriptionId,
};
use super::view::{ReplicaFilter, ReplicaState, ReplicaView, Syncing};
use crate::filter::{Form, MixKey};
use crate::time::Instant;

/// A pool's filter as an edge has it.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    room_bytes: u64,
    link: Link,
    subscription: SubscriptionId,
    /// Whether the next subscription asks for everything.
    fresh: bool,
    audit: Audit,
    retry: Retry,
    current: Option<Table>,
    next: Option<Table>,
    early: Early,
    stale_since: Option<Instant>,
    last_arrival: Instant,
    #[cfg(test)]
    drifts: u32,
    /// What was true when `current` was whole and right last.
    shown: Shown,
}

#[derive(Debug, Default)]
struct Shown {
    seq: Seq,
    applied: Arc<[(u64, u64)]>,
    completeness: Completeness,
}

/// How the replica stands with its publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    /// Connected; a subscription is due.
    Due(Instant),
    /// A subscription was asked for.
    Subscribed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audit {
    No,
    /// The digests disagree; the request is yet to be polled.
    Wanted,
    Asked,
}

impl Replica {
    /// An empty replica that is connected to nobody.
    pub fn new(config: ReplicaConfig) -> Self {
        Self {
            config,
            room_bytes: u64::MAX,
            link: Link::Down,
            subscription: SubscriptionId::default(),
            fresh: false,
            audit: Audit::No,
            retry: Retry::default(),
            current: None,
            next: None,
            early: Early::default(),
            stale_since: None,
            last_arrival: Instant::ZERO,
            #[cfg(test)]
            drifts: 0,
            shown: Shown::default(),
        }
    }

    /// There is a publisher to ask: the same as before, the same after a restart, or another.
    pub fn handle_connect(&mut self, now: Instant) {
        self.link = Link::Due(now);
        self.audit = Audit::No;
    }

    /// The publisher can't be reached, or no longer has the pool.
    pub fn handle_disconnect(&mut self, now: Instant) {
        self.link = Link::Down;
        self.audit = Audit::No;
        self.early.clear();
        self.make_stale(now);
    }

    /// Nothing more comes on a subscription's stream although the publisher is still there.
    pub fn handle_stream_end(&mut self, subscription: SubscriptionId, now: Instant) {
        if self.link == Link::Subscribed && subscription == self.subscription {
            self.resubscribe(now);
        }
    }

    /// Refuses tables to come of more bytes than this; for limits over all replicas.
    pub const fn limit_bytes(&mut self, most: u64) {
        self.room_bytes = most;
    }

    /// Drops all that is known, and is connected to nobody.
    pub fn clear(&mut self) {
        let config = self.config.clone();
        // Subscriptions count on, so that what is under way for an old one is told apart.
        let subscription = self.subscription;
        *self = Self {
            subscription,
            ..Self::new(config)
        };
    }

    /// Takes the next frame of a subscription's stream; those of older ones are ignored.
    pub fn handle_frame(
        &mut self,
        subscription: SubscriptionId,
        frame: Frame,
        now: Instant,
    ) -> Result<(), ReplicaError> {
        if self.link != Link::Subscribed || subscription != self.subscription {
            return Ok(());
        }
        self.last_arrival = now;
        let taken = self.take_frame(frame, now);
        self.conclude(taken, now)
    }

    /// Takes a chunk of a subscription; those of older ones are ignored: what its publisher
    /// takes for sent, and never sends again, is what this subscription sends.
    pub fn handle_chunk(
        &mut self,
        subscription: SubscriptionId,
        chunk: Chunk,
        now: Instant,
    ) -> Result<(), ReplicaError> {
        if self.link != Link::Subscribed || subscription != self.subscription {
            return Ok(());
        }
        self.last_arrival = now;
        let taken = self.take_chunk(chunk);
        self.conclude(taken, now)
    }

    /// When [`Self::handle_timeout`] or [`Self::poll_request`] has to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.link {
            Link::Down => None,
            Link::Due(at) => Some(at),
            Link::Subscribed => self
                .is_waiting()
                .then(|| self.last_arrival + self.config.stall_after),
        }
    }

    /// Begins a transfer again that has stalled.
    pub fn handle_timeout(&mut self, now: Instant) {
        let stalled = self.link == Link::Subscribed
            && self.is_waiting()
            && now.saturating_since(self.last_arrival) >= self.config.stall_after;
        if stalled {
            self.resubscribe(now);
        }
    }

    /// What has to be sent to the publisher now.
    pub fn poll_request(&mut self, now: Instant) -> Option<Request> {
        if matches!(self.link, Link::Due(at) if at <= now) {
            return Some(self.subscribe(now));
        }
        if self.link == Link::Subscribed && self.audit == Audit::Wanted {
            self.audit = Audit::Asked;
            return Some(Request::Audit {
                subscription: self.subscription,
            });
        }
        None
    }

    /// Bytes of the tables, for limits over all replicas.
    pub fn table_bytes(&self) -> u64 {
        let tables = self.current.iter().chain(&self.next);
        tables.map(|table| table.writer.geometry().bytes()).sum()
    }

    /// What readers may see now.
    pub fn snapshot(&self) -> ReplicaView {
        let current = self.current.as_ref();
        ReplicaView {
            state: self.state(),
            epoch: current.map(|table| table.epoch),
            seq: self.shown.seq,
            applied: Arc::clone(&self.shown.applied),
            blocks: current.map_or(0, |table| table.writer.len()),
            completeness: self.shown.completeness,
            filter: current.map(|table| ReplicaFilter {
                reader: table.writer.reader(),
                key: Arc::clone(&table.key),
            }),
            syncing: self.syncing(),
        }
    }

    fn state(&self) -> ReplicaState {
        match (&self.current, self.stale_since) {
            (Some(_), Some(since)) => ReplicaState::Stale { since },
            (Some(_), None) => ReplicaState::Live,
            (None, _) if self.link == Link::Down => ReplicaState::Empty,
            (None, _) => ReplicaState::Syncing,
        }
    }

    fn syncing(&self) -> Option<Syncing> {
        let table = self.next.as_ref().or(self.current.as_ref())?;
        (!table.is_whole()).then(|| Syncing {
            epoch: table.epoch,
            missing: table.missing(),
            chunks: table.writer.geometry().chunks(),
        })
    }

    /// Whether something must come without being asked for again.
    fn is_waiting(&self) -> bool {
        let target = self.next.as_ref().or(self.current.as_ref());
        self.audit != Audit::No || target.is_none_or(|table| !table.is_whole())
    }

    /// The table that the publisher's frames are for.
    const fn target(&mut self) -> Option<&mut Table> {
        match &mut self.next {
            Some(next) => Some(next),
            None => self.current.as_mut(),
        }
    }

    fn target_of(&mut self, epoch: Epoch) -> Result<&mut Table, ReplicaError> {
        self.target()
            .filter(|table| table.epoch == epoch)
            .ok_or(ReplicaError::NotBegun { found: epoch })
    }

    fn subscribe(&mut self, now: Instant) -> Request {
        self.subscription = SubscriptionId(self.subscription.0 + 1);
        self.link = Link::Subscribed;
        self.last_arrival = now;
        self.audit = Audit::No;
        self.early.clear();
        if core::mem::take(&mut self.fresh) {
            self.next = None;
            return Request::Subscribe {
                subscription: self.subscription,
                form: self.config.form,
                resume: None,
            };
        }
        let resume = self.target().map(|table| {
            table.reopen();
            table.resume()
        });
        Request::Subscribe {
            subscription: self.subscription,
            form: self.config.form,
            resume,
        }
    }

    fn take_frame(&mut self, frame: Frame, now: Instant) -> Result<(), ReplicaError> {
        let (max_kept, max_sources) = (self.config.max_kept, self.config.max_sources);
        match frame {
            Frame::Begin(begin) => self.take_begin(&begin, now),
            Frame::Delta(delta) => self.target_of(delta.epoch)?.apply(&delta, max_kept),
            Frame::Status(status) => {
                let table = self.target_of(status.epoch)?;
                table.take_status(status, max_sources)
            }
            Frame::Digests(digests) => self.take_digests(&digests, now),
            Frame::End(end) => self.take_end(end),
        }
    }

    fn take_begin(&mut self, begin: &Begin, now: Instant) -> Result<(), ReplicaError> {
        match begin.chunks {
            Announced::All => {
                let key = self.accept(begin)?;
                self.next = None;
                self.next = Some(Table::new(begin, key));
            }
            Announced::Only(_) => self.target_of(begin.epoch)?.begin_again(begin)?,
        }
        self.make_stale(now);
        for chunk in self.early.take(begin.epoch, begin.seq) {
            self.take_chunk(chunk)?;
        }
        Ok(())
    }

    fn accept(&self, begin: &Begin) -> Result<Arc<MixKey>, ReplicaError> {
        let geometry = &begin.geometry;
        if geometry.form() == Form::Exact && self.config.form == Form::Filter {
            return Err(ReplicaError::Form);
        }
        let room = self.room_bytes / geometry.chunk_bytes();
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let (chunks, limit) = (geometry.chunks(), self.config.max_chunks.min(room));
        if chunks > limit {
            return Err(ReplicaError::TooLarge { chunks, limit });
        }
        let key_id = geometry.key_id();
        let key = self.config.keys.iter().find(|key| key.id() == key_id);
        key.cloned().ok_or(ReplicaError::UnknownKey { key_id })
    }

    fn take_chunk(&mut self, chunk: Chunk) -> Result<(), ReplicaError> {
        let limit = self.config.max_early_bytes;
        // What is not asked for may be announced later on the other stream.
        let early = match self.target_of(chunk.epoch) {
            Ok(table) => table.load(&chunk)? == Loaded::Unwanted && chunk.cut >= table.seq,
            Err(_) => true,
        };
        if early {
            self.early.keep(chunk, limit);
        }
        Ok(())
    }

    fn take_end(&mut self, end: End) -> Result<(), ReplicaError> {
        let table = self.target_of(end.epoch)?;
        if end.seq != table.seq {
            return Err(ReplicaError::Gap {
                expected: table.seq,
                found: end.seq,
            });
        }
        table.digest = Some(end.digest);
        table.ended = true;
        Ok(())
    }

    fn take_digests(&mut self, digests: &Digests, now: Instant) -> Result<(), ReplicaError> {
        let table = self.target_of(digests.epoch)?;
        let chunks = table.writer.geometry().chunks();
        let found = digests.digests.len();
        if found != chunks as usize {
            return Err(ReplicaError::Digests { found, chunks });
        }
        if digests.seq != table.seq {
            return Err(ReplicaError::Gap {
                expected: table.seq,
                found: digests.seq,
            });
        }
        let bad = table.differing(&digests.digests);
        let repair = !bad.is_empty();
        table.digest = None;
        table.distrust(bad);
        self.audit = Audit::No;
        if repair {
            self.resubscribe(now);
        }
        Ok(())
    }

    /// Draws the consequences of what was just taken.
    fn conclude(
        &mut self,
        taken: Result<(), ReplicaError>,
        now: Instant,
    ) -> Result<(), ReplicaError> {
        match &taken {
            Ok(()) => self.settle(now),
            Err(error) => {
                self.fresh |= error.needs_fresh_start();
                self.resubscribe(now);
            }
        }
        taken
    }

    fn settle(&mut self, now: Instant) {
        if self.link != Link::Subscribed {
            return;
        }
        let dropped = self.early.dropped();
        let Some(table) = self.target() else {
            return;
        };
        if !table.is_whole() {
            let gone = table.lost || dropped;
            if table.ended && table.missing() > 0 && gone {
                self.resubscribe(now);
            }
            return;
        }
        if table.has_drifted() {
            if self.audit == Audit::No {
                self.audit = Audit::Wanted;
                #[cfg(test)]
                {
                    self.drifts += 1;
                }
            }
            self.make_stale(now);
            return;
        }
        if self.audit == Audit::No && self.may_show() {
            self.show();
        }
    }

    /// Whether what is whole may take the place of what readers search.
    fn may_show(&self) -> bool {
        match (&self.current, &self.next) {
            (Some(current), Some(next)) => {
                let knows_less = match next.completeness {
                    Completeness::None | Completeness::Partial => true,
                    Completeness::Incomplete | Completeness::Whole => false,
                };
                next.epoch == current.epoch || !knows_less
            }
            (_, _) => true,
        }
    }

    fn show(&mut self) {
        if let Some(next) = self.next.take() {
            self.current = Some(next);
        }
        let Some(table) = &mut self.current else {
            return;
        };
        self.stale_since = None;
        self.shown.seq = table.seq;
        if core::mem::take(&mut table.has_news) {
            self.shown.completeness = table.completeness;
            self.shown.applied = table.applied.iter().map(|(id, at)| (*id, *at)).collect();
        }
    }

    fn resubscribe(&mut self, now: Instant) {
        self.make_stale(now);
        self.audit = Audit::No;
        self.link = Link::Due(self.retry.after_trouble(now));
    }

    fn make_stale(&mut self, now: Instant) {
        if self.current.is_some() {
            self.stale_since.get_or_insert(now);
        }
    }
}
