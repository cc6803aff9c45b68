//! The core's time, taken from the system's monotonic clock.

use kvgrid_core::Instant;

/// Maps the monotonic clock onto the core's time; copies agree with each other.
///
/// A process has one, made at its start, so that all instants in it can be compared.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    // Tokio's clock stands still when a test pauses it, and the core's then does too.
    origin: tokio::time::Instant,
}

impl Clock {
    /// A clock whose origin is now.
    pub fn start() -> Self {
        Self {
            origin: tokio::time::Instant::now(),
        }
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }

    /// When `at` will be, for timers. An instant beyond the system's range never comes.
    pub fn deadline(&self, at: Instant) -> tokio::time::Instant {
        let after = at.saturating_since(Instant::ZERO);
        self.origin.checked_add(after).unwrap_or_else(|| {
            // Thirty years, as tokio itself says never.
            self.origin + std::time::Duration::from_secs(86_400 * 365 * 30)
        })
    }

    /// Waits until `at`; for ever if there is no such time. Cancel safe.
    pub async fn until(&self, at: Option<Instant>) {
        match at {
            Some(at) => tokio::time::sleep_until(self.deadline(at)).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_deadline_is_reached_when_the_clock_shows_it() {
        let clock = Clock::start();
        let before = clock.now();
        let at = before + Duration::from_millis(20);

        tokio::time::sleep_until(clock.deadline(at)).await;

        assert!(clock.now() >= at);
        assert!(before < at);
    }

    #[test]
    fn the_end_of_time_is_a_deadline() {
        let clock = Clock::start();

        let never = clock.deadline(Instant::from_micros(u64::MAX));

        assert!(never > clock.deadline(Instant::from_micros(1)));
    }
}
