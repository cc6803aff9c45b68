//! A copy of the publisher's table, and what each change of it comes to.

use super::{Format, SLOTS};
use crate::block::ChainHash;

/// The classes that came and went; a class that only moved is in neither list. Both are
/// sorted, and have a class as often as the table has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Entries that are new.
    pub inserted: Vec<ChainHash>,
    /// Entries that are gone.
    pub removed: Vec<ChainHash>,
}

/// The bucket words of a filter, as they were last told: 8 bytes a bucket.
#[derive(Debug)]
pub struct Mirror {
    format: Format,
    /// Either none, for an empty table, or one a bucket.
    words: Vec<u64>,
    entries: u64,
}

impl Mirror {
    /// An empty table.
    pub const fn new(format: Format) -> Self {
        Self {
            format,
            words: Vec::new(),
            entries: 0,
        }
    }

    /// Its format.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Entries in it, those of one class counted each.
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// The names of its entries, those of one class each.
    pub fn names(&self) -> impl Iterator<Item = ChainHash> + Clone {
        let format = self.format;
        let words = (0_u32..).zip(&self.words);
        words.flat_map(move |(bucket, word)| {
            fingerprints(*word).map(move |print| format.name_of_stored(bucket, print))
        })
    }

    /// Takes another content, one word for each bucket of the format; another number of words
    /// changes nothing. Takes longer the more the two differ.
    pub fn replace(&mut self, words: Vec<u64>) -> Changes {
        if words.len() != self.format.buckets() as usize {
            return Changes::default();
        }
        let mut changes = Changes::default();
        let before = core::mem::take(&mut self.words);
        for (bucket, now) in (0_u32..).zip(&words) {
            let before = before.get(bucket as usize).copied().unwrap_or(0);
            self.note(bucket, before, *now, &mut changes);
        }
        self.words = words;
        self.net(changes)
    }

    /// Overwrites buckets; those outside the table are left out.
    pub fn apply(&mut self, images: &[(u32, u64)]) -> Changes {
        if self.words.is_empty() {
            self.words = vec![0; self.format.buckets() as usize];
        }
        let mut changes = Changes::default();
        for (bucket, now) in images {
            if let Some(word) = self.words.get_mut(*bucket as usize) {
                let before = core::mem::replace(word, *now);
                self.note(*bucket, before, *now, &mut changes);
            }
        }
        self.net(changes)
    }

    /// Adds what a bucket has lost and gained, but for what it kept in another slot.
    fn note(&self, bucket: u32, before: u64, now: u64, changes: &mut Changes) {
        if before == now {
            return;
        }
        let mut kept = now;
        for print in fingerprints(before) {
            match slot_of(kept, print) {
                Some(slot) => kept &= !(0xffff << (slot * 16)),
                None => changes
                    .removed
                    .push(self.format.name_of_stored(bucket, print)),
            }
        }
        let gained = fingerprints(kept);
        let gained = gained.map(|print| self.format.name_of_stored(bucket, print));
        changes.inserted.extend(gained);
    }

    /// Leaves out what was only moved, and counts the rest.
    fn net(&mut self, changes: Changes) -> Changes {
        let Changes {
            mut inserted,
            mut removed,
        } = changes;
        inserted.sort_unstable();
        removed.sort_unstable();
        let mut net = Changes::default();
        let mut gone = removed.into_iter().peekable();
        for name in inserted {
            while let Some(lower) = gone.next_if(|other| *other < name) {
                net.removed.push(lower);
            }
            if gone.next_if_eq(&name).is_none() {
                net.inserted.push(name);
            }
        }
        net.removed.extend(gone);
        let (more, less) = (net.inserted.len() as u64, net.removed.len() as u64);
        self.entries = (self.entries + more).saturating_sub(less);
        net
    }
}

/// The fingerprints in a bucket.
fn fingerprints(word: u64) -> impl Iterator<Item = u16> + Clone {
    let slots = (0..SLOTS).map(move |slot| (word >> (slot * 16) & 0xffff) as u16);
    slots.filter(|print| *print != 0)
}

/// A slot of a bucket that has this fingerprint.
fn slot_of(word: u64, print: u16) -> Option<u32> {
    (0..SLOTS).find(|slot| (word >> (slot * 16) & 0xffff) as u16 == print)
}
