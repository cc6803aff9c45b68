//! How many leading blocks of a prompt each pool holds.
//!
//! A pool that is closed holds a block only while it holds all before it, so its depth can be
//! found by galloping (1, 2, 4, 8 blocks) and then halving, in about `2 log2(depth)` rounds.
//! All pools go in lock step: their lookups of a round are independent, and miss the cache
//! together.
//!
//! "No" is exact and "yes" is sometimes wrong, so a length counts as held only when its last
//! *two* blocks are found. A depth is thus never too small, too large by one with the
//! filter's error rate, by more with its square.
//!
//! A pool that is not closed may have holes, over which this search jumps. The deepest pools
//! are confirmed block by block; other depths of pools that are not closed are upper bounds.

use super::class::Class;
use super::key::MixKey;
use super::table::Reader;
use super::words::{Std, Words};
use crate::block::ChainHash;

/// A pool to search.
#[derive(Debug)]
pub struct Target<'a, W: Words = Std> {
    /// The pool's filter.
    pub reader: &'a Reader<W>,
    /// The key of its geometry; with another one nothing is found.
    pub key: &'a MixKey,
    /// Whether the pool holds a block only while it holds all before it.
    pub closed: bool,
}

impl<W: Words> Clone for Target<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Words> Copy for Target<'_, W> {}

/// The depth of each target, in their order: leading blocks of the chain that it holds.
pub fn depths<W: Words>(targets: &[Target<'_, W>], chain: &[ChainHash]) -> Vec<u32> {
    let blocks = u32::try_from(chain.len()).unwrap_or(u32::MAX);
    let mut searches: Vec<_> = targets.iter().map(|it| Search::new(*it, blocks)).collect();
    loop {
        let mut mixed = Mixed::default();
        let mut open = false;
        for search in searches
            .iter_mut()
            .filter(|search| search.low < search.high)
        {
            search.look(chain, &mut mixed);
            open = true;
        }
        if !open {
            break;
        }
        for search in searches
            .iter_mut()
            .filter(|search| search.low < search.high)
        {
            search.conclude();
        }
    }
    let mut depths: Vec<_> = searches.iter().map(|search| search.low).collect();
    confirm_deepest(targets, chain, &mut depths);
    depths
}

/// The depth of a target up to a limit, found block by block.
///
/// Exact but for the filter's own errors, for pools with holes too, and the slower the deeper.
pub fn confirm<W: Words>(target: Target<'_, W>, chain: &[ChainHash], limit: u32) -> u32 {
    if !target.is_usable() {
        return 0;
    }
    let class = |chain: &ChainHash| target.reader.geometry().class(target.key, *chain);
    let mut depth = 0;
    for block in chain {
        if depth == limit || !target.reader.contains(class(block)) {
            break;
        }
        depth += 1;
    }
    depth
}

/// Confirms until no target as deep as the deepest is unconfirmed.
fn confirm_deepest<W: Words>(targets: &[Target<'_, W>], chain: &[ChainHash], depths: &mut [u32]) {
    let mut sure: Vec<_> = targets.iter().map(|target| target.closed).collect();
    while !sure.iter().all(|sure| *sure) {
        let deepest = depths.iter().copied().max().unwrap_or(0);
        let unsure = (0..targets.len()).find(|&at| !sure[at] && depths[at] == deepest);
        let Some(at) = unsure else {
            return;
        };
        depths[at] = confirm(targets[at], chain, deepest);
        sure[at] = true;
    }
}

impl<W: Words> Target<'_, W> {
    fn is_usable(&self) -> bool {
        self.reader.geometry().key_id() == self.key.id()
    }
}

/// Where the search in one target stands.
struct Search<'a, W: Words> {
    target: Target<'a, W>,
    /// Blocks held.
    low: u32,
    /// Blocks that may be held at most.
    high: u32,
    /// Whether nothing has been missed yet.
    galloping: bool,
    /// The length looked at in this round, its last two blocks and whether they were seen.
    length: u32,
    classes: [Class; 2],
    seen: [bool; 2],
}

impl<'a, W: Words> Search<'a, W> {
    fn new(target: Target<'a, W>, blocks: u32) -> Self {
        let none = Class::pack(0, 0, 0);
        Self {
            low: 0,
            high: if target.is_usable() { blocks } else { 0 },
            galloping: true,
            length: 0,
            classes: [none; 2],
            seen: [false; 2],
            target,
        }
    }

    /// Looks at the next length without a branch that waits for memory.
    #[inline]
    fn look(&mut self, chain: &[ChainHash], mixed: &mut Mixed<'a>) {
        self.length = if self.galloping {
            self.low.saturating_mul(2).clamp(1, self.high)
        } else {
            self.low + (self.high - self.low).div_ceil(2)
        };
        let geometry = self.target.reader.geometry();
        let mixed = mixed.of(self.target.key, chain, self.length);
        self.classes = mixed.map(|mixed| geometry.class_of_mixed(mixed));
        self.seen = self.classes.map(|class| self.target.reader.glimpse(class));
    }

    /// Takes in what was seen; what was not is looked for properly, in cached memory now.
    #[inline]
    fn conclude(&mut self) {
        let [last, before] = self.classes;
        let last = self.seen[0] || self.target.reader.contains(last);
        let before =
            self.length - 1 <= self.low || self.seen[1] || self.target.reader.contains(before);
        if last && before {
            self.low = self.length;
            return;
        }
        self.galloping = false;
        self.high = self.length - if before { 1 } else { 2 };
    }
}

/// The last blocks mixed, since most targets of a round look at the same ones.
#[derive(Default)]
struct Mixed<'a> {
    key: Option<&'a MixKey>,
    length: u32,
    mixed: [u64; 2],
}

impl<'a> Mixed<'a> {
    /// Mixes the last block of so many, and the one before it or itself if it is the first.
    #[inline]
    fn of(&mut self, key: &'a MixKey, chain: &[ChainHash], length: u32) -> [u64; 2] {
        if self.key != Some(key) || self.length != length {
            let last = length as usize - 1;
            self.mixed = [last, last.saturating_sub(1)].map(|at| key.mix(chain[at]));
            (self.key, self.length) = (Some(key), length);
        }
        self.mixed
    }
}

#[cfg(test)]
mod tests;
