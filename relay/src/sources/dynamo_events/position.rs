//! Where a feed stands in its publisher's life, by two counts: the publisher's messages, and
//! each rank's events. A hole in either means that something was lost for good.

use std::collections::BTreeMap;

use kvgrid_core::event::dynamo::{FIRST_EVENT, RankEvent};

/// What a message means for what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is the publisher's very first one.
    First,
    /// It is the first that was heard, but not the first there was.
    Late,
    /// It follows the one before.
    Next,
    /// Something between it and the one before was lost.
    Gap,
}

/// A place in a publisher's life.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The sequence to come, once one was heard.
    next: Option<u64>,
    /// The number to come, by rank.
    events: BTreeMap<u32, u64>,
}

impl Position {
    /// Judges a message, and stands behind it from now on. `events` are of ranks that the
    /// caller bounds.
    pub(super) fn advance(&mut self, sequence: u64, events: &[RankEvent]) -> Step {
        let expected = self.next.replace(sequence.saturating_add(1));
        let mut numbers = true;
        for event in events {
            let next = event.number.saturating_add(1);
            let expected = self.events.insert(event.rank, next);
            // Some count from 0, if they count otherwise than they should.
            let begins = event.number <= FIRST_EVENT;
            numbers &= expected.map_or(begins, |expected| event.number == expected);
        }
        match expected {
            None if sequence == 0 && numbers => Step::First,
            None => Step::Late,
            Some(expected) if sequence == expected && numbers => Step::Next,
            Some(_) => Step::Gap,
        }
    }

    /// Whether nothing was heard yet.
    pub(super) const fn is_new(&self) -> bool {
        self.next.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(numbers: impl IntoIterator<Item = (u32, u64)>) -> Vec<RankEvent> {
        let event = |(rank, number)| RankEvent {
            worker: 1,
            rank,
            number,
            event: None,
        };
        numbers.into_iter().map(event).collect()
    }

    #[test]
    fn a_life_that_is_heard_from_its_first_message_has_no_holes() {
        let mut position = Position::default();

        assert_eq!(position.advance(0, &events([(0, 1), (0, 2)])), Step::First);
        assert_eq!(position.advance(1, &events([(0, 3)])), Step::Next);
        assert_eq!(position.advance(2, &[]), Step::Next);
        assert_eq!(position.advance(3, &events([(0, 4)])), Step::Next);
    }

    #[test]
    fn ranks_count_for_themselves() {
        let mut position = Position::default();

        assert_eq!(position.advance(0, &events([(0, 1), (1, 1)])), Step::First);
        assert_eq!(position.advance(1, &events([(1, 2), (0, 2)])), Step::Next);
        assert_eq!(position.advance(2, &events([(2, 5)])), Step::Gap);
    }

    #[test]
    fn a_missing_message_or_event_is_a_gap_and_what_follows_it_is_not() {
        let mut position = Position::default();
        position.advance(0, &events([(0, 1)]));

        assert_eq!(position.advance(2, &events([(0, 3)])), Step::Gap);
        assert_eq!(position.advance(3, &events([(0, 4)])), Step::Next);
        assert_eq!(position.advance(4, &events([(0, 6)])), Step::Gap);
        assert_eq!(position.advance(5, &events([(0, 7)])), Step::Next);
    }

    #[test]
    fn a_life_that_is_joined_late_says_so_by_either_count() {
        assert_eq!(Position::default().advance(7, &[]), Step::Late);
        assert_eq!(
            Position::default().advance(0, &events([(0, 4)])),
            Step::Late
        );
    }
}
