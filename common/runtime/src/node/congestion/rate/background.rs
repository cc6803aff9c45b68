//! Giving way to what is urgent on the same path.
//!
//! While requests are open, what a view connection sends must not stand in the queue before
//! their answers. So nothing is probed then: the window grows by little as long as the queue is
//! empty, and shrinks by as much as stands in it. Below half of the start rate only losses bring
//! it, or another's long queue would stop the view.

use std::time::Duration;

use super::{Path, Phase, Round, first_window, over};

/// What may wait in the queue. Above the noise of a busy machine, below what a reader of a
/// token stream would see.
const QUEUE: Duration = Duration::from_millis(2);
/// How long the queue may become by what is tried: what is too much is known only a round trip
/// later, so that long paths are tried less in each.
const TRIED: Duration = Duration::from_millis(6);
/// Round trips count as at least this long in that, an eighth is tried then.
const SHORT: Duration = Duration::from_millis(48);
/// Left free beyond what stood in the queue, so that it runs empty: one part of this many.
const FREE: u64 = 16;
/// Rounds after a change in which the queue is that of the time before it.
const AFTER_CHANGE: u8 = 2;

impl Path {
    /// Gives way from now on, or no more.
    pub(in super::super) fn set_background(&mut self, background: bool) {
        if self.background == background {
            return;
        }
        self.background = background;
        if background {
            let rate = self.rates.get();
            if rate > 0 {
                let fits = over(rate, self.shortest());
                self.shrink_to(fits - fits / FREE);
            }
        } else if self.phase != Phase::Unknown {
            self.phase = Phase::RISING;
        }
    }

    /// Something arrived, after so long.
    pub(super) fn grow_in_background(&mut self, bytes: u64, took: Duration) {
        let shortest = self.shortest();
        if took <= shortest + QUEUE {
            let grown = u128::from(bytes) * TRIED.as_micros() / shortest.max(SHORT).as_micros();
            let grown = u64::try_from(grown).unwrap_or(u64::MAX);
            self.set_window(self.window.saturating_add(grown).min(self.bound));
        }
    }

    /// Ends a round without many losses.
    pub(super) fn end_background_round(&mut self, round: &Round) {
        self.bound = self.bound.saturating_add(super::OWN);
        if self.held > 0 {
            self.held -= 1;
        } else if round.shortest > self.shortest() + QUEUE {
            let without = u128::from(self.window) * self.shortest().as_micros()
                / round.shortest.as_micros().max(1);
            let without = u64::try_from(without).unwrap_or(u64::MAX);
            self.shrink_to(without - without / FREE);
        }
    }

    fn shrink_to(&mut self, window: u64) {
        let least = first_window(self.limits.start / 2, self.shortest());
        if window.max(least) < self.window {
            self.set_window(window.max(least));
            self.held = AFTER_CHANGE;
        }
    }
}
