//! The extremes of what was measured lately.

use std::time::{Duration, Instant};

/// Rounds that a rate counts.
const ROUNDS: usize = 8;
/// A route may have become longer: older round-trip times count at most twice this long.
const KEPT: Duration = Duration::from_secs(10);

/// The highest of the last eight figures; zero of none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Highest {
    figures: [u64; ROUNDS],
    next: usize,
}

impl Highest {
    pub(super) fn put(&mut self, figure: u64) {
        if let Some(place) = self.figures.get_mut(self.next % ROUNDS) {
            *place = figure;
        }
        self.next = (self.next + 1) % ROUNDS;
    }

    pub(super) fn get(&self) -> u64 {
        self.figures.iter().copied().max().unwrap_or(0)
    }
}

/// The shortest of the times of the last ten to twenty seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lowest {
    since: Option<Instant>,
    before: Option<Duration>,
    now: Option<Duration>,
}

impl Lowest {
    pub(super) fn put(&mut self, time: Duration, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= KEPT {
            self.before = self.now.take();
            self.since = Some(now);
        }
        self.now = Some(self.now.map_or(time, |known| known.min(time)));
    }

    pub(super) fn get(&self) -> Option<Duration> {
        match (self.before, self.now) {
            (Some(before), Some(now)) => Some(before.min(now)),
            (before, now) => before.or(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_figure_counts_for_eight() {
        let mut highest = Highest::default();
        assert_eq!(highest.get(), 0);

        highest.put(9);
        for _ in 0..7 {
            highest.put(3);
        }
        assert_eq!(highest.get(), 9);

        highest.put(4);
        assert_eq!(highest.get(), 4);
    }

    #[test]
    fn a_path_that_has_become_longer_is_known_as_such_in_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut lowest = Lowest::default();
        assert_eq!(lowest.get(), None);

        lowest.put(Duration::from_millis(4), at(0));
        lowest.put(Duration::from_millis(9), at(11));
        assert_eq!(lowest.get(), Some(Duration::from_millis(4)));

        lowest.put(Duration::from_millis(9), at(22));
        assert_eq!(lowest.get(), Some(Duration::from_millis(9)));
    }
}
