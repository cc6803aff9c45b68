//! A token bucket: how often an edge may ask for something costly.

use std::time::Duration;

use kvgrid_core::Instant;

/// Holds up to `size` tokens and gains one every `every`.
#[derive(Debug)]
pub(super) struct Bucket {
    tokens: u32,
    size: u32,
    every: Duration,
    filled_at: Instant,
}

impl Bucket {
    pub(super) const fn full(size: u32, every: Duration, now: Instant) -> Self {
        Self {
            tokens: size,
            size,
            every,
            filled_at: now,
        }
    }

    /// Takes a token, or says how long to wait for one.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        while self.tokens < self.size && now.saturating_since(self.filled_at) >= self.every {
            self.tokens += 1;
            self.filled_at += self.every;
        }
        if self.tokens == self.size {
            self.filled_at = now;
        }
        match self.tokens.checked_sub(1) {
            Some(left) => {
                self.tokens = left;
                Ok(())
            }
            None => Err(self
                .every
                .saturating_sub(now.saturating_since(self.filled_at))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_at_a_time() {
        let every = Duration::from_millis(100);
        let start = Instant::from_micros(5_000_000);
        let mut bucket = Bucket::full(2, every, start);

        assert_eq!(bucket.take(start), Ok(()));
        assert_eq!(bucket.take(start), Ok(()));
        assert_eq!(bucket.take(start + every / 2), Err(every / 2));
        assert_eq!(bucket.take(start + every), Ok(()));
        assert_eq!(bucket.take(start + every), Err(every));
        let later = start + Duration::from_secs(60);
        assert_eq!(
            [(); 3].map(|()| bucket.take(later).is_ok()),
            [true, true, false]
        );
    }
}
