//! Finds slab places by key, in many small tables so that growing one is short.

use hashbrown::HashTable;

use super::slab::Index;

/// Tables per lookup; ten million keys make 40,000 in each, which move within a millisecond.
const SHARDS: usize = 256;

/// An unordered set of places; the keys lie in the slab.
pub(super) struct Lookup {
    shards: Box<[HashTable<Index>]>,
}

impl Lookup {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| HashTable::new()).collect(),
        }
    }

    /// The place with this hash for which `is` holds.
    pub(super) fn find(&self, hash: u64, is: impl Fn(Index) -> bool) -> Option<Index> {
        let shard = &self.shards[shard_of(hash)];
        shard.find(hash, |index| is(*index)).copied()
    }

    /// Adds a place that is not there yet; `hash_of` hashes places anew when a table grows.
    pub(super) fn insert(&mut self, hash: u64, index: Index, hash_of: impl Fn(Index) -> u64) {
        let shard = &mut self.shards[shard_of(hash)];
        shard.insert_unique(hash, index, |index| hash_of(*index));
    }

    /// Takes a place out.
    pub(super) fn remove(&mut self, hash: u64, index: Index) {
        let shard = &mut self.shards[shard_of(hash)];
        if let Ok(entry) = shard.find_entry(hash, |found| *found == index) {
            entry.remove();
        }
    }
}

/// The tables use a hash's lowest bits for the bucket and its highest seven as a tag.
fn shard_of(hash: u64) -> usize {
    usize::from(hash.to_be_bytes()[1])
}

/// Spreads a key that may be sequential or chosen by an engine over all 64 bits.
pub(super) const fn mixed(key: u64) -> u64 {
    let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}
