//! Values at stable 32-bit places, in chunks, so that growth never copies what is there.

use core::num::NonZeroU32;
use core::ops;

/// Values per chunk. The system gives memory page by page as it is used, so a large chunk
/// takes no longer to get than a small one, and wastes less.
const CHUNK: usize = 32_768;

/// A place in a [`Slab`], four bytes even when optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Index(NonZeroU32);

impl Index {
    /// The place as a number above zero, and no larger than the most values of its slab.
    pub(super) const fn raw(self) -> u32 {
        self.0.get()
    }

    /// The place of such a number.
    pub(super) const fn from_raw(raw: u32) -> Option<Self> {
        match NonZeroU32::new(raw) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    fn new(position: usize) -> Option<Self> {
        let after = position.checked_add(1)?;
        u32::try_from(after)
            .ok()
            .and_then(NonZeroU32::new)
            .map(Self)
    }

    fn position(self) -> usize {
        usize::try_from(self.0.get() - 1).unwrap_or(usize::MAX)
    }
}

/// A value that has room for the link of the slab's free list while it is free.
pub(super) trait Vacant {
    /// The link to the next free place.
    fn next_free(&self) -> Option<Index>;

    /// Makes the value a free place with this link.
    fn set_next_free(&mut self, next: Option<Index>);
}

/// A chunked arena; freed places are used again, last freed first.
pub(super) struct Slab<T> {
    chunks: Vec<Vec<T>>,
    free: Option<Index>,
    live: usize,
    most: usize,
}

impl<T: Vacant> Slab<T> {
    /// An arena for at most so many values.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            chunks: Vec::new(),
            free: None,
            live: 0,
            most,
        }
    }

    /// Values that are in use.
    pub(super) const fn live(&self) -> usize {
        self.live
    }

    /// Places ever used: every index that was handed out lies below.
    pub(super) fn places(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        full + self.chunks.last().map_or(0, Vec::len)
    }

    /// The index of a place, whether in use or not.
    pub(super) fn index(&self, place: usize) -> Option<Index> {
        Index::new(place).filter(|_| place < self.places())
    }

    /// Puts a value in; `None` when all places are taken.
    pub(super) fn insert(&mut self, value: T) -> Option<Index> {
        let index = match self.free {
            Some(index) => {
                self.free = self[index].next_free();
                self[index] = value;
                index
            }
            None => self.push(value)?,
        };
        self.live += 1;
        Some(index)
    }

    /// Frees a place.
    pub(super) fn remove(&mut self, index: Index) {
        let free = self.free.replace(index);
        self[index].set_next_free(free);
        self.live -= 1;
    }

    fn push(&mut self, value: T) -> Option<Index> {
        let place = self.places();
        let index = Index::new(place).filter(|_| place < self.most)?;
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(value),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(value);
                self.chunks.push(chunk);
            }
        }
        Some(index)
    }
}

impl<T> ops::Index<Index> for Slab<T> {
    type Output = T;

    fn index(&self, index: Index) -> &T {
        let position = index.position();
        &self.chunks[position / CHUNK][position % CHUNK]
    }
}

impl<T> ops::IndexMut<Index> for Slab<T> {
    fn index_mut(&mut self, index: Index) -> &mut T {
        let position = index.position();
        &mut self.chunks[position / CHUNK][position % CHUNK]
    }
}
