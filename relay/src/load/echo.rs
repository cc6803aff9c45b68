//! Up to which number an edge's requests have arrived.
//!
//! Requests travel on streams of their own, so number 8 may arrive before 7. The echo is the
//! highest number up to which all have arrived. A number that never comes (its stream was reset
//! before the head was read) is a hole; once it is a second old it is skipped, so that one lost
//! request does not hold the echo back for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use kvgrid_core::Instant;

/// How long a missing number is waited for.
const HOLE_PATIENCE: Duration = Duration::from_secs(1);

/// Numbers above a hole that are remembered; beyond it the oldest hole is skipped at once.
const PENDING_LIMIT: usize = 4096;

/// The contiguous watermark of one edge's request numbers on one connection.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    watermark: Option<u64>,
    pending: BTreeMap<u64, Instant>,
}

impl Echo {
    /// Notes that a request arrived. The first one sets where counting starts.
    pub(crate) fn arrived(&mut self, number: u64, now: Instant) {
        match self.watermark {
            None => self.watermark = Some(number),
            Some(watermark) if number <= watermark => {}
            Some(_) => {
                self.pending.insert(number, now);
            }
        }
        self.advance();
        while self.pending.len() > PENDING_LIMIT {
            self.skip_hole();
        }
    }

    /// The highest number up to which all requests have arrived or are given up; 0 before any.
    pub(crate) fn value(&mut self, now: Instant) -> u64 {
        while let Some((_, since)) = self.pending.first_key_value() {
            if now.saturating_since(*since) < HOLE_PATIENCE {
                break;
            }
            self.skip_hole();
        }
        self.watermark.unwrap_or(0)
    }

    fn skip_hole(&mut self) {
        if let Some((number, _)) = self.pending.pop_first() {
            self.watermark = Some(number);
            self.advance();
        }
    }

    fn advance(&mut self) {
        let Some(watermark) = &mut self.watermark else {
            return;
        };
        while let Some(next) = watermark.checked_add(1)
            && self.pending.remove(&next).is_some()
        {
            *watermark = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn arrivals_out_of_order_count_once_the_gap_is_closed() {
        let mut echo = Echo::default();
        for number in [1, 2, 4, 5] {
            echo.arrived(number, at(0));
        }
        assert_eq!(echo.value(at(0)), 2);

        echo.arrived(3, at(1));

        assert_eq!(echo.value(at(1)), 5);
    }

    #[test]
    fn a_hole_is_given_up_after_a_second() {
        let mut echo = Echo::default();
        echo.arrived(1, at(0));
        echo.arrived(3, at(0));
        echo.arrived(4, at(0));

        assert_eq!(echo.value(at(999)), 1);
        assert_eq!(echo.value(at(1000)), 4);
    }

    #[test]
    fn counting_starts_at_the_first_number_seen() {
        let mut echo = Echo::default();
        assert_eq!(echo.value(at(0)), 0);

        echo.arrived(1000, at(0));

        assert_eq!(echo.value(at(0)), 1000);
    }

    #[test]
    fn a_flood_of_holes_stays_bounded() {
        let mut echo = Echo::default();
        for number in (0..20_000).map(|n| n * 2) {
            echo.arrived(number, at(0));
        }

        assert!(echo.pending.len() <= PENDING_LIMIT);
        assert!(echo.value(at(0)) >= 20_000);
    }
}
