//! How many leading blocks of a prompt each pool holds.
//!
//! A pool that is closed holds a block only while it holds all before it, so its depth can be
//! found by narrowing down an interval. What that costs is waiting for memory: one look takes
//! as long as some thirty that wait together. So all pools go in lock step, and the fewer are
//! left, the more lengths of each are looked at in a round. They are spread evenly over the
//! *logarithm* of the interval, for short depths are as likely as long ones.
//!
//! Depths of many pools are often the same: that of a prompt's beginning which all know. So
//! where there are many pools a few go ahead, and what two of them came to is what the others
//! are asked first. It is only a guess of where to look: what is found is right without it.
//!
//! "No" is exact and "yes" is sometimes wrong, so a depth is believed only when the last *two*
//! of its blocks are found; if the second isn't, the search goes on below. A depth is thus
//! never too small, too large by one with the filter's error rate, by more with its square.
//! Of tables in the exact form "yes" is exact as well, and one block is enough.
//!
//! A pool that is not closed may have holes, over which this search jumps. The deepest pools
//! are confirmed block by block; other depths of pools that are not closed are upper bounds.

mod interval;
mod known;
mod round;

use self::interval::Interval;
use self::known::Known;
use self::round::Round;
use super::key::MixKey;
use super::table::Reader;
use super::words::{Std, Words};
use crate::block::ChainHash;

/// Looks of a round over all pools: more would wait for each other longer than for memory.
const ROUND_LOOKS: usize = 32;
/// Looks of a round in one pool: more hardly narrow it down any faster.
const POOL_LOOKS: usize = 8;
/// Pools above which some go ahead.
const MANY: usize = 16;
/// Pools that go ahead.
const AHEAD: usize = 8;
/// Blocks that are confirmed together.
const CONFIRMED: usize = 16;

/// A pool to search.
#[derive(Debug)]
pub struct Target<'a, W: Words = Std> {
    /// The pool's filter, in either form.
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
    let whole = |target: &Target<'_, W>| {
        let blocks = if target.is_usable() { blocks } else { 0 };
        Interval::new(blocks, target.reader.geometry().form())
    };
    let mut intervals: Vec<_> = targets.iter().map(whole).collect();
    let mut known = Known::default();
    let mut round = Round::new(targets, chain);
    let mut started = match targets.len() {
        few if few <= MANY => few,
        _ => AHEAD,
    };
    let mut open: Vec<usize> = (0..started).collect();
    loop {
        open.retain(|&at| match intervals[at].depth() {
            Some(depth) => {
                known.add(depth);
                false
            }
            None => true,
        });
        if started < targets.len() && (open.is_empty() || known.is_common()) {
            open.extend(started..targets.len());
            started = targets.len();
            continue;
        }
        if open.is_empty() {
            break;
        }
        let looks = (ROUND_LOOKS / open.len()).clamp(1, POOL_LOOKS);
        for &at in &open {
            round.begin(at);
            intervals[at].plan(looks, &known, |length| round.add(length));
        }
        round.look();
        round.tell(|at, looks| intervals[at].narrow(looks));
    }
    let mut depths: Vec<_> = intervals.iter().map(Interval::found).collect();
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
    let chain = &chain[..chain.len().min(limit as usize)];
    let class = |chain: &ChainHash| target.reader.geometry().class(target.key, *chain);
    let table = target.reader.open();
    let mut depth = 0;
    for blocks in chain.chunks(CONFIRMED) {
        let mut seen = [false; CONFIRMED];
        for (seen, block) in seen.iter_mut().zip(blocks) {
            *seen = table.glimpse(table.spot(class(block)));
        }
        let held = |(seen, block): (bool, &ChainHash)| seen || target.reader.contains(class(block));
        let all_held = seen.into_iter().zip(blocks).take_while(|look| held(*look));
        let held = all_held.count();
        depth += held;
        if held < blocks.len() {
            break;
        }
    }
    u32::try_from(depth).unwrap_or(limit)
}

/// Confirms until no target as deep as the deepest is unconfirmed.
fn confirm_deepest<W: Words>(targets: &[Target<'_, W>], chain: &[ChainHash], depths: &mut [u32]) {
    if targets.iter().all(|target| target.closed) {
        return;
    }
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

#[cfg(test)]
mod tests;
