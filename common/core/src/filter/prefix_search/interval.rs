//! What is known of one pool's depth, and which lengths to look at next.
//!
//! A length is *seen* if its last block is. What was looked at and not seen is a bound from
//! above, for sure. The longest length seen below that is the depth, unless it was seen by
//! mistake: it has to be seen with the length before it to count. Where a table keeps whole
//! hashes nothing is seen by mistake.

use super::known::Known;
use super::round::Look;
use crate::filter::geometry::Form;

/// Lengths that a pool may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    /// The longest length seen; 0 needs not be seen.
    low: u32,
    /// The longest length that is not ruled out.
    high: u32,
    /// Whether the length before `low` was seen as well, or needs not be.
    sure: bool,
    form: Form,
}

impl Interval {
    /// Nothing is known of a chain of so many blocks in a table of this form.
    pub(super) const fn new(blocks: u32, form: Form) -> Self {
        Self {
            low: 0,
            high: blocks,
            sure: true,
            form,
        }
    }

    /// The depth, once it is found.
    pub(super) const fn depth(&self) -> Option<u32> {
        if self.low == self.high && self.sure {
            Some(self.low)
        } else {
            None
        }
    }

    /// The longest length seen so far.
    pub(super) const fn found(&self) -> u32 {
        self.low
    }

    /// Tells the lengths to look at next, in ascending order, not many more than wanted.
    pub(super) fn plan(&self, looks: usize, known: &Known, mut look: impl FnMut(u32)) {
        let looks = u32::try_from(looks).unwrap_or(u32::MAX).max(1);
        let open = self.high - self.low;
        if open <= looks {
            // The last round: what is seen in it is known with the length before it.
            if !self.sure {
                look(self.low - 1);
            }
            (self.low + 1..=self.high).for_each(look);
        } else if let Some(depth) = known.within(self.low, self.high) {
            // One less for being sure, one more for being no deeper.
            let before = match self.form {
                Form::Filter => depth.saturating_sub(1),
                Form::Exact => depth,
            };
            let before = before.max(self.low + 1);
            let behind = (depth + 1).min(self.high);
            if !self.sure && depth == self.low {
                look(self.low - 1);
            }
            (before..=behind).for_each(look);
        } else {
            self.spread(looks, look);
        }
    }

    /// Lengths that divide the interval evenly by their logarithms.
    fn spread(&self, looks: u32, mut look: impl FnMut(u32)) {
        let mut last = self.low;
        let mut left = looks;
        if self.low == 0 {
            // A cold pool is known by its first block.
            last = 1;
            left -= 1;
            look(last);
        }
        let (from, to) = (logarithm(last), logarithm(self.high));
        let step = to.saturating_sub(from) / (left + 1);
        for part in 1..=left {
            let length = exponential(from + step * part).max(last + 1);
            if length > self.high {
                return;
            }
            look(length);
            last = length;
        }
    }

    /// Takes what was seen of lengths in ascending order.
    pub(super) fn narrow(&mut self, looks: &[Look]) {
        for look in looks {
            if !look.seen {
                self.miss(look.length);
                return;
            }
            if look.length < self.low {
                self.sure = true;
            } else {
                self.sure = self.form == Form::Exact || look.length == self.low + 1;
                self.low = look.length;
            }
        }
    }

    /// A length is not held, nor is any longer one.
    fn miss(&mut self, length: u32) {
        self.high = length - 1;
        if self.high < self.low {
            // What was seen beyond was a mistake, or is gone since: begin again below it.
            *self = Self::new(self.high, self.form);
        }
    }
}

/// A number that grows nearly as the logarithm: a float's bits do.
const fn logarithm(length: u32) -> u32 {
    (length as f32).to_bits()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "only bits between those of two lengths come back, and the cast saturates"
)]
const fn exponential(bits: u32) -> u32 {
    f32::from_bits(bits) as u32
}
