//! Values at stable 32-bit places, in chunks, so that growth never copies what is there.

use core::num::NonZeroU32;
use core::ops;

/// Values per chunk: large enough to be rare, small enough to be allocated without a stall.
const CHUNK: usize = 4096;

/// A place in a [`Slab`], four bytes even when optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Index(NonZeroU32);

impl Index {
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
    fn next_free(&mut self) -> &mut Option<Index>;
}

/// A chunked arena; freed places are used again, last freed first.
pub(super) struct Slab<T> {
    chunks: Vec<Vec<T>>,
    free: Option<Index>,
    live: usize,
}

impl<T: Vacant> Slab<T> {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: None,
            live: 0,
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

    /// Puts a value in; `None` when all 32-bit places are taken.
    pub(super) fn insert(&mut self, value: T) -> Option<Index> {
        let index = match self.free {
            Some(index) => {
                self.free = self[index].next_free().take();
                self[index] = value;
                index
            }
            None => self.push(value)?,
        };
        self.live += 1;
        Some(index)
    }

    /// Frees a place; what lies there stays readable until it is used again.
    pub(super) fn remove(&mut self, index: Index) {
        let free = self.free.replace(index);
        *self[index].next_free() = free;
        self.live -= 1;
    }

    fn push(&mut self, value: T) -> Option<Index> {
        let index = Index::new(self.places())?;
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
