//! Delays between attempts at something that fails.
//!
//! Delays double from the first to the most, and each is drawn anew from the upper half of its
//! range, so that many nodes that lost the same peer don't come back in step. The count of
//! failures starts over only when an attempt has stayed up for a while: what comes up and falls
//! at once is still failing.

use core::time::Duration;

use rand::{Rng, RngExt};

use crate::time::Instant;

/// How delays grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// The delay after the first failure.
    pub first: Duration,
    /// The longest delay.
    pub most: Duration,
    /// How long an attempt must stay up for its end to count as a first failure.
    pub healthy_after: Duration,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            most: Duration::from_secs(10),
            healthy_after: Duration::from_secs(30),
        }
    }
}

/// The delays of one thing that is attempted again and again.
#[derive(Clone, Debug)]
pub struct Backoff {
    config: BackoffConfig,
    failures: u32,
    up_since: Option<Instant>,
}

impl Backoff {
    /// No failures yet.
    pub fn new(config: BackoffConfig) -> Self {
        Self {
            config,
            failures: 0,
            up_since: None,
        }
    }

    /// The attempt succeeded.
    pub fn handle_up(&mut self, now: Instant) {
        self.up_since = Some(now);
    }

    /// What was up is down.
    pub fn handle_down(&mut self, now: Instant) {
        if let Some(since) = self.up_since.take()
            && now.saturating_since(since) >= self.config.healthy_after
        {
            self.failures = 0;
        }
    }

    /// Counts a failure and says how long to wait before the next attempt.
    pub fn next_delay(&mut self, rng: &mut impl Rng) -> Duration {
        let doubled = 2_u32.saturating_pow(self.failures);
        self.failures = self.failures.saturating_add(1);
        let range = self.config.first.saturating_mul(doubled);
        range
            .min(self.config.most)
            .mul_f64(rng.random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    proptest! {
        #[test]
        fn a_delay_is_between_half_its_range_and_its_range(seed: u64, failures in 0_u32..80) {
            let config = BackoffConfig::default();
            let mut backoff = Backoff::new(config);
            let mut rng = SmallRng::seed_from_u64(seed);
            for failure in 0..failures {
                let range = config.first.as_secs_f64() * 2_f64.powi(i32::try_from(failure).unwrap());
                let range = range.min(config.most.as_secs_f64());

                let delay = backoff.next_delay(&mut rng).as_secs_f64();

                prop_assert!(delay >= range * 0.499 && delay <= range * 1.001, "{failure}: {delay}");
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Up,
        Down,
        Fail,
        Wait(u64),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            1 => Just(Op::Up),
            1 => Just(Op::Down),
            4 => Just(Op::Fail),
            1 => (0_u64..20_000).prop_map(Op::Wait),
        ];
        prop::collection::vec(op, 0..100)
    }

    proptest! {
        #[test]
        fn delays_follow_the_failures_since_the_last_healthy_time(seed: u64, ops in ops()) {
            let mut backoff = Backoff::new(BackoffConfig::default());
            let mut rng = SmallRng::seed_from_u64(seed);
            let (mut now, mut up_at, mut failures) = (0_u64, None::<u64>, 0_u32);

            for op in ops {
                let instant = Instant::from_micros(now * 1_000);
                match op {
                    Op::Wait(ms) => now += ms,
                    Op::Up => {
                        up_at = Some(now);
                        backoff.handle_up(instant);
                    }
                    Op::Down => {
                        if up_at.take().is_some_and(|at| now - at >= 30_000) {
                            failures = 0;
                        }
                        backoff.handle_down(instant);
                    }
                    Op::Fail => {
                        let range = Duration::from_millis(100 * 2_u64.pow(failures.min(7)));
                        let range = range.min(Duration::from_secs(10));
                        failures += 1;

                        let delay = backoff.next_delay(&mut rng);

                        prop_assert!(delay >= range.mul_f64(0.499) && delay <= range, "{delay:?} of {range:?}");
                    }
                }
            }
        }
    }

    fn delay_after(up: Duration) -> Duration {
        let mut backoff = Backoff::new(BackoffConfig::default());
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..20 {
            backoff.next_delay(&mut rng);
        }
        backoff.handle_up(Instant::ZERO);
        backoff.handle_down(Instant::ZERO + up);
        backoff.next_delay(&mut rng)
    }

    #[test]
    fn a_healthy_time_starts_the_delays_over() {
        assert!(delay_after(Duration::from_secs(30)) <= Duration::from_millis(100));
    }

    #[test]
    fn what_falls_at_once_waits_on() {
        assert!(delay_after(Duration::from_secs(29)) >= Duration::from_secs(5));
    }
}
