//! Chunks that overtook their announcement.

use std::collections::VecDeque;

use crate::replication::message::{Chunk, Epoch, Seq};

/// Chunks nobody has asked for yet; bounded, the oldest are dropped first.
#[derive(Debug, Default)]
pub(super) struct Early {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    dropped: bool,
}

impl Early {
    /// Keeps a chunk, within `limit` bytes.
    pub(super) fn keep(&mut self, chunk: Chunk, limit: usize) {
        self.bytes += cost(&chunk);
        self.chunks.push_back(chunk);
        while self.bytes > limit
            && let Some(oldest) = self.chunks.pop_front()
        {
            self.bytes -= cost(&oldest);
            self.dropped = true;
        }
    }

    /// Takes out the chunks of an epoch that were cut at `seq` or later, and forgets its older
    /// ones. Those of another epoch stay: its announcement may be the next.
    pub(super) fn take(&mut self, epoch: Epoch, seq: Seq) -> Vec<Chunk> {
        let all = std::mem::take(&mut self.chunks);
        let (of_epoch, others): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|chunk| chunk.epoch == epoch);
        self.bytes = others.iter().map(cost).sum();
        self.chunks = others;
        let new_enough = |chunk: &Chunk| chunk.cut >= seq;
        of_epoch.into_iter().filter(new_enough).collect()
    }

    /// Whether a chunk was dropped for want of room.
    pub(super) const fn dropped(&self) -> bool {
        self.dropped
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Bytes that a chunk takes, so that chunks without content are bounded as well.
fn cost(chunk: &Chunk) -> usize {
    chunk.classes.len() + 128
}
