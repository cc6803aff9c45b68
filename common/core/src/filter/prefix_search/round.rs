//! Looks into many filters that wait for memory together.

use core::hint::black_box;

use super::Target;
use crate::block::ChainHash;
use crate::filter::class::Class;
use crate::filter::key::MixKey;
use crate::filter::table::Glance;
use crate::filter::words::Words;

/// The looks of a round; the memory is kept for the next.
pub(super) struct Round<'a, W: Words> {
    targets: &'a [Target<'a, W>],
    chain: &'a [ChainHash],
    mixed: Mixed<'a>,
    looks: Vec<Look>,
    glances: Vec<Glance>,
}

/// Whether a target holds the last block of a length.
pub(super) struct Look {
    target: usize,
    pub(super) length: u32,
    pub(super) seen: bool,
    class: Class,
}

#[cfg(test)]
impl Look {
    /// What is seen of a length, for tests of what follows from it.
    pub(super) const fn seen(length: u32, seen: bool) -> Self {
        Self {
            target: 0,
            length,
            seen,
            class: Class::of_mixed(0),
        }
    }
}

impl<'a, W: Words> Round<'a, W> {
    pub(super) fn new(targets: &'a [Target<'a, W>], chain: &'a [ChainHash]) -> Self {
        Self {
            targets,
            chain,
            mixed: Mixed::default(),
            looks: Vec::with_capacity(4 * super::ROUND_LOOKS),
            glances: Vec::with_capacity(targets.len()),
        }
    }

    /// Adds a look; those of one target come one after the other.
    #[inline]
    pub(super) fn add(&mut self, target: usize, length: u32) {
        let Target { reader, key, .. } = self.targets[target];
        let mixed = self.mixed.of(key, self.chain, length);
        self.looks.push(Look {
            target,
            length,
            seen: false,
            class: reader.geometry().class_of_mixed(mixed),
        });
    }

    /// Looks, without a branch that waits for what is seen.
    ///
    /// All buckets are read once before: the less is done with each, the more of them a
    /// processor has under way.
    pub(super) fn look(&mut self) {
        let read = |look: &Look| self.targets[look.target].reader.read(look.class);
        black_box(self.looks.iter().map(read).fold(0, |all, word| all | word));
        let mut last = usize::MAX;
        for look in &mut self.looks {
            let reader = self.targets[look.target].reader;
            if look.target != last {
                self.glances.push(reader.glance());
                last = look.target;
            }
            look.seen = reader.glimpse(look.class);
        }
    }

    /// Tells each target what was seen of it, and ends the round.
    pub(super) fn tell(&mut self, mut tell: impl FnMut(usize, &[Look])) {
        let mut glances = self.glances.drain(..);
        for looks in self
            .looks
            .chunk_by_mut(|one, next| one.target == next.target)
        {
            let target = looks[0].target;
            let reader = self.targets[target].reader;
            if !glances
                .next()
                .is_some_and(|since| reader.stood_still(since))
            {
                for look in looks.iter_mut().filter(|look| !look.seen) {
                    look.seen = reader.contains(look.class);
                }
            }
            tell(target, looks);
        }
        drop(glances);
        self.looks.clear();
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
