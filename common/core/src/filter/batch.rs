//! Many changes of a table at once.
//!
//! A change waits for memory twice as long as it computes. So the buckets of some changes are
//! read before the first of them is made: they come into the cache together.

use core::hint::black_box;

use super::class::Class;
use super::words::Words;
use super::writer::{InsertError, Writer};

/// Changes whose buckets are read together; more of them don't come any faster.
const TOGETHER: usize = 16;

impl<W: Words> Writer<W> {
    /// Adds an entry of each class, in their order, up to the first that is refused.
    pub fn insert_all(&mut self, classes: &[Class]) -> Result<(), InsertError> {
        for some in classes.chunks(TOGETHER) {
            self.read_ahead(some);
            for class in some {
                self.insert(*class)?;
            }
        }
        Ok(())
    }

    /// Takes an entry of each class away; how many were there.
    pub fn remove_all(&mut self, classes: &[Class]) -> usize {
        let mut removed = 0;
        for some in classes.chunks(TOGETHER) {
            self.read_ahead(some);
            removed += some.iter().filter(|class| self.remove(**class)).count();
        }
        removed
    }

    /// Brings the buckets of some classes into the cache.
    fn read_ahead(&self, classes: &[Class]) {
        let read = classes.iter().map(|class| self.table.read(*class));
        black_box(read.fold(0, |all, word| all | word));
    }
}
