//! One epoch's table at a replica: what came of it, and what is still to come.
//!
//! Chunks and deltas travel apart. Operations on a chunk that is still missing are kept until
//! it comes; operations at or below a chunk's cut are skipped for that chunk.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ReplicaError;
use crate::filter::{Class, MixKey, Writer, decode_chunk, decode_classes};
use crate::replication::message::{
    Announced, Begin, Chunk, Completeness, Delta, Epoch, Resume, Seq, Status,
};

/// A table and how far it is.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) epoch: Epoch,
    pub(super) key: Arc<MixKey>,
    pub(super) writer: Writer,
    /// Frames up to here are applied, or kept for missing chunks.
    pub(super) seq: Seq,
    /// The publisher's sum of digests at `seq`, once it was told.
    pub(super) digest: Option<u64>,
    pub(super) completeness: Completeness,
    pub(super) applied: BTreeMap<u64, u64>,
    /// Whether completeness or positions have changed since this was last cleared.
    pub(super) has_news: bool,
    /// Whether the publisher said that all it announced is sent.
    pub(super) ended: bool,
    /// Whether a missing chunk came and was too old to be of use.
    pub(super) lost: bool,
    missing: BTreeMap<u32, Missing>,
    kept: usize,
    /// Chunks whose content is newer than `seq`.
    ahead: BTreeMap<u32, Seq>,
}

/// A chunk that is to come.
#[derive(Debug)]
struct Missing {
    /// From which sequence on its cut was announced to be; `None` before it was announced.
    announced: Option<Seq>,
    /// Operations after this sequence are kept, so an older cut is of no use.
    floor: Seq,
    kept: Vec<(Seq, Class, Change)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loaded {
    /// It is in the table.
    Yes,
    /// It is missing no more, or not yet announced.
    Unwanted,
    /// Operations that it lacks were not kept.
    TooOld,
}

impl Table {
    /// An empty table of which every chunk is missing.
    pub(super) fn new(begin: &Begin, key: Arc<MixKey>) -> Self {
        let mut table = Self {
            epoch: begin.epoch,
            key,
            writer: Writer::new(begin.geometry),
            seq: begin.seq,
            digest: None,
            completeness: Completeness::None,
            applied: BTreeMap::new(),
            has_news: true,
            ended: false,
            lost: false,
            missing: BTreeMap::new(),
            kept: 0,
            ahead: BTreeMap::new(),
        };
        for chunk in 0..begin.geometry.chunks() {
            table.announce(chunk, begin.seq);
        }
        table
    }

    /// Whether every chunk is there and all are at `seq`.
    pub(super) fn is_whole(&self) -> bool {
        self.ended && self.missing.is_empty() && self.ahead.is_empty()
    }

    /// Whether the digests disagree although the table is whole.
    pub(super) fn has_drifted(&self) -> bool {
        let right = |digest| digest == self.writer.digest_sum();
        self.is_whole() && !self.digest.is_none_or(right)
    }

    /// Chunks that are missing.
    pub(super) fn missing(&self) -> u32 {
        u32::try_from(self.missing.len()).unwrap_or(u32::MAX)
    }

    #[cfg(test)]
    pub(super) const fn kept(&self) -> usize {
        self.kept
    }

    /// What to tell a publisher that it has.
    pub(super) fn resume(&self) -> Resume {
        Resume {
            epoch: self.epoch,
            seq: self.seq,
            missing: self.missing.keys().copied().collect(),
        }
    }

    /// Begins again after what was lost: the next end is of another subscription.
    pub(super) fn reopen(&mut self) {
        self.ended = false;
        self.lost = false;
    }

    /// Takes part of the table as announced anew; the rest stays right up to `begin.seq`.
    pub(super) fn begin_again(&mut self, begin: &Begin) -> Result<(), ReplicaError> {
        let Announced::Only(chunks) = &begin.chunks else {
            return Ok(());
        };
        if begin.geometry != *self.writer.geometry() {
            return Err(ReplicaError::Geometry { epoch: begin.epoch });
        }
        if let Some(chunk) = chunks.iter().find(|c| **c >= begin.geometry.chunks()) {
            return Err(ReplicaError::NoSuchChunk { chunk: *chunk });
        }
        if begin.seq < self.seq {
            return Err(self.gap(begin.seq));
        }
        for &chunk in chunks {
            if !self.is_right_at(chunk, begin.seq) {
                self.ahead.remove(&chunk);
                self.announce(chunk, begin.seq);
            }
        }
        self.ended = false;
        self.digest = None;
        self.move_to(begin.seq);
        Ok(())
    }

    /// Whether a chunk is there as it is at a sequence, or newer: a copy may have overtaken its
    /// announcement, and would not be sent again.
    fn is_right_at(&self, chunk: u32, seq: Seq) -> bool {
        match self.ahead.get(&chunk) {
            Some(cut) => *cut >= seq,
            None => seq == self.seq && !self.missing.contains_key(&chunk),
        }
    }

    /// Takes these chunks as wrong; they stay as they are until a newer copy comes.
    pub(super) fn distrust(&mut self, chunks: impl IntoIterator<Item = u32>) {
        for chunk in chunks {
            self.missing.entry(chunk).or_insert(Missing {
                announced: None,
                floor: Seq(u64::MAX),
                kept: Vec::new(),
            });
        }
    }

    /// The chunks whose digests are not these, among those that are there.
    pub(super) fn differing(&self, digests: &[u64]) -> Vec<u32> {
        let there =
            |chunk: &u32| !self.missing.contains_key(chunk) && !self.ahead.contains_key(chunk);
        let chunks = (0..).zip(digests);
        chunks
            .filter(|(chunk, digest)| there(chunk) && self.writer.digest(*chunk) != **digest)
            .map(|(chunk, _)| chunk)
            .collect()
    }

    /// Applies a batch, or keeps of it what belongs to missing chunks, at most `limit` changes.
    pub(super) fn apply(&mut self, delta: &Delta, limit: usize) -> Result<(), ReplicaError> {
        if delta.seq <= self.seq {
            return Ok(());
        }
        if delta.base != self.seq {
            return Err(self.gap(delta.base));
        }
        let geometry = *self.writer.geometry();
        let decode = |list, bytes: &[u8]| {
            decode_classes(&geometry, bytes).map_err(|source| ReplicaError::Delta { list, source })
        };
        let removes = decode("removes", &delta.removes)?;
        let adds = decode("adds", &delta.adds)?;
        let removes = removes.into_iter().map(|class| (class, Change::Remove));
        for (class, change) in removes.chain(adds.into_iter().map(|class| (class, Change::Add))) {
            self.take(delta.seq, class, change);
        }
        self.digest = Some(delta.digest);
        self.move_to(delta.seq);
        if self.kept > limit {
            self.drop_kept();
        }
        Ok(())
    }

    /// Takes what the publisher says of its sources.
    pub(super) fn take_status(&mut self, status: Status, limit: usize) -> Result<(), ReplicaError> {
        if status.seq != self.seq {
            return Err(self.gap(status.seq));
        }
        self.completeness = status.completeness;
        self.has_news = true;
        if status.all {
            self.applied.clear();
        }
        self.applied.extend(status.applied);
        if self.applied.len() > limit {
            return Err(ReplicaError::Sources { limit });
        }
        Ok(())
    }

    /// Puts a chunk in its place, if it is missing and new enough.
    pub(super) fn load(&mut self, chunk: &Chunk) -> Result<Loaded, ReplicaError> {
        let Some(missing) = self.missing.get(&chunk.index) else {
            return Ok(Loaded::Unwanted);
        };
        let Some(announced) = missing.announced else {
            return Ok(Loaded::Unwanted);
        };
        if chunk.cut < missing.floor {
            self.lost |= chunk.cut >= announced;
            return Ok(Loaded::TooOld);
        }
        let classes = self.decode(chunk)?;
        self.writer
            .replace_chunk(chunk.index, &classes)
            .map_err(ReplicaError::Chunk)?;
        let kept = self
            .missing
            .remove(&chunk.index)
            .map(|missing| missing.kept);
        for (seq, class, change) in kept.into_iter().flatten() {
            self.kept -= 1;
            if seq > chunk.cut {
                self.change(class, change);
            }
        }
        if chunk.cut > self.seq {
            self.ahead.insert(chunk.index, chunk.cut);
        }
        Ok(Loaded::Yes)
    }

    fn decode(&self, chunk: &Chunk) -> Result<Vec<Class>, ReplicaError> {
        let index = chunk.index;
        let classes = decode_chunk(self.writer.geometry(), index, &chunk.classes)
            .map_err(|source| ReplicaError::ChunkCode { index, source })?;
        let sum = |sum: u64, class: &Class| sum.wrapping_add(class.digest());
        if classes.iter().fold(0, sum) != chunk.digest {
            return Err(ReplicaError::ChunkDigest { index });
        }
        Ok(classes)
    }

    fn announce(&mut self, chunk: u32, seq: Seq) {
        let missing = Missing {
            announced: Some(seq),
            floor: seq,
            kept: Vec::new(),
        };
        if let Some(before) = self.missing.insert(chunk, missing) {
            self.kept -= before.kept.len();
        }
    }

    fn take(&mut self, seq: Seq, class: Class, change: Change) {
        let chunk = self.writer.geometry().chunk(class);
        if let Some(missing) = self.missing.get_mut(&chunk) {
            if missing.announced.is_some() {
                missing.kept.push((seq, class, change));
                self.kept += 1;
                return;
            }
        } else if self.ahead.get(&chunk).is_some_and(|cut| seq <= *cut) {
            return;
        }
        self.change(class, change);
    }

    /// Changes the table. What can't be done shows in the digests, so nothing is said here.
    fn change(&mut self, class: Class, change: Change) {
        match change {
            Change::Add => {
                let _ = self.writer.insert(class);
            }
            Change::Remove => {
                self.writer.remove(class);
            }
        }
    }

    fn move_to(&mut self, seq: Seq) {
        self.seq = seq;
        self.ahead.retain(|_, cut| *cut > seq);
    }

    /// Forgets what was kept: chunks cut before now will be too old and come again.
    fn drop_kept(&mut self) {
        let seq = self.seq;
        for missing in self.missing.values_mut() {
            missing.kept = Vec::new();
            missing.floor = missing.floor.max(seq);
        }
        self.kept = 0;
    }

    fn gap(&self, found: Seq) -> ReplicaError {
        ReplicaError::Gap {
            expected: self.seq,
            found,
        }
    }
}
