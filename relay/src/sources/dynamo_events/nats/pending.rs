//! Messages of publishers that nobody listens to yet, for discovery may show one a moment
//! after it has begun to publish. What is dropped here is missed by its number later.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// How long a message is kept.
const KEPT: Duration = Duration::from_secs(10);

/// Most messages; the oldest go.
const MESSAGES: usize = 4096;

/// Most bytes of all messages; the oldest go.
const BYTES: usize = 16 << 20;

/// What waits, the oldest first.
#[derive(Default)]
pub(super) struct Pending {
    waiting: VecDeque<Waiting>,
    bytes: usize,
}

struct Waiting {
    since: Instant,
    publisher: u64,
    message: (u64, Bytes),
}

impl Pending {
    /// Keeps a message.
    pub(super) fn put(&mut self, publisher: u64, message: (u64, Bytes), now: Instant) {
        self.bytes += message.1.len();
        self.waiting.push_back(Waiting {
            since: now,
            publisher,
            message,
        });
        while self.waiting.front().is_some_and(|oldest| {
            self.waiting.len() > MESSAGES
                || self.bytes > BYTES
                || now.duration_since(oldest.since) > KEPT
        }) {
            let dropped = self.waiting.pop_front();
            self.bytes -= dropped.map_or(0, |waiting| waiting.message.1.len());
        }
    }

    /// Gives a publisher's messages, the oldest first.
    pub(super) fn take(&mut self, publisher: u64) -> Vec<(u64, Bytes)> {
        let (its, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| waiting.publisher == publisher);
        self.waiting = others;
        let its = its.into_iter().map(|waiting| waiting.message);
        its.inspect(|message| self.bytes -= message.1.len())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64, length: usize) -> (u64, Bytes) {
        (sequence, vec![0; length].into())
    }

    fn numbers(taken: Vec<(u64, Bytes)>) -> Vec<u64> {
        taken.into_iter().map(|(sequence, _)| sequence).collect()
    }

    #[test]
    fn a_publishers_messages_wait_for_it_in_order() {
        let now = Instant::now();
        let mut pending = Pending::default();
        for sequence in 0..3 {
            pending.put(1, message(sequence, 10), now);
            pending.put(2, message(sequence + 100, 10), now);
        }

        assert_eq!(numbers(pending.take(1)), [0, 1, 2]);
        assert_eq!(numbers(pending.take(1)), [0_u64; 0]);
        assert_eq!(pending.bytes, 30);
        assert_eq!(numbers(pending.take(2)), [100, 101, 102]);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_old() {
        let now = Instant::now();
        let mut many = Pending::default();
        let mut large = Pending::default();
        let mut old = Pending::default();

        for sequence in 0..=MESSAGES as u64 {
            many.put(1, message(sequence, 1), now);
        }
        for sequence in 0..3 {
            large.put(1, message(sequence, BYTES / 2), now);
        }
        old.put(1, message(0, 1), now);
        old.put(1, message(1, 1), now + KEPT + Duration::from_secs(1));

        assert_eq!(many.take(1)[0].0, 1);
        assert_eq!(numbers(large.take(1)), [1, 2]);
        assert_eq!(numbers(old.take(1)), [1]);
    }
}
