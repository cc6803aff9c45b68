//! When what has ended is tried again.

use std::time::Duration;

use kvgrid_core::backoff::{Backoff, BackoffConfig};
use kvgrid_runtime::{Clock, luck};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

/// Waits that grow while a thing keeps failing.
pub(crate) struct Retry {
    backoff: Backoff,
    clock: Clock,
    rng: SmallRng,
}

impl Retry {
    pub(crate) fn new((clock, luck): (Clock, u64)) -> Self {
        Self::with(BackoffConfig::default(), (clock, luck))
    }

    /// For a service that others beside us depend on, so that it is back soon.
    pub(crate) fn of_service() -> Self {
        let config = BackoffConfig {
            most: Duration::from_secs(5),
            healthy_after: Duration::from_secs(5),
            ..BackoffConfig::default()
        };
        Self::with(config, (Clock::start(), luck()))
    }

    fn with(config: BackoffConfig, (clock, luck): (Clock, u64)) -> Self {
        Self {
            backoff: Backoff::new(config),
            clock,
            rng: SmallRng::seed_from_u64(luck),
        }
    }

    /// It works.
    pub(crate) fn note_up(&mut self) {
        self.backoff.handle_up(self.clock.now());
    }

    /// It has ended, or could not begin; says how long to wait.
    pub(crate) fn next_delay(&mut self) -> Duration {
        self.backoff.handle_down(self.clock.now());
        self.backoff.next_delay(&mut self.rng)
    }
}
