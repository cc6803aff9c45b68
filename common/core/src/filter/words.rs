//! The atomic words a table is made of.
//!
//! A table needs just this of a word: that a reader's load acquires what was written before
//! the store it reads from, that a store releases what the writer wrote before it, and that
//! the writer can read back its own stores, which needs no order. The words
//! are a parameter so that a model checker's can stand in for the processor's, and so that
//! words which promise less can be shown to break the table.

use core::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit word with one writing thread and any number of reading ones.
pub trait Word: Send + Sync {
    /// A word with this value.
    fn new(value: u64) -> Self;

    /// Reads the word, and sees all that was written before the value it reads.
    fn load(&self) -> u64;

    /// Reads the word on the thread that writes it.
    fn own(&self) -> u64;

    /// Writes the word after all earlier writes of this thread.
    fn store(&self, value: u64);
}

/// A family of words.
pub trait Words: 'static {
    /// Holds entries.
    type Entries: Word;
    /// Counts moves, so that a reader can tell that it may have looked past an entry.
    type Moves: Word;
}

/// The processor's own words.
#[derive(Clone, Copy, Debug)]
pub struct Std;

impl Words for Std {
    type Entries = AtomicU64;
    type Moves = AtomicU64;
}

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn own(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }
}
