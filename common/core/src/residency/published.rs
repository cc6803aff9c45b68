//! How many closed entries each chain has, and the changes that follow for the pool.

use super::PoolOp;
use super::lookup::{Lookup, mixed};
use super::slab::{Index, Slab, Vacant};
use crate::block::ChainHash;

struct Chain {
    hash: ChainHash,
    /// Closed entries with this chain, over all workers; zero when the place is free.
    holders: u32,
    next_free: Option<Index>,
}

impl Vacant for Chain {
    fn next_free(&mut self) -> &mut Option<Index> {
        &mut self.next_free
    }
}

/// The published set, counted.
pub(super) struct Published {
    chains: Slab<Chain>,
    lookup: Lookup,
    ops: Vec<PoolOp>,
}

impl Published {
    pub(super) fn new() -> Self {
        Self {
            chains: Slab::new(),
            lookup: Lookup::new(),
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

    /// Counts one more holder; the first one publishes the chain.
    pub(super) fn acquire(&mut self, hash: ChainHash) -> Option<Index> {
        let key = mixed(hash.0);
        let chains = &self.chains;
        if let Some(index) = self.lookup.find(key, |index| chains[index].hash == hash) {
            self.chains[index].holders += 1;
            return Some(index);
        }
        let index = self.chains.insert(Chain {
            hash,
            holders: 1,
            next_free: None,
        })?;
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
