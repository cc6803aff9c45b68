//! Things that come out when they are due.
//!
//! Equal due times come out in the order they went in. The line is bounded: what does not
//! fit is handed back.

use std::collections::BTreeMap;

use kvgrid_core::Instant;

/// A bounded queue ordered by due time.
#[derive(Clone, Debug)]
pub struct DelayLine<T> {
    capacity: usize,
    pushed: u64,
    items: BTreeMap<(Instant, u64), T>,
}

impl<T> DelayLine<T> {
    /// An empty line for at most `capacity` things.
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            pushed: 0,
            items: BTreeMap::new(),
        }
    }

    /// Puts `item` in until `due`; a full line hands it back.
    pub fn push(&mut self, due: Instant, item: T) -> Result<(), T> {
        if self.items.len() >= self.capacity {
            return Err(item);
        }
        self.items.insert((due, self.pushed), item);
        self.pushed += 1;
        Ok(())
    }

    /// When the next thing is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.items.first_key_value().map(|((due, _), _)| *due)
    }

    /// The next thing that is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        let entry = self.items.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// How many things wait.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    #[test]
    fn what_is_due_first_comes_out_first() {
        let mut line = DelayLine::new(8);
        for (due, item) in [(30, 'c'), (10, 'a'), (20, 'b'), (10, 'A')] {
            line.push(at(due), item).unwrap();
        }

        assert_eq!(line.poll_timeout(), Some(at(10)));
        let out: String = core::iter::from_fn(|| line.pop_due(at(20))).collect();
        assert_eq!(out, "aAb");
        assert_eq!(line.poll_timeout(), Some(at(30)));
    }

    #[test]
    fn a_full_line_hands_back_what_does_not_fit() {
        let mut line = DelayLine::new(1);
        line.push(at(1), 'a').unwrap();

        assert_eq!(line.push(at(0), 'b'), Err('b'));
        assert_eq!(line.len(), 1);
    }
}
