//! What the prompts that were sent to a site began with.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use crate::time::Instant;

/// Beginnings that are remembered; the first that came are forgotten first.
const BEGINNINGS: usize = 512;

/// The last beginnings, and when each came first.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    first: BTreeMap<u64, Instant>,
    order: VecDeque<u64>,
}

impl Repeats {
    /// Notes a beginning; says whether it came before, at least so long ago.
    pub(super) fn note(&mut self, beginning: u64, ago: Duration, now: Instant) -> bool {
        if let Some(first) = self.first.get(&beginning) {
            return now.saturating_since(*first) >= ago;
        }
        if self.order.len() >= BEGINNINGS
            && let Some(oldest) = self.order.pop_front()
        {
            self.first.remove(&oldest);
        }
        self.first.insert(beginning, now);
        self.order.push_back(beginning);
        false
    }
}
