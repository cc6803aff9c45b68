//! What a subscription needs next: chunks, deltas, status, and the end of a transfer.

use std::sync::Arc;

use super::{ChunkState, Publisher, Subscription};
use crate::filter::encode_classes;
use crate::replication::message::{Announced, Begin, Chunk, Digests, End, Frame, Resume, Seq};

impl Publisher {
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
        Some(self.catch_up(subscription))
    }

    /// Moves a subscription past the deltas it missed: the chunks that they touched come again.
    /// Those that wait to be sent are announced anew, for the subscriber may have one of them
    /// from an earlier subscription, and would take it for up to date.
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
        subscription.announce(touched, self.count(), self.seq);
        let queued = subscription.queue.iter().copied().collect();
        self.announcement(Announced::Only(queued))
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
}
