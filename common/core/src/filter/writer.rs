//! The one owner of a table: inserts, removals and the digests.
//!
//! How a change is made so that readers beside it stay right stands in `table.rs`.

use std::sync::Arc;

use thiserror::Error;

use super::class::{Class, Seat};
use super::geometry::Geometry;
use super::path::PathSearch;
use super::table::{OVERFLOW, Reader, Table};
use super::words::{Std, Word, Words};

/// Why a class was not inserted. The table is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InsertError {
    /// The table is at its hard load, or the overflow list is at its end. A larger geometry
    /// is due; nobody's fault.
    #[error("the table of {capacity} blocks is full")]
    Full {
        /// The table's hard capacity.
        capacity: u64,
    },
    /// The class belongs to another geometry. The caller, or the peer it listens to, is at fault.
    #[error("{class:?} is not in a table of {chunks} chunks")]
    Foreign {
        /// What should have been inserted.
        class: Class,
        /// Chunks of this table.
        chunks: u32,
    },
}

/// Owns a table of classes and is the only one to change it.
pub struct Writer<W: Words = Std> {
    pub(super) table: Arc<Table<W>>,
    /// Wrapping sums of the chunks' classes.
    digests: Vec<u64>,
    digest_sum: u64,
    len: u64,
    moves: u64,
    overflowed: u64,
    search: PathSearch,
}

impl Writer {
    /// An empty table of the processor's own words.
    pub fn new(geometry: Geometry) -> Self {
        Self::with_words(geometry)
    }
}

impl<W: Words> Writer<W> {
    /// An empty table of any words.
    pub fn with_words(geometry: Geometry) -> Self {
        let table = Table::new(geometry);
        Self {
            digests: vec![0; geometry.chunks() as usize],
            table: Arc::new(table),
            digest_sum: 0,
            len: 0,
            moves: 0,
            overflowed: 0,
            search: PathSearch::default(),
        }
    }

    /// A reader of this table; it stays valid, and sees later changes, for as long as it lives.
    pub fn reader(&self) -> Reader<W> {
        Reader::new(Arc::clone(&self.table))
    }

    /// The table's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.table.geometry
    }

    /// Classes in the table, duplicates counted.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the table is past its soft load and a larger one is due.
    pub fn is_crowded(&self) -> bool {
        self.len > self.geometry().soft_capacity()
    }

    /// Classes that found no place in their buckets; at most 64.
    pub const fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// The sum of a chunk's mixed classes; zero for a chunk that the table doesn't have.
    pub fn digest(&self, chunk: u32) -> u64 {
        self.digests.get(chunk as usize).copied().unwrap_or(0)
    }

    /// The sum of all chunks' digests.
    pub const fn digest_sum(&self) -> u64 {
        self.digest_sum
    }

    /// Adds one entry of the class, beside any that are there.
    pub fn insert(&mut self, class: Class) -> Result<(), InsertError> {
        let geometry = self.table.geometry;
        if !geometry.has(class) {
            return Err(InsertError::Foreign {
                class,
                chunks: geometry.chunks(),
            });
        }
        let capacity = geometry.hard_capacity();
        if self.len >= capacity || !(self.place(class) || self.overflow(class)) {
            return Err(InsertError::Full { capacity });
        }
        let chunk = geometry.chunk(class);
        let digest = self.digest(chunk).wrapping_add(class.digest());
        self.set_counts(chunk, self.len + 1, digest);
        Ok(())
    }

    /// Takes one entry of the class away; false if there is none.
    pub fn remove(&mut self, class: Class) -> bool {
        if !self.table.geometry.has(class) || !self.erase(class) {
            return false;
        }
        let chunk = self.table.geometry.chunk(class);
        let digest = self.digest(chunk).wrapping_sub(class.digest());
        self.set_counts(chunk, self.len - 1, digest);
        if self.overflowed > 0 {
            self.settle_overflow(chunk);
        }
        true
    }

    /// Empties the table. Readers stay, and find nothing any more.
    pub fn clear(&mut self) {
        self.table.store.clear();
        self.table.overflow.iter().for_each(|word| word.store(0));
        self.set_overflowed(0);
        self.digests.fill(0);
        self.digest_sum = 0;
        self.len = 0;
    }

    /// The chunk's classes in their order, overflowed ones included, read from the table itself.
    pub fn chunk_classes(&self, chunk: u32) -> Vec<Class> {
        let geometry = self.table.geometry;
        if chunk >= geometry.chunks() {
            return Vec::new();
        }
        let mut classes = Vec::with_capacity(self.expected_chunk_len());
        for bucket in 0..geometry.chunk_buckets() {
            let store = &self.table.store;
            store.list(&geometry, (chunk, bucket), &mut classes);
        }
        classes.extend(self.overflow_of(chunk).map(|(_, class)| class));
        classes.sort_unstable();
        classes
    }

    /// Sets what was counted of a chunk and the table after a change.
    pub(super) fn set_counts(&mut self, chunk: u32, len: u64, digest: u64) {
        let old = core::mem::replace(&mut self.digests[chunk as usize], digest);
        self.digest_sum = self.digest_sum.wrapping_sub(old).wrapping_add(digest);
        self.len = len;
    }

    fn expected_chunk_len(&self) -> usize {
        let mean = self.len / u64::from(self.geometry().chunks());
        usize::try_from(mean + mean / 16).unwrap_or(0)
    }

    /// Puts an entry into one of its buckets, after pushing others on if need be.
    fn place(&mut self, class: Class) -> bool {
        let table = &self.table;
        let geometry = &table.geometry;
        let seat = geometry.seat(class);
        if self.place_directly(class, seat) {
            return true;
        }
        let chunk = seat.chunk();
        let word = |bucket| {
            table
                .store
                .fingerprints(geometry, geometry.index(chunk, bucket))
        };
        let Some(pushes) = self.search.find(geometry, seat, word) else {
            return false;
        };
        for push in pushes {
            self.push(chunk, push.from, push.to, push.fingerprint);
        }
        self.place_directly(class, seat)
    }

    /// Puts an entry into the emptier of its buckets; false if both are full.
    fn place_directly(&self, class: Class, seat: Seat) -> bool {
        let buckets = self.table.geometry.indices(seat);
        self.table.store.place(buckets, class, seat)
    }

    /// Moves an entry to its other bucket: copy, count, erase.
    fn push(&mut self, chunk: u32, from: u16, to: u16, fingerprint: u16) {
        let Table {
            store, geometry, ..
        } = &*self.table;
        let class = store
            .find(geometry, (chunk, from), fingerprint)
            .expect("a path visits a bucket once, so what it found there is still there");
        let seat = geometry.seat(class);
        let (from, to) = (geometry.index(chunk, from), geometry.index(chunk, to));
        let copied = store.put(to, class, seat);
        assert!(
            copied,
            "a path ends at an empty slot and each push frees the next one's"
        );
        self.count_move();
        self.table.store.take(from, class, seat);
    }

    fn count_move(&mut self) {
        self.moves = self.moves.wrapping_add(1);
        self.table.shared.moves.store(self.moves);
    }

    /// Erases the entry of the class that a reader comes to first.
    ///
    /// One that is left is then still ahead of a reader that saw the erased one gone, so that
    /// no count is needed although the one left may be the younger one.
    fn erase(&mut self, class: Class) -> bool {
        let seat = self.table.geometry.seat(class);
        let (even, odd) = self.table.geometry.indices(seat);
        let store = &self.table.store;
        if store.take(even, class, seat) || store.take(odd, class, seat) {
            return true;
        }
        let overflowed = self
            .overflow_of(seat.chunk())
            .find(|(_, found)| *found == class);
        let Some((at, _)) = overflowed else {
            return false;
        };
        self.erase_overflowed(at);
        true
    }

    fn erase_overflowed(&mut self, at: usize) {
        self.table.overflow[at].store(0);
        self.set_overflowed(self.overflowed - 1);
    }

    /// Puts an entry on the overflow list; false if that is full.
    fn overflow(&mut self, class: Class) -> bool {
        if self.overflowed >= OVERFLOW as u64 {
            return false;
        }
        let Some(free) = self.table.overflow.iter().find(|word| word.own() == 0) else {
            return false;
        };
        free.store(class.to_bits());
        self.set_overflowed(self.overflowed + 1);
        true
    }

    fn set_overflowed(&mut self, overflowed: u64) {
        self.overflowed = overflowed;
        self.table.shared.overflowed.store(overflowed);
    }

    /// The chunk's entries on the overflow list and where they stand there.
    fn overflow_of(&self, chunk: u32) -> impl Iterator<Item = (usize, Class)> {
        let words = if self.overflowed == 0 {
            &[]
        } else {
            &self.table.overflow[..]
        };
        let entries = words.iter().enumerate();
        let classes = entries.filter_map(|(at, word)| Some((at, Class::from_bits(word.own())?)));
        classes.filter(move |(_, class)| self.table.geometry.chunk(*class) == chunk)
    }

    /// Moves overflowed entries of a chunk that lost one into the place it left.
    fn settle_overflow(&mut self, chunk: u32) {
        let waiting: Vec<_> = self.overflow_of(chunk).collect();
        for (at, class) in waiting {
            if self.place(class) {
                self.count_move();
                self.erase_overflowed(at);
            }
        }
    }
}

impl<W: Words> core::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Writer")
            .field("geometry", self.geometry())
            .field("len", &self.len)
            .field("overflowed", &self.overflowed)
            .field("digest_sum", &self.digest_sum)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
