//! The breakers of all models at all relays, and the snapshot of them that decisions read.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use kvgrid_core::Instant;
use kvgrid_core::breaker::{Breaker, BreakerConfig, Pass, State};
use kvgrid_core::id::{ModelId, RelayId};
use kvgrid_core::routing::Breakers;
use tracing::{info, warn};

use crate::config::RetryTable;

/// What a request that ended says of the relay it was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It works.
    Success,
    /// It does not.
    Failure,
    /// Nothing.
    None,
}

/// Breakers, made when first needed: as many as there are models at relays that this edge has
/// sent requests to.
#[derive(Debug)]
pub(super) struct BreakerBoard {
    config: BreakerConfig,
    /// Taken for an instant when a request begins and when it ends, never by decisions.
    breakers: Mutex<BTreeMap<(RelayId, ModelId), Breaker>>,
    published: ArcSwap<Breakers>,
}

impl BreakerBoard {
    pub(super) fn new(retry: &RetryTable) -> Self {
        Self {
            config: BreakerConfig {
                failures: NonZeroU32::new(retry.failures).unwrap_or(NonZeroU32::MIN),
                first: retry.breaker_min,
                most: retry.breaker_max,
                ..BreakerConfig::default()
            },
            breakers: Mutex::default(),
            published: ArcSwap::default(),
        }
    }

    /// What decisions read.
    pub(super) fn snapshot(&self) -> Guard<Arc<Breakers>> {
        self.published.load()
    }

    /// Lets a request through, or not.
    pub(super) fn admit(&self, relay: &RelayId, model: ModelId, now: Instant) -> Option<Pass> {
        self.with(relay, model, now, |breaker| breaker.admit(now))
    }

    /// Takes back a pass, with what became of the request.
    pub(super) fn settle(
        &self,
        relay: &RelayId,
        model: ModelId,
        (pass, verdict): (Pass, Verdict),
        now: Instant,
    ) {
        self.with(relay, model, now, |breaker| match verdict {
            Verdict::Success => breaker.success(pass, now),
            Verdict::Failure => breaker.failure(pass, now),
            Verdict::None => breaker.abandon(pass),
        });
    }

    fn with<T>(
        &self,
        relay: &RelayId,
        model: ModelId,
        now: Instant,
        change: impl FnOnce(&mut Breaker) -> T,
    ) -> T {
        // A breaker is whole after each of its steps, so a panic elsewhere can't spoil it.
        let mut breakers = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        let breaker = breakers
            .entry((relay.clone(), model))
            .or_insert_with(|| Breaker::new(self.config));
        let result = change(breaker);
        let until = self.blocked_until(breaker, now);
        // Still under the lock, so that snapshots are published in the order of the changes.
        self.publish(relay, model, until);
        result
    }

    fn blocked_until(&self, breaker: &Breaker, now: Instant) -> Option<Instant> {
        match breaker.state(now) {
            State::Closed => None,
            State::Open { until } => Some(until),
            State::HalfOpen if breaker.admits(now) => Some(now),
            // A probe is under way: no other is let through until it is told of, or lapses.
            State::HalfOpen => Some(now + self.config.most),
        }
    }

    fn publish(&self, relay: &RelayId, model: ModelId, until: Option<Instant>) {
        let published = self.published.load();
        let before = published.until(relay, model);
        if before == until {
            return;
        }
        let mut breakers = Breakers::clone(&published);
        match until {
            Some(until) => {
                breakers.open(relay, model, until);
                if before.is_none() {
                    warn!(%relay, model = model.0, "Breaker opened");
                }
            }
            None => {
                breakers.close(relay, model);
                info!(%relay, model = model.0, "Breaker closed");
            }
        }
        self.published.store(Arc::new(breakers));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MODEL: ModelId = ModelId(1);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn relay() -> RelayId {
        RelayId::new("fra-1").unwrap()
    }

    /// A board whose breaker is open from 0 to 10 seconds.
    fn opened() -> BreakerBoard {
        let board = BreakerBoard::new(&RetryTable {
            failures: 1,
            breaker_min: Duration::from_secs(10),
            breaker_max: Duration::from_secs(40),
            ..RetryTable::default()
        });
        send(&board, 0, Verdict::Failure);
        board
    }

    fn send(board: &BreakerBoard, seconds: u64, verdict: Verdict) {
        let pass = board.admit(&relay(), MODEL, at(seconds)).unwrap();
        board.settle(&relay(), MODEL, (pass, verdict), at(seconds));
    }

    fn allows(board: &BreakerBoard, seconds: u64) -> bool {
        board.snapshot().allows(&relay(), MODEL, at(seconds))
    }

    #[test]
    fn decisions_see_an_open_breaker_until_its_time() {
        let board = opened();

        assert!(!allows(&board, 9));
        assert!(allows(&board, 10));
    }

    #[test]
    fn while_a_probe_is_under_way_no_other_is_let_through() {
        let board = opened();

        let probe = board.admit(&relay(), MODEL, at(10)).unwrap();
        assert!(!allows(&board, 11));
        assert_eq!(board.admit(&relay(), MODEL, at(11)), None);

        board.settle(&relay(), MODEL, (probe, Verdict::Success), at(12));
        assert!(allows(&board, 12));
        assert_eq!(*board.snapshot().as_ref(), Breakers::default());
    }

    #[test]
    fn a_probe_that_says_nothing_makes_room_for_the_next() {
        let board = opened();

        send(&board, 10, Verdict::None);

        assert!(allows(&board, 11));
    }

    #[test]
    fn a_failed_probe_keeps_requests_away_for_longer() {
        let board = opened();

        send(&board, 10, Verdict::Failure);

        assert!(!allows(&board, 29));
        assert!(allows(&board, 30));
    }
}
