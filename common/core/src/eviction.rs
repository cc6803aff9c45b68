//! How old blocks get before a site evicts them, and what share of what it holds now will
//! still be there a while later.
//!
//! Events tell what was stored and removed, not what was used. Blocks that nobody came back
//! for are evicted at the age that an unused block can reach, blocks in use get older; so a
//! low quantile of the ages at eviction is taken for that age. It is measured on a sample
//! that hashes choose, so that memory is bounded however large a pool is.
//!
//! Only evictions count: what went with its worker, or was cleared, was not old.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use crate::block::ChainHash;
use crate::time::Instant;

/// Blocks whose age is followed, at most.
const SAMPLED: usize = 4096;
/// Evictions that count; older ones are forgotten.
const REMEMBERED: usize = 256;
/// Evictions before which nothing is said.
const ENOUGH: usize = 16;
/// Evictions of one moment that count: a prompt's blocks go together, and what is taken for
/// evictions may be the end of a worker.
const AT_ONCE: usize = 8;

/// Measures the age that unused blocks of a pool reach.
#[derive(Clone, Debug, Default)]
pub struct EvictionAges {
    /// Followed blocks, by when they were stored.
    stored: BTreeMap<ChainHash, Instant>,
    /// Only blocks whose hash ends in so many zero bits are followed.
    thinned: u32,
    /// The ages that count, in the order of the evictions, and sorted: the pool asks after
    /// every message.
    ages: VecDeque<Duration>,
    sorted: Vec<Duration>,
    last: Instant,
    /// How many of the last ones were at that moment.
    at_last: usize,
}

impl EvictionAges {
    /// A block was stored that was not there. One that is only heard of, and was stored at
    /// some time before, is not for this: it would be taken for young.
    pub fn handle_stored(&mut self, block: ChainHash, now: Instant) {
        if !self.follows(block) {
            return;
        }
        self.stored.insert(block, now);
        while self.stored.len() > SAMPLED {
            self.thinned += 1;
            let thinned = self.thinned;
            self.stored.retain(|block, _| is_sampled(*block, thinned));
        }
    }

    /// A block was evicted.
    pub fn handle_evicted(&mut self, block: ChainHash, now: Instant) {
        if !self.follows(block) {
            return;
        }
        let Some(stored) = self.stored.remove(&block) else {
            return;
        };
        if now != self.last {
            (self.last, self.at_last) = (now, 0);
        }
        self.at_last += 1;
        if self.at_last > AT_ONCE {
            return;
        }
        if self.ages.len() == REMEMBERED
            && let Some(oldest) = self.ages.pop_front()
            && let Ok(place) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(place);
        }
        let age = now.saturating_since(stored);
        self.ages.push_back(age);
        let place = self.sorted.partition_point(|known| *known < age);
        self.sorted.insert(place, age);
    }

    /// A block went for another reason.
    pub fn handle_gone(&mut self, block: ChainHash) {
        if self.follows(block) {
            self.stored.remove(&block);
        }
    }

    /// The age at which an unused block is evicted, or will be: unless that is known, `None`.
    ///
    /// When nothing has been evicted for longer, that long at least.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        if self.sorted.len() < ENOUGH {
            return None;
        }
        let age = self.sorted[self.sorted.len() / 4];
        Some(age.max(now.saturating_since(self.last)))
    }

    const fn follows(&self, block: ChainHash) -> bool {
        is_sampled(block, self.thinned)
    }
}

const fn is_sampled(block: ChainHash, thinned: u32) -> bool {
    block.0.trailing_zeros() >= thinned
}

/// Share of the blocks held now that will be there after `wait`, where unused ones are
/// evicted at this age: how long each was not used is not known, and any time is as likely.
pub fn survival(age: Duration, wait: Duration) -> f64 {
    let age = age.as_secs_f64();
    if age > 0.0 {
        (1.0 - wait.as_secs_f64() / age).max(0.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests;
