//! The last deltas, for subscribers that are a little behind.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::replication::message::{Delta, Seq};

/// Bytes that a delta costs beside its lists.
const DELTA_OVERHEAD: usize = 128;

/// Consecutive deltas, bounded by their bytes; the oldest are forgotten first.
#[derive(Debug)]
pub(super) struct Ring {
    deltas: VecDeque<Arc<Delta>>,
    bytes: usize,
    limit: usize,
}

impl Ring {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            deltas: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    pub(super) fn push(&mut self, delta: Arc<Delta>) {
        self.bytes += cost(&delta);
        self.deltas.push_back(delta);
        while self.bytes > self.limit
            && let Some(oldest) = self.deltas.pop_front()
        {
            self.bytes -= cost(&oldest);
        }
    }

    /// The delta that follows `seq`, unless it is forgotten or yet to come.
    pub(super) fn after(&self, seq: Seq) -> Option<&Arc<Delta>> {
        let oldest = self.deltas.front()?.base;
        let index = seq.0.checked_sub(oldest.0)?;
        self.deltas.get(usize::try_from(index).ok()?)
    }

    pub(super) fn clear(&mut self) {
        self.deltas.clear();
        self.bytes = 0;
    }
}

fn cost(delta: &Delta) -> usize {
    delta.bytes() + DELTA_OVERHEAD
}
