//! Where a feed stands in its publisher's life: what comes next, what is missing, and whether
//! it is still the same life.
//!
//! A publisher counts its messages from 0 and tells nothing else about itself. After a new
//! connection it is taken for the same one only if it replays our last message byte for byte
//! (each holds the engine's clock). On one connection a live sequence never falls, because a
//! restart closes connections.

use std::hash::{DefaultHasher, Hasher};

/// What to do with a live message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Live {
    /// The life has not begun here yet: replay first, or begin with it.
    First,
    /// Apply it.
    Apply,
    /// It would be the next, if it is the same life: only a replay can prove that.
    Unproven,
    /// It was applied before.
    Known,
    /// Messages before it are missing.
    Gap,
    /// Another life has begun.
    OtherLife,
}

/// What to do with a replayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replayed {
    /// Apply it; it may be the life's first.
    Apply,
    /// It was applied before.
    Known,
    /// Messages before it are missing.
    Gap,
    /// Our last message is not in this life.
    OtherLife,
}

/// A place in a publisher's life.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The sequence to come; `None` before the life has begun here.
    next: Option<u64>,
    last: Option<Applied>,
    /// The last live sequence on this connection.
    live: Option<u64>,
    /// Whether the life may have changed unseen since the last message.
    unverified: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Applied {
    sequence: u64,
    digest: u64,
}

impl Position {
    /// A new connection was made: whoever answers may be someone else.
    pub(super) fn connected(&mut self) {
        self.live = None;
        self.unverified = self.last.is_some();
    }

    /// The next sequence, once the life has begun.
    pub(super) fn next(&self) -> Option<u64> {
        self.next
    }

    /// Whether everything before this sequence was applied, for certain of the same life.
    pub(super) fn has_all_before(&self, sequence: u64) -> bool {
        !self.unverified && self.next.is_some_and(|next| next >= sequence)
    }

    /// From where to replay: our last message again, to see that it is the same life.
    pub(super) fn replay_from(&self) -> u64 {
        self.last.map_or(0, |last| last.sequence)
    }

    /// Judges a live message.
    pub(super) fn live(&mut self, sequence: u64) -> Live {
        let before = self.live.replace(sequence);
        let Some(next) = self.next else {
            return Live::First;
        };
        if before.is_some_and(|before| sequence <= before) {
            Live::OtherLife
        } else if sequence == next {
            match self.unverified {
                true => Live::Unproven,
                false => Live::Apply,
            }
        } else if sequence > next {
            Live::Gap
        } else if self.unverified {
            // No replay could tell who this is, but our publisher was further on.
            Live::OtherLife
        } else {
            Live::Known
        }
    }

    /// Judges a message of a replay; `first` says that it is the replay's first one.
    pub(super) fn replayed(&mut self, first: bool, sequence: u64, payload: &[u8]) -> Replayed {
        if first && let Some(last) = self.last {
            let same = last == Applied::new(sequence, payload);
            if !same && (sequence <= last.sequence || self.unverified) {
                return Replayed::OtherLife;
            }
            self.unverified = false;
        }
        match self.next {
            None => Replayed::Apply,
            Some(next) if sequence == next => Replayed::Apply,
            Some(next) if sequence > next => Replayed::Gap,
            Some(_) => Replayed::Known,
        }
    }

    /// A replay is over. `false`: it had nothing, though our last message should be there.
    pub(super) fn replay_ended(&mut self, empty: bool) -> bool {
        if empty && self.unverified {
            return false;
        }
        self.unverified = false;
        self.next.get_or_insert(0);
        true
    }

    /// Notes that a message was applied.
    pub(super) fn applied(&mut self, sequence: u64, payload: &[u8]) {
        self.next = Some(sequence.saturating_add(1));
        self.last = Some(Applied::new(sequence, payload));
        self.unverified = false;
    }

    /// Begins another life, on the connection that is there.
    pub(super) fn restart(&mut self) {
        let live = self.live;
        *self = Self {
            live,
            ..Self::default()
        };
    }
}

impl Applied {
    fn new(sequence: u64, payload: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(payload);
        Self {
            sequence,
            digest: hasher.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A position after the messages 0 to `last` of a life.
    fn after(last: u64) -> Position {
        let mut position = Position::default();
        position.connected();
        for sequence in 0..=last {
            assert_ne!(position.live(sequence), Live::Known);
            position.applied(sequence, &payload(sequence));
        }
        position
    }

    fn payload(sequence: u64) -> [u8; 8] {
        sequence.to_be_bytes()
    }

    #[test]
    fn live_messages_in_order_are_applied() {
        let mut position = after(4);

        assert_eq!(position.live(5), Live::Apply);
    }

    #[test]
    fn a_missing_message_is_a_gap() {
        let mut position = after(4);

        assert_eq!(position.live(6), Live::Gap);
    }

    #[test]
    fn what_was_replayed_is_known_when_it_comes_live() {
        let mut position = Position::default();
        position.connected();
        assert_eq!(position.replayed(true, 0, &payload(0)), Replayed::Apply);
        position.applied(0, &payload(0));
        assert_eq!(position.replayed(false, 1, &payload(1)), Replayed::Apply);
        position.applied(1, &payload(1));
        assert!(position.replay_ended(false));

        assert_eq!(position.live(1), Live::Known);
        assert_eq!(position.live(2), Live::Apply);
    }

    #[test]
    fn an_empty_replay_is_the_beginning_of_a_life() {
        let mut position = Position::default();
        position.connected();

        assert!(position.replay_ended(true));

        assert_eq!(position.live(0), Live::Apply);
    }

    #[test]
    fn a_late_joiner_begins_where_the_replay_does() {
        let mut position = Position::default();

        assert_eq!(position.replayed(true, 7, &payload(7)), Replayed::Apply);
    }

    #[test]
    fn after_a_reconnection_the_last_message_proves_the_life() {
        let mut position = after(4);
        position.connected();

        assert_eq!(position.replay_from(), 4);
        assert_eq!(position.replayed(true, 4, &payload(4)), Replayed::Known);
        assert_eq!(position.replayed(false, 5, &payload(5)), Replayed::Apply);
    }

    #[test]
    fn another_message_in_the_last_ones_place_is_another_life() {
        let mut position = after(4);
        position.connected();

        assert_eq!(position.replayed(true, 4, &payload(9)), Replayed::OtherLife);
    }

    #[test]
    fn a_restarted_publisher_with_a_shorter_life_is_noticed() {
        let mut position = after(4);
        position.connected();

        assert!(!position.replay_ended(true));
    }

    #[test]
    fn a_publisher_that_forgot_our_last_message_is_not_trusted_after_a_reconnection() {
        let mut position = after(4);
        position.connected();

        assert_eq!(position.replayed(true, 5, &payload(5)), Replayed::OtherLife);
    }

    #[test]
    fn on_one_connection_a_publisher_may_forget() {
        let mut position = after(4);

        assert_eq!(position.replayed(true, 5, &payload(5)), Replayed::Apply);
        assert_eq!(position.replayed(true, 8, &payload(8)), Replayed::Gap);
        assert!(position.replay_ended(true));
    }

    #[test]
    fn a_falling_live_sequence_is_another_life() {
        let mut position = after(4);

        assert_eq!(position.live(0), Live::OtherLife);
    }

    #[test]
    fn without_replay_a_lower_sequence_after_a_reconnection_is_another_life() {
        let mut position = after(4);
        position.connected();

        assert_eq!(position.live(0), Live::OtherLife);
    }

    #[test]
    fn after_a_reconnection_the_next_sequence_proves_nothing() {
        let mut position = after(4);
        position.connected();

        assert_eq!(position.live(5), Live::Unproven);
        assert!(!position.has_all_before(5));

        assert_eq!(position.replayed(true, 4, &payload(4)), Replayed::Known);
        assert!(position.has_all_before(5));
    }

    #[test]
    fn a_new_life_begins_with_any_message() {
        let mut position = after(4);
        position.live(0);

        position.restart();

        assert_eq!(position.live(1), Live::First);
        assert_eq!(position.replay_from(), 0);
    }
}
