//! When to subscribe again after something went wrong.

use core::time::Duration;

use crate::time::Instant;

const FIRST: Duration = Duration::from_millis(100);
const MOST_DOUBLINGS: u32 = 7;
/// Trouble this long after the last is new trouble.
const FORGET_AFTER: Duration = Duration::from_secs(30);

/// Delays that double while trouble goes on: none, 0.1 s, 0.2 s and so on to 12.8 s.
#[derive(Debug, Default)]
pub(super) struct Retry {
    troubles: u32,
    last: Option<Instant>,
}

impl Retry {
    /// When to try again after trouble at `now`.
    pub(super) fn after_trouble(&mut self, now: Instant) -> Instant {
        let calm = |last| now.saturating_since(last) > FORGET_AFTER;
        if self.last.is_none_or(calm) {
            self.troubles = 0;
        }
        self.troubles = self.troubles.saturating_add(1);
        let at = match self.troubles.checked_sub(2) {
            None => now,
            Some(doublings) => now + FIRST * 2_u32.pow(doublings.min(MOST_DOUBLINGS)),
        };
        self.last = Some(at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_are_forgotten_in_calm() {
        let mut retry = Retry::default();
        let now = Instant::from_micros(1_000_000);
        let mut delay = |now| retry.after_trouble(now).saturating_since(now).as_millis();

        assert_eq!([(); 4].map(|()| delay(now)), [0, 100, 200, 400]);
        assert_eq!([(); 20].map(|()| delay(now))[19], 12_800);
        assert_eq!(delay(now + Duration::from_secs(60)), 0);
    }
}
