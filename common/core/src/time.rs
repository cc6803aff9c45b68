//! The core's own time: microseconds since an origin the shell chooses.
//!
//! The core never reads a clock. Shells map their monotonic clock onto this type, and a
//! simulation starts at zero.

use core::fmt;
use core::ops::{Add, AddAssign};
use core::time::Duration;

/// A point on the caller's monotonic clock, in microseconds since its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// A point this many microseconds after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if that lies in the future.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_since_a_later_instant_is_zero() {
        let early = Instant::from_micros(10);
        let late = early + Duration::from_micros(5);

        assert_eq!(early.saturating_since(late), Duration::ZERO);
        assert_eq!(late.saturating_since(early), Duration::from_micros(5));
    }

    #[test]
    fn adding_an_endless_duration_saturates() {
        assert_eq!((Instant::ZERO + Duration::MAX).as_micros(), u64::MAX);
    }
}
