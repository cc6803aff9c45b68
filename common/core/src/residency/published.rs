//! How many closed entries each chain has, and the changes that follow for the pool.

use super::PoolOp;
use super::lookup::{Lookup, mixed};
use super::slab::{Index, Slab, Vacant};
use crate::block::ChainHash;

/// Packed, for much of it would be padding. While the place is free, the hash is a link.
#[derive(Clone, Copy)]
#[repr(C, packed(2))]
struct Chain {
    hash: ChainHash,
    /// Closed entries with this chain, over all workers; zero when the place is free.
    holders: u16,
}

const _: () = assert!(size_of::<Chain>() == 10, "memory budget of a chain");

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

    /// Counts one more holder; the first one publishes the chain. What can't be counted any
    /// more is none: that can hide a block that 65,535 others have, never invent one.
    pub(super) fn acquire(&mut self, hash: ChainHash) -> Option<Index> {
        let key = mixed(hash.0);
        let chains = &self.chains;
        if let Some(index) = self
            .lookup
            .find(key, |index| { chains[index].hash } == hash)
        {
            let chain = &mut self.chains[index];
            chain.holders = chain.holders.checked_add(1)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_past_the_count_are_none_and_the_last_counted_one_withdraws() {
        let chain = ChainHash(7);
        let mut published = Published::new(10);

        let counted: Vec<_> = (0..u16::MAX).map(|_| published.acquire(chain)).collect();
        let uncounted = published.acquire(chain);
        for index in counted.into_iter().flatten() {
            published.release(index);
        }

        assert_eq!(uncounted, None);
        assert_eq!(
            *published.ops(),
            [PoolOp::Insert(chain), PoolOp::Remove(chain)]
        );
        assert_eq!(published.len(), 0);
    }
}
