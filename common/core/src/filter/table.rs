//! The table that one writer changes and many readers look into, and how they get along.
//!
//! An entry comes and goes by one store of one word, so a reader sees each of a bucket's words
//! before or after a change. What it could miss is an entry that moves from a bucket it has yet
//! to read into one it has read.
//! Therefore a move is: store the copy; count the move; erase the original. A reader that
//! found nothing reads the count again, and looks again if it changed since before its look.
//!
//! Why that is exact: let a reader find nothing and the count be the same before and after.
//! Each word it read was stored before the next move was counted, or, since loads acquire and
//! stores release, it would have seen that count. So all its words are from the time between
//! two counts, and in such a time every entry has one slot in which it stays throughout: its
//! copy is in place before the count, its original is erased only after the next one.
//! Plain inserts and removals need no count. Of several entries of one class the one that
//! readers come to first is removed: who finds it gone finds the others when it comes to them.
//!
//! Entries without a place in their buckets are kept in the overflow words, to which all of
//! this applies as well.

use std::sync::Arc;

use super::class::Class;
use super::geometry::Geometry;
use super::store::{Spot, Store};
use super::words::{Std, Word, Words};

/// Entries that found no place in their buckets, at most.
///
/// At the hard load the expected number is far below one; the list is there so that an insert
/// never fails on one side of a replication only.
pub(super) const OVERFLOW: usize = 64;

/// The words of a table.
pub(super) struct Table<W: Words> {
    pub(super) geometry: Geometry,
    pub(super) shared: Shared<W>,
    pub(super) store: Store<W>,
    pub(super) overflow: Box<[W::Entries]>,
}

/// What every lookup that misses reads; alone on its cache line.
#[repr(align(64))]
pub(super) struct Shared<W: Words> {
    /// Moves so far.
    pub(super) moves: W::Moves,
    /// Entries in the overflow words.
    pub(super) overflowed: W::Entries,
}

impl<W: Words> Table<W> {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            shared: Shared {
                moves: W::Moves::new(0),
                overflowed: W::Entries::new(0),
            },
            store: Store::new(&geometry),
            overflow: (0..OVERFLOW).map(|_| W::Entries::new(0)).collect(),
        }
    }

    #[inline]
    fn contains(&self, class: Class) -> bool {
        let spot = self.store.spot(&self.geometry, class);
        let mut moves = self.shared.moves.load();
        loop {
            if self.store.holds(spot) {
                return true;
            }
            if self.shared.overflowed.load() != 0 && self.overflow_holds(class) {
                return true;
            }
            let now = self.shared.moves.load();
            if now == moves {
                return false;
            }
            moves = now;
        }
    }

    /// Both buckets of a class, as one word that means nothing.
    #[inline]
    pub(super) fn read(&self, class: Class) -> u64 {
        self.store.read(self.store.spot(&self.geometry, class))
    }

    #[cold]
    fn overflow_holds(&self, class: Class) -> bool {
        self.overflow
            .iter()
            .any(|word| word.load() == class.to_bits())
    }
}

/// A table whose parts are at hand, so that a look needs not go through its reader to them.
pub(super) struct Open<'a, W: Words> {
    geometry: Geometry,
    store: &'a Store<W>,
    shared: &'a Shared<W>,
}

impl<W: Words> Open<'_, W> {
    /// The class of a mixed hash.
    #[inline]
    pub(super) fn class_of_mixed(&self, mixed: u64) -> Class {
        self.geometry.class_of_mixed(mixed)
    }

    /// Where to look for a class.
    #[inline]
    pub(super) fn spot(&self, class: Class) -> Spot {
        self.store.spot(&self.geometry, class)
    }

    /// Brings a spot's buckets into the cache; the word means nothing.
    #[inline]
    pub(super) fn read(&self, spot: Spot) -> u64 {
        self.store.read(spot)
    }

    /// Looks at a spot without a branch that waits for it, so that many looks wait together;
    /// "yes" is final, "no" only if the table stood still.
    #[inline]
    pub(super) fn glimpse(&self, spot: Spot) -> bool {
        self.store.holds(spot)
    }

    /// Begins some looks, of which [`Self::stood_still`] then says what "no" was worth.
    #[inline]
    pub(super) fn glance(&self) -> Glance {
        Glance {
            moves: self.shared.moves.load(),
        }
    }

    /// Whether each "no" since a glance is final; otherwise they have to be asked again: whether
    /// all words read since are of one time between two moves, and there were no entries but
    /// those in the buckets.
    #[inline]
    pub(super) fn stood_still(&self, since: Glance) -> bool {
        self.shared.overflowed.load() == 0 && self.shared.moves.load() == since.moves
    }
}

/// The beginning of some looks: how many moves had been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Glance {
    moves: u64,
}

/// Looks into a table while its writer changes it; clones share the table.
pub struct Reader<W: Words = Std> {
    table: Arc<Table<W>>,
}

impl<W: Words> Reader<W> {
    pub(super) const fn new(table: Arc<Table<W>>) -> Self {
        Self { table }
    }

    /// Whether a hash of this class is in the table.
    ///
    /// "No" is exact, also beside a working writer. In the filter form "yes" is wrong for one in
    /// 9,500 absent hashes at the soft load. A class of another geometry gets a meaningless answer.
    #[inline]
    pub fn contains(&self, class: Class) -> bool {
        self.table.contains(class)
    }

    /// The table for looks that are gone through again and again.
    #[inline]
    pub(super) fn open(&self) -> Open<'_, W> {
        Open {
            geometry: self.table.geometry,
            store: &self.table.store,
            shared: &self.table.shared,
        }
    }

    /// The table's geometry.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.table.geometry
    }
}

impl<W: Words> Clone for Reader<W> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.table))
    }
}

impl<W: Words> core::fmt::Debug for Reader<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Reader")
            .field("geometry", self.geometry())
            .finish_non_exhaustive()
    }
}
