//! How many closed entries each chain has, and the changes that follow for the pool.

use super::PoolOp;
use super::lookup::{Lookup, mixed};
use super::slab::{Index, Slab, Vacant};
use crate::block::ChainHash;

/// Packed, for a third of it would be padding. While the place is free, the hash is a link.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Chain {
    hash: ChainHash,
    /// Closed entries with this chain, over all workers; zero when the place is free.
    holders: u32,
}

const _: () = assert!(size_of::<Chain>() == 12, "memory budget of a chain");

impl Vacant for Chain {
    fn next_free(&self) -> Option<Index> {
        u32::try_from(self.hash.0).ok().and_then(Index::from_raw)
    }

    fn set_next_free(&mut self, next: Option<Index>) {
        self.hash = ChainHash(next.map_or(0, |next| next.raw().into()));
    }
}

/// The published set, counted.
pub(super) struct Published {
    chains: Slab<Chain>,
    lookup: Lookup,
    ops: Vec<PoolOp>,
}

impl Published {
    /// An empty set that gets at most so many chains.
    pub(super) fn new(most: usize) -> Self {
        Self {
            chains: Slab::new(most),
            lookup: Lookup::new(most),
            ops: Vec::new(),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.chains.live()
    }

    pub(super) fn ops(&mut self) -> &mut Vec<PoolOp> {
        &mut self.ops
    }

    pub(super) fn hash(&self, index: Index) -> ChainHash {
        self.chains[index].hash
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ChainHash> + Clone {
        (0..self.chains.places())
            .filter_map(|place| self.chains.index(place))
            .map(|index| &self.chains[index])
            .filter(|chain| chain.holders > 0)
            .map(|chain| chain.hash)
    }

    /// Looks at where a chain would be found; what it gives means nothing.
    pub(super) fn touch(&self, hash: ChainHash) -> u32 {
        self.lookup.touch(mixed(hash.0))
    }

    /// Counts one more holder; the first one publishes the chain.
    pub(super) fn acquire(&mut self, hash: ChainHash) -> Option<Index> {
        let key = mixed(hash.0);
        let chains = &self.chains;
        if let Some(index) = self
            .lookup
            .find(key, |index| { chains[index].hash } == hash)
        {
            self.chains[index].holders += 1;
            return Some(index);
        }
        let index = self.chains.insert(Chain { hash, holders: 1 })?;
        let chains = &self.chains;
        self.lookup
            .insert(key, index, |index| mixed(chains[index].hash.0));
        self.ops.push(PoolOp::Insert(hash));
        Some(index)
    }

    /// Counts one holder less; the last one withdraws the chain.
    pub(super) fn release(&mut self, index: Index) {
        let chain = &mut self.chains[index];
        chain.holders -= 1;
        if chain.holders == 0 {
            let hash = chain.hash;
            self.lookup.remove(mixed(hash.0), index);
            self.chains.remove(index);
            self.ops.push(PoolOp::Remove(hash));
        }
    }
}
