//! Stops sending to what keeps failing: one breaker guards one thing, such as a model at a site.
//!
//! ```text
//!            failures in a row                  cool-down over
//!   Closed -------------------> Open(until) ---------------------> HalfOpen
//!     ^                          ^                                  |    |
//!     |                          +---- a probe fails, wait longer --+    |
//!     +------------------------------------- enough probes succeed ------+
//! ```
//!
//! Half open, one request at a time is let through as a probe. Every request that is let
//! through carries a [`Pass`], with which its end is reported; passes from before the last
//! change of state say nothing about now and are ignored.
//!
//! Cool-downs double up to a limit, and start over once the breaker has stayed closed for as
//! long as that limit.
//!
//! What is a failure is the caller's to say. An answer in the 4xx range is none: it is the
//! request that is wrong, and the site that works. A client that left is neither; its pass is
//! [abandoned](Breaker::abandon).

use core::num::NonZeroU32;
use core::time::Duration;

use crate::time::Instant;

/// When a breaker opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures in a row that open it.
    pub failures: NonZeroU32,
    /// Probes in a row that must succeed to close it.
    pub probes: NonZeroU32,
    /// The first cool-down.
    pub first: Duration,
    /// The longest cool-down; also how long a probe may take before another is let through.
    pub most: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: NonZeroU32::new(5).unwrap_or(NonZeroU32::MIN),
            probes: NonZeroU32::MIN,
            first: Duration::from_secs(1),
            most: Duration::from_secs(30),
        }
    }
}

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Everything.
    Closed,
    /// Nothing before this time.
    Open {
        /// When the cool-down is over.
        until: Instant,
    },
    /// One request at a time, as a probe.
    HalfOpen,
}

/// The right to send one request, to be given back with what became of it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a probe that is not reported keeps others waiting"]
pub struct Pass {
    period: u64,
}

/// Guards one thing that may fail.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    /// Grows with every change of state; what an older pass reports is ignored.
    period: u64,
    cool_down: Duration,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Closed {
        failures: u32,
        /// None if it was never open.
        since: Option<Instant>,
    },
    /// Open until then, half open afterwards.
    Open {
        until: Instant,
        successes: u32,
        /// When the probe under way was let through.
        probe_at: Option<Instant>,
    },
}

impl Breaker {
    /// A closed breaker.
    pub const fn new(config: BreakerConfig) -> Self {
        Self {
            config,
            period: 0,
            cool_down: config.first,
            phase: Phase::Closed {
                failures: 0,
                since: None,
            },
        }
    }

    /// What is let through now.
    pub fn state(&self, now: Instant) -> State {
        match self.phase {
            Phase::Closed { .. } => State::Closed,
            Phase::Open { until, .. } if now < until => State::Open { until },
            Phase::Open { .. } => State::HalfOpen,
        }
    }

    /// Whether [`Self::admit`] would let a request through now.
    pub fn admits(&self, now: Instant) -> bool {
        match self.phase {
            Phase::Closed { .. } => true,
            Phase::Open {
                until, probe_at, ..
            } => {
                let lapsed = |at| now.saturating_since(at) >= self.config.most;
                now >= until && probe_at.is_none_or(lapsed)
            }
        }
    }

    /// Lets a request through, or not.
    pub fn admit(&mut self, now: Instant) -> Option<Pass> {
        if !self.admits(now) {
            return None;
        }
        if let Phase::Open { probe_at, .. } = &mut self.phase {
            *probe_at = Some(now);
        }
        Some(Pass {
            period: self.period,
        })
    }

    /// The request was answered; what was asked for works.
    #[expect(clippy::needless_pass_by_value, reason = "a pass is used up")]
    pub fn success(&mut self, pass: Pass, now: Instant) {
        if pass.period != self.period {
            return;
        }
        match &mut self.phase {
            Phase::Closed { failures, .. } => *failures = 0,
            Phase::Open {
                successes,
                probe_at,
                ..
            } => {
                *successes += 1;
                *probe_at = None;
                if *successes >= self.config.probes.get() {
                    self.close(now);
                }
            }
        }
    }

    /// The request failed, and not by its own fault.
    #[expect(clippy::needless_pass_by_value, reason = "a pass is used up")]
    pub fn failure(&mut self, pass: Pass, now: Instant) {
        if pass.period != self.period {
            return;
        }
        match &mut self.phase {
            Phase::Closed { failures, since } => {
                *failures += 1;
                if *failures >= self.config.failures.get() {
                    let healthy = |since| now.saturating_since(since) >= self.config.most;
                    let cool_down = if since.is_none_or(healthy) {
                        self.config.first
                    } else {
                        self.longer()
                    };
                    self.open(cool_down, now);
                }
            }
            Phase::Open { .. } => self.open(self.longer(), now),
        }
    }

    /// The request ended without saying anything about what it was sent to.
    #[expect(clippy::needless_pass_by_value, reason = "a pass is used up")]
    pub fn abandon(&mut self, pass: Pass) {
        if let Phase::Open { probe_at, .. } = &mut self.phase
            && pass.period == self.period
        {
            *probe_at = None;
        }
    }

    fn longer(&self) -> Duration {
        self.cool_down.saturating_mul(2)
    }

    fn open(&mut self, cool_down: Duration, now: Instant) {
        self.period += 1;
        self.cool_down = cool_down.min(self.config.most);
        self.phase = Phase::Open {
            until: now + self.cool_down,
            successes: 0,
            probe_at: None,
        };
    }

    fn close(&mut self, now: Instant) {
        self.period += 1;
        self.phase = Phase::Closed {
            failures: 0,
            since: Some(now),
        };
    }
}

#[cfg(test)]
mod tests;
