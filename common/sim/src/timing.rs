//! How long an engine takes.
//!
//! The prefill formula is what NVIDIA Dynamo's mocker uses without a profile, in
//! milliseconds for `n` uncached tokens: `4.21e-7 n^2 + 0.01518 n + 16.50`. Decoding takes
//! 6 ms a token. Both are multiplied by one factor; a factor of zero makes an engine that
//! takes no time, so that a benchmark measures what stands before it.

use core::time::Duration;

const QUADRATIC_MS: f64 = 4.21e-7;
const LINEAR_MS: f64 = 0.015_18;
const CONSTANT_MS: f64 = 16.50;
const DECODE_MS: f64 = 6.0;

/// An engine's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    factor: f64,
}

impl Timing {
    /// The formula times `factor`; what is no positive number counts as zero.
    pub const fn new(factor: f64) -> Self {
        let factor = if factor.is_finite() && factor > 0.0 {
            factor
        } else {
            0.0
        };
        Self { factor }
    }

    /// Time from a prompt's start to its first token, with this many tokens to compute.
    pub fn prefill(self, uncached_tokens: usize) -> Duration {
        let n = u32::try_from(uncached_tokens).map_or(f64::from(u32::MAX), f64::from);
        self.scaled(QUADRATIC_MS * n * n + LINEAR_MS * n + CONSTANT_MS)
    }

    /// Time between two tokens of an answer.
    pub fn decode(self) -> Duration {
        self.scaled(DECODE_MS)
    }

    fn scaled(self, ms: f64) -> Duration {
        Duration::try_from_secs_f64(ms * self.factor / 1_000.0).unwrap_or(Duration::MAX)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::new(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_follows_the_measured_formula() {
        let ms = |n| Timing::default().prefill(n).as_secs_f64() * 1_000.0;

        assert!((ms(76) - 17.656).abs() < 0.01, "{}", ms(76));
        assert!((ms(11_040) - 235.4).abs() < 0.1, "{}", ms(11_040));
    }

    #[test]
    fn a_factor_of_zero_takes_no_time() {
        let timing = Timing::new(0.0);

        assert_eq!(timing.prefill(100_000), Duration::ZERO);
        assert_eq!(timing.decode(), Duration::ZERO);
    }

    #[test]
    fn a_factor_that_is_no_number_takes_no_time() {
        assert_eq!(Timing::new(f64::NAN).decode(), Duration::ZERO);
        assert_eq!(Timing::new(-1.0).decode(), Duration::ZERO);
    }
}
