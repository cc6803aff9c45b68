//! What an edge expects a site to have cached because it has sent it there itself.
//!
//! Between a request and the events that it leads to, a twin of the request should meet it,
//! and of a site that publishes no events nothing else is known. So an edge notes the blocks
//! of what it sends, each time for a while ([`Predictions`]), and decisions look them up
//! ([`Predicted`]) without waiting: the notes' blocks stand in a filter of their own.
//!
//! A note names blocks from one place of a chain to its end, so that what is noted is found
//! as in any pool, by [`crate::filter::prefix_search`]. Blocks are noted as often as they
//! are sent, and are expected until the last of these notes has ended.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::block::ChainHash;
use crate::filter::{Geometry, MixKey, Reader, Target, Writer, depths};
use crate::id::{ModelId, SiteId, name_hash};
use crate::time::Instant;

#[cfg(test)]
mod tests;

/// Bounds of what is expected at all sites together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionConfig {
    /// Most blocks in all notes, each counted as often as it is noted; past it the notes that
    /// would end first go early.
    pub max_blocks: usize,
}

impl Default for PredictionConfig {
    fn default() -> Self {
        Self {
            max_blocks: 262_144,
        }
    }
}

/// A model at a site, and how its blocks are placed among those of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(MixKey);

/// Names a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NoteId(u64);

/// Blocks that were sent somewhere, and until when they count.
struct Note {
    until: Instant,
    /// Mixed with the place.
    blocks: Box<[u64]>,
}

/// All notes, and the only one to change them.
pub struct Predictions {
    config: PredictionConfig,
    key: MixKey,
    writer: Writer,
    notes: BTreeMap<NoteId, Note>,
    /// Which note ends when.
    ends: BTreeSet<(Instant, NoteId)>,
    /// How many notes have a block.
    counts: HashTable<(u64, u32)>,
    /// Blocks of all notes.
    noted: usize,
    next: u64,
}

/// Looks up what is expected, beside whoever changes it; clones share it.
#[derive(Clone, Debug)]
pub struct Predicted {
    reader: Reader,
    key: MixKey,
}

impl Predictions {
    /// No notes. The key should be the process's own: nobody else reads the filter.
    pub fn new(config: PredictionConfig, key: MixKey) -> Self {
        let blocks = u64::try_from(config.max_blocks).unwrap_or(u64::MAX);
        let geometry = Geometry::for_capacity(blocks, key.id());
        Self {
            config,
            key,
            writer: Writer::new(geometry),
            notes: BTreeMap::new(),
            ends: BTreeSet::new(),
            counts: HashTable::new(),
            noted: 0,
            next: 0,
        }
    }

    /// What decisions look into.
    pub fn predicted(&self) -> Predicted {
        Predicted {
            reader: self.writer.reader(),
            key: self.key.clone(),
        }
    }

    /// Notes that these blocks were sent to a place, and are expected there until a time.
    ///
    /// Of more blocks than all notes may have, the first ones are noted.
    pub fn note(&mut self, place: &Place, blocks: &[ChainHash], until: Instant) -> NoteId {
        let id = NoteId(self.next);
        self.next += 1;
        let blocks = &blocks[..blocks.len().min(self.config.max_blocks)];
        while self.noted + blocks.len() > self.config.max_blocks {
            self.end_first();
        }
        let blocks: Box<[u64]> = blocks.iter().map(|block| place.0.mix(*block)).collect();
        for block in &blocks {
            self.add(*block);
        }
        self.noted += blocks.len();
        self.ends.insert((until, id));
        self.notes.insert(id, Note { until, blocks });
        id
    }

    /// Lets a note count until another time. Nothing happens if it has ended.
    pub fn extend(&mut self, id: NoteId, until: Instant) {
        if let Some(note) = self.notes.get_mut(&id) {
            self.ends.remove(&(note.until, id));
            note.until = until;
            self.ends.insert((until, id));
        }
    }

    /// Ends a note: what it names was not computed, or is known better by now.
    pub fn end(&mut self, id: NoteId) {
        let Some(note) = self.notes.remove(&id) else {
            return;
        };
        self.ends.remove(&(note.until, id));
        self.noted -= note.blocks.len();
        // The deepest first, so that a reader beside this sees a shorter run and no hole.
        for block in note.blocks.iter().rev() {
            self.remove(*block);
        }
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// Ends the notes whose time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.ends.first().filter(|(until, _)| *until <= now) {
            self.end(*id);
        }
    }

    /// Blocks of all notes.
    pub const fn blocks(&self) -> usize {
        self.noted
    }

    fn end_first(&mut self) {
        if let Some((_, id)) = self.ends.first() {
            self.end(*id);
        }
    }

    fn add(&mut self, block: u64) {
        match self
            .counts
            .entry(block, |(known, _)| *known == block, |(known, _)| *known)
        {
            Entry::Occupied(mut count) => count.get_mut().1 += 1,
            Entry::Vacant(count) => {
                let class = self.writer.geometry().class_of_mixed(block);
                // It was sized for all blocks, so this fails by a freak of chance only; then
                // the block is not counted, and removed in no place either.
                if self.writer.insert(class).is_ok() {
                    count.insert((block, 1));
                }
            }
        }
    }

    fn remove(&mut self, block: u64) {
        let Ok(mut count) = self.counts.find_entry(block, |(known, _)| *known == block) else {
            return;
        };
        count.get_mut().1 -= 1;
        if count.get().1 == 0 {
            count.remove();
            let class = self.writer.geometry().class_of_mixed(block);
            self.writer.remove(class);
        }
    }
}

impl core::fmt::Debug for Predictions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Predictions")
            .field("notes", &self.notes.len())
            .field("blocks", &self.noted)
            .finish_non_exhaustive()
    }
}

impl Predicted {
    /// The place of a model at a site.
    pub fn place(&self, site: &SiteId, model: ModelId) -> Place {
        self.place_of(name_hash(site.as_str()), model)
    }

    /// The same of what the site's name hashes to.
    pub(crate) fn place_of(&self, site: u64, model: ModelId) -> Place {
        Place(self.key.derived(site ^ model.0))
    }

    /// How deep a chain is held at a place that holds its first `depth` blocks, if what was
    /// sent there is counted in: `depth` or more.
    ///
    /// Wrong upwards as seldom as any search in a filter.
    pub fn extend(&self, place: &Place, chain: &[ChainHash], depth: u32) -> u32 {
        let beyond = chain.get(depth as usize..).unwrap_or_default();
        let length = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        let depth = depth.min(length);
        // Mostly there's nothing, and then the first block says so.
        let holds = |block: &ChainHash| {
            let class = self.reader.geometry().class(&place.0, *block);
            self.reader.contains(class)
        };
        if !beyond.first().is_some_and(holds) {
            return depth;
        }
        let target = Target {
            reader: &self.reader,
            key: &place.0,
            closed: true,
        };
        let more = depths(&[target], beyond).first().copied();
        depth + more.unwrap_or(0)
    }
}
