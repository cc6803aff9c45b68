//! One subscriber, as far as the publisher needs to know it.

use std::collections::BTreeSet;

use super::sources::Version;
use crate::replication::message::{Epoch, Resume, Seq};

/// Where a subscriber stands. It belongs to the subscriber's session, which hands it in with
/// every poll; the publisher keeps nothing of it.
#[derive(Debug, Default)]
pub struct Subscription {
    /// What the subscriber said it has, until that was answered.
    pub(super) resume: Option<Resume>,
    /// The epoch that was begun.
    pub(super) epoch: Option<Epoch>,
    /// Deltas up to here are polled.
    pub(super) cursor: Seq,
    /// Chunks to be sent.
    pub(super) queue: BTreeSet<u32>,
    /// At which sequence each chunk was cut; empty while no transfer is going on.
    pub(super) cuts: Vec<Seq>,
    /// Whether the end of what was announced was said.
    pub(super) ended: bool,
    /// What was told of the sources.
    pub(super) status: Option<Version>,
    /// Whether the digests are wanted.
    pub(super) audit: bool,
}

impl Subscription {
    /// Wants the digests of all chunks, in order with the deltas.
    pub const fn request_audit(&mut self) {
        self.audit = true;
    }

    /// Chunks that wait to be polled.
    pub fn queued_chunks(&self) -> usize {
        self.queue.len()
    }

    /// Starts a transfer of these chunks at `seq`.
    pub(super) fn announce(&mut self, chunks: impl IntoIterator<Item = u32>, of: u32, seq: Seq) {
        self.queue.extend(chunks);
        self.cuts.resize(of as usize, Seq::default());
        self.cursor = seq;
        self.ended = false;
    }

    /// The sequence up to which the subscriber has, or will have, all of a chunk's operations.
    pub(super) fn covered(&self, chunk: u32) -> Seq {
        let cut = self.cuts.get(chunk as usize).copied();
        cut.unwrap_or_default().max(self.cursor)
    }

    /// Forgets the transfer: all that was announced is sent.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.cuts = Vec::new();
    }
}
