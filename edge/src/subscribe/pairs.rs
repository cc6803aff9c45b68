//! Puts the two connections together that a relay has dialled.

use std::collections::BTreeMap;
use std::time::Duration;

use kvgrid_core::{Instant, RelayId};

/// Halves that wait at a time, one for each relay; those that are too many are turned away.
const WAITING: usize = 256;

/// How long a half waits for the other. The relay dials them one after the other, each of
/// which it gives up after this time.
const WAIT: Duration = Duration::from_secs(5);

/// Which of a relay's connections it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    View,
    Request,
}

/// What has become of a half.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Met<T> {
    /// The other half was there already.
    Pair { view: T, request: T },
    /// It waits for the other; what has waited in its place is not needed any more.
    Waits { replaced: Option<T> },
    /// Too many wait.
    Full(T),
}

/// Connections that wait for their other half.
#[derive(Debug)]
pub(super) struct Pairs<T>(BTreeMap<RelayId, Waiting<T>>);

#[derive(Debug)]
struct Waiting<T> {
    half: Half,
    connection: T,
    until: Instant,
}

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Pairs<T> {
    /// A relay has dialled one half.
    pub(super) fn handle_half(
        &mut self,
        relay: RelayId,
        half: Half,
        connection: T,
        now: Instant,
    ) -> Met<T> {
        if self.0.len() >= WAITING && !self.0.contains_key(&relay) {
            return Met::Full(connection);
        }
        let older = self.0.remove(&relay);
        match older {
            Some(other) if other.half != half && other.until > now => match half {
                Half::View => Met::Pair {
                    view: connection,
                    request: other.connection,
                },
                Half::Request => Met::Pair {
                    view: other.connection,
                    request: connection,
                },
            },
            older => {
                let until = now + WAIT;
                let waiting = Waiting {
                    half,
                    connection,
                    until,
                };
                self.0.insert(relay, waiting);
                let replaced = older.map(|older| older.connection);
                Met::Waits { replaced }
            }
        }
    }

    /// Forgets the half of a relay that waits, if it is of no use any more.
    pub(super) fn forget_if(&mut self, relay: &RelayId, useless: impl FnOnce(&T) -> bool) {
        let waiting = self.0.get(relay);
        if waiting.is_some_and(|waiting| useless(&waiting.connection)) {
            self.0.remove(relay);
        }
    }

    /// When [`Self::poll_late`] may have something.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.values().map(|waiting| waiting.until).min()
    }

    /// A half whose other one did not come in time.
    pub(super) fn poll_late(&mut self, now: Instant) -> Option<T> {
        let is_late = |waiting: &Waiting<T>| waiting.until <= now;
        let (relay, _) = self.0.iter().find(|(_, waiting)| is_late(waiting))?;
        let relay = relay.clone();
        self.0.remove(&relay).map(|waiting| waiting.connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(name: &str) -> RelayId {
        RelayId::new(name).unwrap()
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn two_halves_of_one_relay_meet_in_any_order() {
        let mut pairs = Pairs::default();
        for [(first, a), (second, b)] in [
            [(Half::View, "view"), (Half::Request, "request")],
            [(Half::Request, "request"), (Half::View, "view")],
        ] {
            let waits = Met::Waits { replaced: None };
            assert_eq!(pairs.handle_half(relay("a"), first, a, at(0)), waits);
            assert_eq!(pairs.handle_half(relay("b"), second, "b's", at(0)), waits);

            let met = pairs.handle_half(relay("a"), second, b, at(1));

            let (view, request) = ("view", "request");
            assert_eq!(met, Met::Pair { view, request });
            assert_eq!(pairs.poll_late(at(100)), Some("b's"));
        }
    }

    #[test]
    fn a_newer_half_takes_the_place_of_the_same_older_one() {
        let mut pairs = Pairs::default();
        pairs.handle_half(relay("a"), Half::View, 1, at(0));

        let again = pairs.handle_half(relay("a"), Half::View, 2, at(1));
        let met = pairs.handle_half(relay("a"), Half::Request, 3, at(2));

        assert_eq!(again, Met::Waits { replaced: Some(1) });
        let (view, request) = (2, 3);
        assert_eq!(met, Met::Pair { view, request });
        assert_eq!(pairs.poll_timeout(), None);
    }

    #[test]
    fn a_half_does_not_wait_for_ever() {
        let mut pairs = Pairs::default();
        pairs.handle_half(relay("a"), Half::View, 1, at(0));
        assert_eq!(pairs.poll_timeout(), Some(at(5)));
        assert_eq!(pairs.poll_late(at(4)), None);

        let late = pairs.handle_half(relay("a"), Half::Request, 2, at(5));

        assert_eq!(late, Met::Waits { replaced: Some(1) });
        assert_eq!(pairs.poll_late(at(10)), Some(2));
        assert_eq!(pairs.poll_late(at(10)), None);
    }

    #[test]
    fn a_half_that_is_dead_waits_no_longer() {
        let mut pairs = Pairs::default();
        pairs.handle_half(relay("a"), Half::View, 1, at(0));

        pairs.forget_if(&relay("a"), |half| *half == 2);
        assert_eq!(pairs.poll_timeout(), Some(at(5)));
        pairs.forget_if(&relay("a"), |half| *half == 1);

        assert_eq!(pairs.poll_timeout(), None);
    }

    #[test]
    fn halves_beyond_the_bound_are_turned_away() {
        let mut pairs = Pairs::default();
        for n in 0..WAITING {
            pairs.handle_half(relay(&format!("r{n}")), Half::View, n, at(0));
        }

        let met = pairs.handle_half(relay("late"), Half::View, WAITING, at(1));
        let known = pairs.handle_half(relay("r0"), Half::Request, 1_000, at(1));

        assert_eq!(met, Met::Full(WAITING));
        let (view, request) = (0, 1_000);
        assert_eq!(known, Met::Pair { view, request });
    }
}
