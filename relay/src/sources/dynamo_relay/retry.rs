//! When a stream that ended is asked for again.

use std::time::Duration;

use kvgrid_core::backoff::{Backoff, BackoffConfig};
use kvgrid_runtime::Clock;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

/// Waits that grow while a stream keeps failing.
pub(super) struct Retry {
    backoff: Backoff,
    clock: Clock,
    rng: SmallRng,
}

impl Retry {
    pub(super) fn new((clock, luck): (Clock, u64)) -> Self {
        Self {
            backoff: Backoff::new(BackoffConfig::default()),
            clock,
            rng: SmallRng::seed_from_u64(luck),
        }
    }

    /// The stream says something.
    pub(super) fn note_up(&mut self) {
        self.backoff.handle_up(self.clock.now());
    }

    /// The stream has ended; says how long to wait.
    pub(super) fn next_delay(&mut self) -> Duration {
        self.backoff.handle_down(self.clock.now());
        self.backoff.next_delay(&mut self.rng)
    }
}
