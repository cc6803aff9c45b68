//! When a relay is told that what it sends of its cache is to give way.
//!
//! It gives way while requests are open and a while longer, so that it doesn't come back in
//! force between one request and the next.

use std::time::Duration;

use kvgrid_core::Instant;

/// Without open requests for so long, bulk may have the whole path.
const LINGER: Duration = Duration::from_secs(2);

/// What a relay was told.
#[derive(Debug, Default)]
pub(super) struct Background {
    told: bool,
    open_at: Option<Instant>,
}

impl Background {
    /// What to tell when the first request has come.
    pub(super) fn begin(&mut self, now: Instant) -> Option<bool> {
        self.open_at = Some(now);
        if self.told {
            return None;
        }
        self.told = true;
        Some(true)
    }

    /// What to tell now and then: the same again, as the connection may have moved to a path
    /// that knows nothing of it.
    pub(super) fn tick(&mut self, open: bool, now: Instant) -> Option<bool> {
        if open {
            self.open_at = Some(now);
        }
        let told = self.told;
        self.told = self
            .open_at
            .is_some_and(|at| now.saturating_since(at) < LINGER);
        (self.told || told).then_some(self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_told_of_the_first_request_and_of_two_seconds_without_any() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut background = Background::default();
        assert_eq!(background.tick(false, at(0)), None);

        assert_eq!(background.begin(at(100)), Some(true));
        assert_eq!(background.begin(at(200)), None);
        assert_eq!(background.tick(true, at(500)), Some(true));
        assert_eq!(background.tick(false, at(2_000)), Some(true));
        assert_eq!(background.tick(false, at(2_500)), Some(false));
        assert_eq!(background.tick(false, at(3_000)), None);
        assert_eq!(background.begin(at(3_100)), Some(true));
    }
}
