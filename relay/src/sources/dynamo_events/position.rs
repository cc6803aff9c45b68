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
    /// The number to come, by rank, of those that were heard since the last hole.
    events: BTreeMap<u32, u64>,
    /// Whether there was a hole, so that other ranks may have counted on unheard.
    holed: bool,
}

impl Position {
    /// Judges a message, and stands behind it from now on. `events` are of ranks that the
    /// caller bounds; what is before a hole among them is taken out.
    pub(super) fn advance(&mut self, sequence: u64, events: &mut [RankEvent]) -> Step {
        let expected = self.next.replace(sequence.saturating_add(1));
        let follows = expected.unwrap_or(0) == sequence;
        if !follows {
            self.forget_ranks();
        }
        let hole = (0..events.len())
            .filter(|at| !self.fits(&events[*at]))
            .last();
        if let Some(hole) = hole {
            events[..hole].iter_mut().for_each(|it| it.event = None);
            // Nothing is known any more of the others, so what they have missed is no news.
            self.holed = true;
            self.events
                .retain(|rank, _| events.iter().any(|it| it.rank == *rank));
        }
        match expected {
            None if follows && hole.is_none() => Step::First,
            None => Step::Late,
            Some(_) if follows && hole.is_none() => Step::Next,
            Some(_) => Step::Gap,
        }
    }

    /// Whether an event is the next one of its rank.
    fn fits(&mut self, event: &RankEvent) -> bool {
        let next = event.number.saturating_add(1);
        match self.events.insert(event.rank, next) {
            Some(expected) => event.number == expected,
            // Some count from 0, if they count otherwise than they should.
            None => self.holed || event.number <= FIRST_EVENT,
        }
    }

    /// Events of unknown number were lost: each rank goes on wherever it does.
    pub(super) fn forget_ranks(&mut self) {
        self.events.clear();
        self.holed = true;
    }

    /// Whether nothing was heard yet.
    pub(super) const fn is_new(&self) -> bool {
        self.next.is_none()
    }
}

#[cfg(test)]
mod tests {
    use kvgrid_core::event::KvEvent;

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

        assert_eq!(
            position.advance(0, &mut events([(0, 1), (0, 2)])),
            Step::First
        );
        assert_eq!(position.advance(1, &mut events([(0, 3)])), Step::Next);
        assert_eq!(position.advance(2, &mut []), Step::Next);
        assert_eq!(position.advance(3, &mut events([(0, 4)])), Step::Next);
    }

    #[test]
    fn ranks_count_for_themselves() {
        let mut position = Position::default();

        assert_eq!(
            position.advance(0, &mut events([(0, 1), (1, 1)])),
            Step::First
        );
        assert_eq!(
            position.advance(1, &mut events([(1, 2), (0, 2)])),
            Step::Next
        );
        assert_eq!(position.advance(2, &mut events([(2, 5)])), Step::Gap);
    }

    #[test]
    fn a_missing_message_or_event_is_a_gap_and_what_follows_it_is_not() {
        let mut position = Position::default();
        position.advance(0, &mut events([(0, 1)]));

        assert_eq!(position.advance(2, &mut events([(0, 3)])), Step::Gap);
        assert_eq!(position.advance(3, &mut events([(0, 4)])), Step::Next);
        assert_eq!(position.advance(4, &mut events([(0, 6)])), Step::Gap);
        assert_eq!(position.advance(5, &mut events([(0, 7)])), Step::Next);
    }

    #[test]
    fn a_life_that_is_joined_late_says_so_by_either_count() {
        assert_eq!(Position::default().advance(7, &mut []), Step::Late);
        assert_eq!(
            Position::default().advance(0, &mut events([(0, 4)])),
            Step::Late
        );
    }

    #[test]
    fn one_hole_is_one_gap_for_all_ranks() {
        let mut position = Position::default();
        position.advance(0, &mut events([(0, 1), (1, 1)]));

        assert_eq!(position.advance(2, &mut events([(0, 3)])), Step::Gap);
        assert_eq!(position.advance(3, &mut events([(1, 5)])), Step::Next);
        assert_eq!(position.advance(4, &mut events([(1, 7)])), Step::Gap);
        assert_eq!(position.advance(5, &mut events([(0, 9)])), Step::Next);
    }

    #[test]
    fn a_life_of_several_ranks_is_joined_late_once() {
        let mut position = Position::default();

        assert_eq!(position.advance(7, &mut events([(0, 4)])), Step::Late);
        assert_eq!(position.advance(8, &mut events([(1, 9)])), Step::Next);
    }

    #[test]
    fn what_is_before_a_hole_in_a_message_is_not_believed() {
        let mut position = Position::default();
        position.advance(0, &mut events([(0, 1)]));
        let mut around = events([(0, 2), (0, 4), (0, 5)]);
        for event in &mut around {
            event.event = Some(KvEvent::Cleared);
        }

        assert_eq!(position.advance(1, &mut around), Step::Gap);

        let kept: Vec<_> = around.iter().map(|it| it.event.is_some()).collect();
        assert_eq!(kept, [false, true, true]);
    }
}
