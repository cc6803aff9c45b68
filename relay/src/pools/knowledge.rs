//! Since when something is not known whole, and what that makes of it.

use std::time::Duration;

use kvgrid_core::Instant;
use kvgrid_core::replication::Completeness;

/// Whole, or partial since some time, or incomplete because that has lasted too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knowledge {
    partial_after: Duration,
    partial_since: Option<Instant>,
}

impl Knowledge {
    /// Partial from now on; incomplete after so long.
    pub(super) const fn partial(partial_after: Duration, now: Instant) -> Self {
        Self {
            partial_after,
            partial_since: Some(now),
        }
    }

    /// Whether all is known from now on.
    pub(super) fn set_whole(&mut self, whole: bool, now: Instant) {
        if whole {
            self.partial_since = None;
        } else {
            self.partial_since.get_or_insert(now);
        }
    }

    /// How much is known at `now`.
    pub(super) fn completeness(&self, now: Instant) -> Completeness {
        match self.partial_since {
            None => Completeness::Whole,
            Some(since) if now.saturating_since(since) >= self.partial_after => {
                Completeness::Incomplete
            }
            Some(_) => Completeness::Partial,
        }
    }

    /// When that changes by itself.
    pub(super) fn incomplete_at(&self, now: Instant) -> Option<Instant> {
        let at = self.partial_since? + self.partial_after;
        (at > now).then_some(at)
    }
}
