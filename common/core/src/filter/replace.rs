//! Putting a chunk's content in place: the build of a replica, and the repair of one chunk.
//!
//! Done by difference, so that readers never miss a class that was there and stays.

use thiserror::Error;

use super::class::Class;
use super::words::Words;
use super::writer::{InsertError, Writer};

/// Why a chunk was not replaced. The sender of the classes is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReplaceError {
    /// The classes are not in their order. Nothing was changed.
    #[error("the classes of chunk {chunk} are not sorted")]
    Unsorted {
        /// The chunk to be replaced.
        chunk: u32,
    },
    /// A class is not one of this chunk. Nothing was changed.
    #[error("{class:?} is not in chunk {chunk}")]
    Foreign {
        /// The first such class.
        class: Class,
        /// The chunk to be replaced.
        chunk: u32,
    },
    /// The classes don't fit. The chunk holds some of them; counts and digest say what it holds.
    #[error("chunk {chunk} cannot be filled: {source}")]
    Full {
        /// The chunk to be replaced.
        chunk: u32,
        /// Why the first class that didn't fit was refused.
        source: InsertError,
    },
}

impl<W: Words> Writer<W> {
    /// Makes the chunk's content these classes, which are in their order.
    ///
    /// The chunk's digest is taken anew from the table first, so that it is right afterwards
    /// whatever was wrong before.
    pub fn replace_chunk(&mut self, chunk: u32, classes: &[Class]) -> Result<(), ReplaceError> {
        if !classes.is_sorted() {
            return Err(ReplaceError::Unsorted { chunk });
        }
        let geometry = *self.geometry();
        let foreign = |class: &&Class| geometry.chunk(**class) != chunk || !geometry.has(**class);
        if let Some(&class) = classes.iter().find(foreign) {
            return Err(ReplaceError::Foreign { class, chunk });
        }
        if chunk >= geometry.chunks() {
            return Ok(());
        }
        let held = self.chunk_classes(chunk);
        let digest = held
            .iter()
            .fold(0_u64, |sum, class| sum.wrapping_add(class.digest()));
        self.set_counts(chunk, self.len(), digest);
        self.change(&held, classes)
            .map_err(|source| ReplaceError::Full { chunk, source })
    }

    /// Turns one sorted multiset that the table holds into another, removals first.
    fn change(&mut self, held: &[Class], wanted: &[Class]) -> Result<(), InsertError> {
        for &class in difference(held, wanted) {
            self.remove(class);
        }
        for &class in difference(wanted, held) {
            self.insert(class)?;
        }
        Ok(())
    }
}

/// What the first sorted multiset has above the second.
fn difference<'a>(left: &'a [Class], right: &'a [Class]) -> impl Iterator<Item = &'a Class> {
    let mut right = right.iter().peekable();
    left.iter().filter(move |class| {
        while right.next_if(|other| other < class).is_some() {}
        right.next_if_eq(class).is_none()
    })
}
