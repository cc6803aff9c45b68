//! Looks into many filters that wait for memory together.

use core::hint::black_box;

use super::Target;
use crate::block::ChainHash;
use crate::filter::key::MixKey;
use crate::filter::store::Spot;
use crate::filter::table::{Glance, Open};
use crate::filter::words::Words;

/// The looks of a round; the memory is kept for the next.
pub(super) struct Round<'a, W: Words> {
    targets: &'a [Target<'a, W>],
    /// Their tables, next to each other.
    tables: Vec<Open<'a, W>>,
    chain: &'a [ChainHash],
    mixed: Mixed<'a>,
    groups: Vec<Group>,
    looks: Vec<Look>,
    spots: Vec<Placed>,
}

/// Whether a target holds the last block of a length.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) length: u32,
    pub(super) seen: bool,
}

/// Where a look goes.
#[derive(Clone, Copy)]
struct Placed {
    target: u32,
    spot: Spot,
}

/// The looks into one target.
struct Group {
    target: usize,
    /// Where they begin; they end where the next ones begin.
    start: usize,
    since: Glance,
}

#[cfg(test)]
impl Look {
    /// What is seen of a length, for tests of what follows from it.
    pub(super) const fn seen(length: u32, seen: bool) -> Self {
        Self { length, seen }
    }
}

impl<'a, W: Words> Round<'a, W> {
    pub(super) fn new(targets: &'a [Target<'a, W>], chain: &'a [ChainHash]) -> Self {
        let room = targets.len().max(super::ROUND_LOOKS) * 4;
        Self {
            targets,
            tables: targets.iter().map(|target| target.reader.open()).collect(),
            chain,
            mixed: Mixed::default(),
            groups: Vec::with_capacity(targets.len()),
            looks: Vec::with_capacity(room),
            spots: Vec::with_capacity(room),
        }
    }

    /// Begins the looks into a target, which are then added.
    #[inline]
    pub(super) fn begin(&mut self, target: usize) {
        self.groups.push(Group {
            target,
            start: self.looks.len(),
            since: Glance::default(),
        });
    }

    /// Adds a look into the target that was begun last.
    #[inline]
    pub(super) fn add(&mut self, length: u32) {
        let Some(Group { target, .. }) = self.groups.last() else {
            return;
        };
        let key = self.targets[*target].key;
        let mixed = self.mixed.of(key, self.chain, length);
        self.looks.push(Look {
            length,
            seen: false,
        });
        let table = &self.tables[*target];
        self.spots.push(Placed {
            target: u32::try_from(*target).unwrap_or(u32::MAX),
            spot: table.spot(table.class_of_mixed(mixed)),
        });
    }

    /// Looks, without a branch that waits for what is seen.
    ///
    /// All buckets are read once before, by a loop that does nothing else: the less is done with
    /// each, the more of them a processor has under way.
    pub(super) fn look(&mut self) {
        let tables = self.tables.as_slice();
        for group in &mut self.groups {
            group.since = tables[group.target].glance();
        }
        let read = |placed: &Placed| tables[placed.target as usize].read(placed.spot);
        black_box(self.spots.iter().map(read).fold(0, |all, word| all | word));
        for (look, placed) in self.looks.iter_mut().zip(&self.spots) {
            look.seen = tables[placed.target as usize].glimpse(placed.spot);
        }
    }

    /// Tells each target what was seen of it, and ends the round.
    pub(super) fn tell(&mut self, mut tell: impl FnMut(usize, &[Look])) {
        let ends = self.groups.iter().skip(1).map(|next| next.start);
        let ends = ends.chain([self.looks.len()]);
        for (group, end) in self.groups.iter().zip(ends) {
            let looks = &mut self.looks[group.start..end];
            if !self.tables[group.target].stood_still(group.since) {
                let Target { reader, key, .. } = self.targets[group.target];
                for look in looks.iter_mut().filter(|look| !look.seen) {
                    let block = self.chain[look.length as usize - 1];
                    look.seen = reader.contains(reader.geometry().class(key, block));
                }
            }
            tell(group.target, looks);
        }
        self.groups.clear();
        self.looks.clear();
        self.spots.clear();
    }
}

/// Blocks mixed of late: most targets look at the same ones.
struct Mixed<'a> {
    key: Option<&'a MixKey>,
    /// Length and mixed last block, by the length's low bits.
    mixed: [(u32, u64); MIXED],
}

/// Blocks that are kept mixed.
const MIXED: usize = 64;

impl Default for Mixed<'_> {
    fn default() -> Self {
        Self {
            key: None,
            mixed: [(0, 0); MIXED],
        }
    }
}

impl<'a> Mixed<'a> {
    /// Mixes the last block of so many.
    #[inline]
    fn of(&mut self, key: &'a MixKey, chain: &[ChainHash], length: u32) -> u64 {
        if self.key.is_none_or(|known| !core::ptr::eq(known, key)) {
            self.forget(key);
        }
        let kept = &mut self.mixed[length as usize % MIXED];
        if kept.0 != length {
            *kept = (length, key.mix(chain[length as usize - 1]));
        }
        kept.1
    }

    /// Begins with another key, unless it is only kept elsewhere.
    #[cold]
    fn forget(&mut self, key: &'a MixKey) {
        if self.key.is_none_or(|known| known != key) {
            self.mixed = [(0, 0); MIXED];
        }
        self.key = Some(key);
    }
}
