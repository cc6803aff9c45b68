//! Finds slab places by key, in many small tables so that growing one is short.
//!
//! Of its own because a key has to cost little: a table grows by a quarter and is three
//! quarters full at least, where tables that double take twice as much at the worst moment.
//! A bucket is a cache line of places, each with a few bits of its key's hash, so that hardly
//! any key is looked at in vain. What finds no room in its bucket goes to the next one, and the
//! buckets that it passed count it, so that removals leave nothing behind.

use super::slab::Index;

/// Tables per lookup, as a power of two; ten million keys make 10,000 in each, which move within
/// a millisecond.
const SHARD_BITS: u32 = 10;

/// Places in a bucket, which with the count fill 64 bytes.
const SLOTS: usize = 15;

/// Most of a hundred places of a table that are taken.
const FULL_PERCENT: usize = 90;

/// Buckets of a table that is set apart from others; every growing table is once so large.
const SET_APART: core::ops::Range<usize> = 32..40;

/// An unordered set of places; the keys lie in the slab.
pub(super) struct Lookup {
    shards: Box<[Shard]>,
    form: Form,
}

impl Lookup {
    /// A lookup for the places of a slab of at most so many values.
    pub(super) fn new(most: usize) -> Self {
        Self {
            shards: (0..1 << SHARD_BITS).map(|_| Shard::default()).collect(),
            form: Form::of(most),
        }
    }

    /// The place with this hash for which `is` holds.
    pub(super) fn find(&self, hash: u64, is: impl Fn(Index) -> bool) -> Option<Index> {
        self.shards[shard_of(hash)].find(self.form, hash, is)
    }

    /// Looks at where a place with this hash would be found; what it gives means nothing.
    pub(super) fn touch(&self, hash: u64) -> u32 {
        let shard = &self.shards[shard_of(hash)];
        let bucket = shard.buckets.get(shard.home(hash));
        bucket.map_or(0, |bucket| bucket.passed)
    }

    /// Adds a place that is not there yet; `hash_of` hashes places anew when a table grows.
    pub(super) fn insert(&mut self, hash: u64, index: Index, hash_of: impl Fn(Index) -> u64) {
        let number = shard_of(hash);
        let shard = &mut self.shards[number];
        if shard.is_full() {
            shard.grow(self.form, number, hash_of);
        }
        shard.insert(hash, self.form.slot(index, hash));
    }

    /// Takes a place out.
    pub(super) fn remove(&mut self, hash: u64, index: Index) {
        self.shards[shard_of(hash)].remove(hash, self.form.slot(index, hash));
    }
}

/// How a slot is divided: a place in the low bits, and a piece of its key's hash above.
#[derive(Clone, Copy)]
struct Form {
    place_mask: u32,
}

impl Form {
    fn of(most: usize) -> Self {
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        Self {
            place_mask: u32::MAX >> most.leading_zeros(),
        }
    }

    /// The piece of a hash, where it lies in a slot.
    #[allow(clippy::cast_possible_truncation, reason = "it is a piece of the hash")]
    const fn tag(self, hash: u64) -> u32 {
        // Rotated, so that the piece is of the lowest bits, which say nothing else.
        (hash as u32).rotate_left(self.place_mask.count_ones()) & !self.place_mask
    }

    /// Never zero, for no place is.
    fn slot(self, index: Index, hash: u64) -> u32 {
        index.raw() | self.tag(hash)
    }

    /// The place in a slot, if that is taken.
    const fn place(self, slot: u32) -> Option<Index> {
        Index::from_raw(slot & self.place_mask)
    }
}

/// A cache line.
#[derive(Clone, Default)]
#[repr(align(64))]
struct Bucket {
    /// Zero where there is nothing.
    slots: [u32; SLOTS],
    /// Places that found no room here.
    passed: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is a cache line");

#[derive(Default)]
struct Shard {
    buckets: Vec<Bucket>,
    len: usize,
}

impl Shard {
    fn find(&self, form: Form, hash: u64, is: impl Fn(Index) -> bool) -> Option<Index> {
        let tag = form.tag(hash);
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for slot in bucket.slots {
                if slot & !form.place_mask == tag
                    && let Some(place) = form.place(slot)
                    && is(place)
                {
                    return Some(place);
                }
            }
            if bucket.passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// There is always room, for a full table grows first.
    fn insert(&mut self, hash: u64, slot: u32) {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[at];
            if let Some(free) = bucket.slots.iter_mut().find(|slot| **slot == 0) {
                *free = slot;
                self.len += 1;
                return;
            }
            bucket.passed += 1;
            at = self.after(at);
        }
    }

    fn remove(&mut self, hash: u64, slot: u32) {
        let home = self.home(hash);
        let mut at = home;
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[at];
            if let Some(found) = bucket.slots.iter_mut().find(|found| **found == slot) {
                *found = 0;
                self.len -= 1;
                return self.forget_passing(home, at);
            }
            at = self.after(at);
        }
    }

    /// What lay in `at` has passed those from its home on no more.
    fn forget_passing(&mut self, home: usize, at: usize) {
        let mut passed = home;
        while passed != at {
            self.buckets[passed].passed -= 1;
            passed = self.after(passed);
        }
    }

    const fn is_full(&self) -> bool {
        self.len * 100 >= self.buckets.len() * SLOTS * FULL_PERCENT
    }

    fn grow(&mut self, form: Form, number: usize, hash_of: impl Fn(Index) -> u64) {
        let wanted = larger(self.buckets.len(), number);
        let old = core::mem::replace(&mut self.buckets, vec![Bucket::default(); wanted]);
        self.len = 0;
        let slots = old.iter().flat_map(|bucket| bucket.slots);
        let places: Vec<Index> = slots.filter_map(|slot| form.place(slot)).collect();
        // All keys at once, for each is somewhere else in memory.
        let hashes: Vec<u64> = places.iter().map(|place| hash_of(*place)).collect();
        for (place, hash) in places.into_iter().zip(hashes) {
            self.insert(hash, form.slot(place, hash));
        }
    }

    /// The bucket where a place with this hash is looked for first.
    fn home(&self, hash: u64) -> usize {
        let below = u128::from(hash << SHARD_BITS);
        usize::try_from((below * self.buckets.len() as u128) >> 64).unwrap_or_default()
    }

    const fn after(&self, at: usize) -> usize {
        if at + 1 < self.buckets.len() {
            at + 1
        } else {
            0
        }
    }
}

/// By a quarter. Once, each table grows by a little more or less than the others, so that large
/// ones, which fill up together, don't all grow at one time.
fn larger(buckets: usize, shard: usize) -> usize {
    let quarter = (buckets / 4).max(1);
    let apart = match SET_APART.contains(&buckets) {
        true => (quarter * shard) >> SHARD_BITS,
        false => 0,
    };
    buckets + quarter + apart
}

/// The highest bits of a hash say the shard, those below them the bucket.
fn shard_of(hash: u64) -> usize {
    usize::try_from(hash >> (u64::BITS - SHARD_BITS)).unwrap_or_default()
}

/// Spreads a key that may be sequential or chosen by an engine over all 64 bits.
pub(super) const fn mixed(key: u64) -> u64 {
    let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

#[cfg(test)]
mod tests;
