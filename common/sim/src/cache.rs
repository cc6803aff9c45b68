//! A block-level prefix cache, as engines keep it.
//!
//! A block is named by its chain hash, so a shared prefix is stored once. The set is always
//! prefix-closed: blocks are added at the end of a chain and evicted leaf first, the leaf
//! whose last user left longest ago. What a request uses, and all before it, stays. Room is
//! reserved before it is needed, so blocks and reservations together never exceed the
//! capacity.
//!
//! ```text
//!   reserve -> advance (one reservation becomes a block, or is given back)
//!   pin     -> in use -> unpin -> idle -> evicted by a later reserve
//! ```

use std::collections::{BTreeMap, BTreeSet};

use kvgrid_core::block::ChainHash;

/// What an engine has in its memory.
#[derive(Clone, Debug)]
pub struct BlockCache {
    capacity: usize,
    blocks: BTreeMap<ChainHash, Block>,
    /// Blocks without users and children, by when their last user left.
    idle_leaves: BTreeSet<(u64, ChainHash)>,
    in_use: usize,
    reserved: usize,
    releases: u64,
}

#[derive(Clone, Debug)]
struct Block {
    parent: Option<ChainHash>,
    children: u32,
    /// Pins on this block, plus children that are in use.
    users: u32,
    last_used: u64,
}

impl BlockCache {
    /// An empty cache of at most this many blocks.
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            blocks: BTreeMap::new(),
            idle_leaves: BTreeSet::new(),
            in_use: 0,
            reserved: 0,
            releases: 0,
        }
    }

    /// How many leading blocks of `chain` are here.
    pub fn depth(&self, chain: &[ChainHash]) -> usize {
        // The set is prefix-closed, so presence is monotone along a chain.
        chain.partition_point(|block| self.blocks.contains_key(block))
    }

    /// Keeps `block` and all before it until [`unpin`](Self::unpin).
    pub fn pin(&mut self, block: ChainHash) {
        let mut next = Some(block);
        while let Some(hash) = next {
            let block = self.block_mut(hash);
            block.users += 1;
            if block.users > 1 {
                break;
            }
            let (last_used, parent) = (block.last_used, block.parent);
            self.idle_leaves.remove(&(last_used, hash));
            self.in_use += 1;
            next = parent;
        }
    }

    /// Ends one use of `block`.
    pub fn unpin(&mut self, block: ChainHash) {
        self.releases += 1;
        let release = self.releases;
        let mut next = Some(block);
        while let Some(hash) = next {
            let block = self.block_mut(hash);
            block.users -= 1;
            if block.users > 0 {
                break;
            }
            block.last_used = release;
            let (is_leaf, parent) = (block.children == 0, block.parent);
            if is_leaf {
                self.idle_leaves.insert((release, hash));
            }
            self.in_use -= 1;
            next = parent;
        }
    }

    /// Sets room for `blocks` more aside and returns what had to go for it, leaf first;
    /// nothing changes when even eviction can't make so much room.
    pub fn reserve(&mut self, blocks: usize) -> Option<Vec<ChainHash>> {
        if self.in_use + self.reserved + blocks > self.capacity {
            return None;
        }
        let mut evicted = Vec::new();
        while self.blocks.len() + self.reserved + blocks > self.capacity {
            evicted.push(self.evict());
        }
        self.reserved += blocks;
        Some(evicted)
    }

    /// Gives reserved room back.
    pub const fn release(&mut self, blocks: usize) {
        self.reserved -= blocks;
    }

    /// Moves a pin from `tip` (none: before the first block) one block on, with reserved
    /// room. Says whether the block is new; one that is here already frees its room.
    pub fn advance(&mut self, tip: Option<ChainHash>, block: ChainHash) -> bool {
        self.reserved -= 1;
        let is_new = !self.blocks.contains_key(&block);
        if is_new {
            if let Some(parent) = tip {
                self.block_mut(parent).children += 1;
            }
            let added = Block {
                parent: tip,
                children: 0,
                users: 0,
                last_used: 0,
            };
            self.blocks.insert(block, added);
        }
        self.pin(block);
        if let Some(parent) = tip {
            // The child holds its parent now, so this ends no use.
            self.block_mut(parent).users -= 1;
        }
        is_new
    }

    /// Most blocks there can be.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks here, in use or not.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that can't be evicted, and room set aside.
    pub const fn in_use(&self) -> usize {
        self.in_use + self.reserved
    }

    fn evict(&mut self) -> ChainHash {
        let (_, hash) = self
            .idle_leaves
            .pop_first()
            .expect("blocks that are not in use end in an idle leaf");
        let block = self
            .blocks
            .remove(&hash)
            .expect("an idle leaf is in the cache");
        if let Some(parent) = block.parent {
            let entry = self.block_mut(parent);
            entry.children -= 1;
            if entry.children == 0 && entry.users == 0 {
                let last_used = entry.last_used;
                self.idle_leaves.insert((last_used, parent));
            }
        }
        hash
    }

    fn block_mut(&mut self, hash: ChainHash) -> &mut Block {
        self.blocks
            .get_mut(&hash)
            .expect("a block that is pinned, or before one in the cache, is in the cache")
    }
}

#[cfg(test)]
mod tests;
