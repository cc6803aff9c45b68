//! Exact ownership of blocks at the relay, and the closed set that a pool publishes.
//!
//! Each worker's blocks form trees by the engine's own names (`forest`). A block is *closed*
//! while its worker holds it and every block before it; a chain is published while at least one
//! worker holds it closed. So a prompt's depth in the published set is the depth of the best
//! single worker, never a patchwork of several, and a search may skip.
//!
//! Names are taken at their word: a block that a worker holds under two names is two entries,
//! and children belong to the name they were stored under. Where a parent is missing, what
//! hangs below it is an *orphan*: kept, counted, unpublished, and published at once when the
//! parent comes (back).
//!
//! **Invariants:** inserts come parents first and removes children first, so the published set
//! is closed at every moment. Work is done in [`Residency::step`] only, one entry at a time and
//! in the order it was given, however long a cascade is. Past `max_entries` new blocks are
//! refused and counted; that can hide a block, never invent one.

use std::collections::VecDeque;

use crate::block::ChainHash;
use crate::event::{EngineHash, KvEvent, StoredBlock, Tier, WorkerKey};

mod ahead;
mod forest;
mod lookup;
mod published;
mod slab;
#[cfg(test)]
mod tests;
mod walk;

use ahead::AHEAD;
use forest::{Forest, Slot};
use published::Published;
use slab::Index;
use walk::{Purpose, Walk};

/// A change of a pool's published set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolOp {
    /// The chain was not in the set and now is.
    Insert(ChainHash),
    /// The chain was in the set and now is not.
    Remove(ChainHash),
}

/// What one pool's residency tracks, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidencyConfig {
    /// The storage tier of the pool; stores and removals on others are not this pool's.
    pub tier: Tier,
    /// What it means that a block is stored again.
    pub copies: Copies,
    /// Most entries over all workers, at about 64 bytes each; blocks past it are refused.
    pub max_entries: usize,
    /// Most workers at a time; blocks of others are refused.
    pub max_workers: u16,
}

/// What a source means by storing a block that the worker holds already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Another physical copy, whose removal will be told too.
    Counted,
    /// Nothing new: one removal ends it, however often it was stored.
    Once,
}

/// Counts of a residency, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidencyStats {
    /// Distinct chains that are published.
    pub published: usize,
    /// Blocks that workers hold, each name once.
    pub held: usize,
    /// Held blocks that miss an ancestor.
    pub orphans: usize,
    /// Physical copies of the held blocks.
    pub copies: u64,
    /// Workers that have or had blocks and were not dropped.
    pub workers: usize,
    /// Blocks refused because `max_entries` or `max_workers` was reached, since the start.
    pub refused: u64,
    /// Removals of blocks that were not held, since the start.
    pub unknown_removals: u64,
    /// Names that came back with other content or another parent, since the start.
    pub renamed: u64,
    /// Runs cut short at a block that named itself its parent, since the start.
    pub self_parents: u64,
}

impl ResidencyStats {
    /// What was counted since the start, without what is there now.
    #[must_use]
    pub fn counts(self) -> Self {
        Self {
            refused: self.refused,
            unknown_removals: self.unknown_removals,
            renamed: self.renamed,
            self_parents: self.self_parents,
            ..Self::default()
        }
    }
}

impl core::ops::AddAssign for ResidencyStats {
    fn add_assign(&mut self, other: Self) {
        let Self {
            published,
            held,
            orphans,
            copies,
            workers,
            refused,
            unknown_removals,
            renamed,
            self_parents,
        } = other;
        self.published += published;
        self.held += held;
        self.orphans += orphans;
        self.copies += copies;
        self.workers += workers;
        self.refused += refused;
        self.unknown_removals += unknown_removals;
        self.renamed += renamed;
        self.self_parents += self_parents;
    }
}

/// Who holds what in one pool.
pub struct Residency {
    config: ResidencyConfig,
    forest: Forest,
    published: Published,
    tasks: VecDeque<Task>,
    walk: Option<Walk>,
    /// Entries with copies.
    held: usize,
    /// Entries with a published chain.
    closed: usize,
    /// The counts that are kept nowhere else.
    stats: ResidencyStats,
}

enum Task {
    Event {
        worker: WorkerKey,
        event: KvEvent,
        /// Blocks that are done.
        done: usize,
    },
    Drop(WorkerKey),
    /// Look for what a ring has left of a worker.
    Sweep {
        slot: Slot,
        place: usize,
    },
}

/// Whether a task has more to do.
enum Progress {
    More(Task),
    Done,
}

/// What came of storing one block.
enum Stored {
    /// In this entry, unless it was refused.
    Yes(Option<Index>),
    /// The name's old meaning is being taken away first.
    Again,
    /// The rest of the run makes no sense.
    Nonsense,
}

impl Residency {
    /// An empty residency.
    pub fn new(config: ResidencyConfig) -> Self {
        Self {
            config,
            forest: Forest::new(config.max_entries),
            published: Published::new(config.max_entries),
            tasks: VecDeque::new(),
            walk: None,
            held: 0,
            closed: 0,
            stats: ResidencyStats::default(),
        }
    }

    /// Queues an event of a worker; [`Self::step`] applies it. The caller bounds the queue by
    /// stepping until nothing is left before it takes more from its own source.
    pub fn apply(&mut self, worker: WorkerKey, event: KvEvent) {
        self.tasks.push_back(Task::Event {
            worker,
            event,
            done: 0,
        });
    }

    /// Queues that a worker is gone with all it held.
    pub fn drop_worker(&mut self, worker: WorkerKey) {
        self.tasks.push_back(Task::Drop(worker));
    }

    /// Works on at most `budget` entries, and says whether more work is left.
    pub fn step(&mut self, budget: usize) -> bool {
        let mut budget = budget;
        while budget > 0 {
            if let Some(walk) = self.walk.take() {
                budget -= 1;
                self.advance(walk);
            } else if let Some(task) = self.tasks.pop_front() {
                if let Progress::More(task) = self.work_on(task, &mut budget) {
                    self.tasks.push_front(task);
                }
            } else {
                return false;
            }
        }
        self.has_work()
    }

    /// Whether anything is queued or under way.
    pub fn has_work(&self) -> bool {
        self.walk.is_some() || !self.tasks.is_empty()
    }

    /// Takes the changes of the published set, in order.
    pub fn drain_ops(&mut self) -> impl Iterator<Item = PoolOp> {
        self.published.ops().drain(..)
    }

    /// The published set, drained or not, in no particular order.
    pub fn published(&self) -> impl Iterator<Item = ChainHash> + Clone {
        self.published.iter()
    }

    /// Counts as of now.
    pub fn stats(&self) -> ResidencyStats {
        ResidencyStats {
            published: self.published.len(),
            held: self.held,
            orphans: self.held - self.closed,
            workers: self.forest.workers(),
            ..self.stats
        }
    }

    /// Does some of a task's work, one entry at least.
    fn work_on(&mut self, task: Task, budget: &mut usize) -> Progress {
        match task {
            Task::Event {
                worker,
                event,
                done,
            } => self.work_on_event(worker, event, done, budget),
            Task::Drop(worker) => {
                *budget -= 1;
                self.begin_drop(worker);
                Progress::Done
            }
            Task::Sweep { slot, place } => {
                *budget -= 1;
                self.sweep(slot, place)
            }
        }
    }

    fn work_on_event(
        &mut self,
        worker: WorkerKey,
        event: KvEvent,
        done: usize,
        budget: &mut usize,
    ) -> Progress {
        let next = match &event {
            KvEvent::Stored {
                parent,
                tier,
                blocks,
            } if *tier == self.config.tier => {
                self.work_on_stored(worker, *parent, blocks, done, budget)
            }
            KvEvent::Removed { tier, blocks } if *tier == self.config.tier => {
                self.work_on_removed(worker, blocks, done, budget)
            }
            KvEvent::Stored { .. } | KvEvent::Removed { .. } => None,
            KvEvent::Cleared => {
                *budget -= 1;
                self.begin_drop(worker);
                None
            }
        };
        match next {
            Some(done) => Progress::More(Task::Event {
                worker,
                event,
                done,
            }),
            None => Progress::Done,
        }
    }

    /// Stores blocks of a run until a walk is due or the budget is spent; returns how many are
    /// done while some are left.
    fn work_on_stored(
        &mut self,
        worker: WorkerKey,
        parent: Option<EngineHash>,
        blocks: &[StoredBlock],
        mut done: usize,
        budget: &mut usize,
    ) -> Option<usize> {
        if done >= blocks.len() {
            return None;
        }
        let Some(slot) = self.forest.slot_or_new(worker, self.config.max_workers) else {
            self.stats.refused += u64::try_from(blocks.len()).unwrap_or(u64::MAX);
            return None;
        };
        // The entry of the block before, if it is known already.
        let mut above = None;
        while let Some(block) = blocks.get(done) {
            if *budget == 0 || self.walk.is_some() {
                return Some(done);
            }
            let name = match done.checked_sub(1) {
                None => parent,
                Some(before) => blocks.get(before).map(|block| block.engine),
            };
            let known = above.or_else(|| self.forest.find(slot, name?));
            if done.is_multiple_of(AHEAD) {
                self.fetch_stored(slot, (name, known), &blocks[done..]);
            }
            *budget -= 1;
            match self.store(slot, (name, known), *block) {
                Stored::Yes(index) => {
                    above = index;
                    done += 1;
                }
                Stored::Again => above = None,
                Stored::Nonsense => return None,
            }
        }
        None
    }

    /// Stores a block below a parent: its name, and its entry if there is one.
    fn store(
        &mut self,
        slot: Slot,
        parent: (Option<EngineHash>, Option<Index>),
        block: StoredBlock,
    ) -> Stored {
        if parent.0 == Some(block.engine) {
            self.stats.self_parents += 1;
            return Stored::Nonsense;
        }
        let known = self.forest.find(slot, block.engine);
        if let Some(index) = known
            && self.forest.get(index).copies > 0
        {
            return self.store_again(index, parent.0, block);
        }
        let Some((index, parent)) = self.hold(slot, known, parent, block) else {
            self.stats.refused += 1;
            return Stored::Yes(None);
        };
        self.held += 1;
        self.stats.copies += 1;
        if parent.is_none_or(|parent| self.forest.get(parent).chain.is_some()) {
            match self.forest.get(index).child {
                None => self.publish(index),
                Some(_) => self.walk = Some(Walk::new(Purpose::Publish, index)),
            }
        }
        Stored::Yes(Some(index))
    }

    /// One more copy of a held block, unless the name now means something else.
    fn store_again(
        &mut self,
        index: Index,
        parent: Option<EngineHash>,
        block: StoredBlock,
    ) -> Stored {
        let entry = self.forest.get(index);
        let known = entry.parent.map(|parent| self.forest.get(parent).engine);
        if entry.local != block.local || known != parent {
            self.stats.renamed += 1;
            self.take_away(index);
            return Stored::Again;
        }
        if self.config.copies == Copies::Counted
            && let Some(copies) = entry.copies.checked_add(1)
        {
            self.forest.get_mut(index).copies = copies;
            self.stats.copies += 1;
        }
        Stored::Yes(Some(index))
    }

    /// Makes a held entry of a block, and a ghost of its parent if that has no entry; `None`
    /// when full.
    fn hold(
        &mut self,
        slot: Slot,
        known: Option<Index>,
        (parent, known_parent): (Option<EngineHash>, Option<Index>),
        block: StoredBlock,
    ) -> Option<(Index, Option<Index>)> {
        let new_parent = parent.filter(|_| known_parent.is_none());
        let needed = usize::from(known.is_none()) + usize::from(new_parent.is_some());
        if self.forest.len() + needed > self.config.max_entries {
            return None;
        }
        let parent = match new_parent {
            None => known_parent,
            Some(parent) => Some(self.forest.insert_ghost(slot, parent)?),
        };
        let index = match known {
            Some(index) => {
                self.forest.embody(index, block.local, parent);
                index
            }
            None => self.forest.insert(slot, block, parent)?,
        };
        Some((index, parent))
    }

    /// Removes blocks of a list until a walk is due or the budget is spent; returns how many
    /// are done while some are left.
    fn work_on_removed(
        &mut self,
        worker: WorkerKey,
        blocks: &[EngineHash],
        mut done: usize,
        budget: &mut usize,
    ) -> Option<usize> {
        let slot = self.forest.slot(worker);
        while let Some(engine) = blocks.get(done) {
            if *budget == 0 || self.walk.is_some() {
                return Some(done);
            }
            if let Some(slot) = slot
                && done.is_multiple_of(AHEAD)
            {
                self.fetch_removed(slot, &blocks[done..]);
            }
            *budget -= 1;
            let index = slot.and_then(|slot| self.forest.find(slot, *engine));
            self.remove(index);
            done += 1;
        }
        None
    }

    fn remove(&mut self, index: Option<Index>) {
        match index.map(|index| (index, self.forest.get(index).copies)) {
            None | Some((_, 0)) => self.stats.unknown_removals += 1,
            Some((index, 1)) => self.take_away(index),
            Some((index, copies)) => {
                self.forest.get_mut(index).copies = copies - 1;
                self.stats.copies -= 1;
            }
        }
    }

    /// Ends the holding of a block, whatever hangs below it.
    fn take_away(&mut self, index: Index) {
        let entry = self.forest.get(index);
        self.held -= 1;
        self.stats.copies -= u64::from(entry.copies);
        match (entry.chain, entry.child) {
            (Some(_), Some(_)) => self.walk = Some(Walk::new(Purpose::Withdraw, index)),
            (Some(_), None) => {
                self.withdraw(index);
                self.forest.bury(index);
            }
            (None, _) => self.forest.bury(index),
        }
    }

    fn begin_drop(&mut self, worker: WorkerKey) {
        if let Some(slot) = self.forest.slot(worker) {
            self.drop_next_tree(slot);
        }
    }

    fn drop_next_tree(&mut self, slot: Slot) {
        if let Some(top) = self.forest.any_top(slot) {
            self.walk = Some(Walk::new(Purpose::Delete(slot), top));
        } else if self.forest.has_entries(slot) {
            self.tasks.push_front(Task::Sweep { slot, place: 0 });
        } else {
            self.forest.release_slot(slot);
        }
    }

    /// Looks at one place for a member of a ring. Rings are never closed: nothing to withdraw.
    fn sweep(&mut self, slot: Slot, place: usize) -> Progress {
        if let Some(index) = self.forest.at_place(place, slot) {
            self.uncount(index);
            self.forest.erase(index);
        }
        if place + 1 < self.forest.places() {
            let place = place + 1;
            return Progress::More(Task::Sweep { slot, place });
        }
        self.forest.release_slot(slot);
        Progress::Done
    }

    /// Takes one step of a walk, and what follows its end.
    fn advance(&mut self, walk: Walk) {
        let (visit, rest) = walk.step(&self.forest);
        if let Some(index) = visit {
            match walk.purpose {
                Purpose::Publish => self.publish(index),
                Purpose::Withdraw => self.withdraw(index),
                Purpose::Delete(_) => {
                    self.withdraw(index);
                    self.uncount(index);
                    self.forest.prune(index);
                }
            }
        }
        self.walk = rest;
        if rest.is_none() {
            match walk.purpose {
                Purpose::Publish => {}
                Purpose::Withdraw => self.forest.bury(walk.top()),
                Purpose::Delete(slot) => self.drop_next_tree(slot),
            }
        }
    }

    fn publish(&mut self, index: Index) {
        let entry = self.forest.get(index);
        let chain = match entry.parent {
            None => ChainHash::root(entry.local),
            Some(parent) => match self.forest.get(parent).chain {
                Some(chain) => self.published.hash(chain).child(entry.local),
                None => return,
            },
        };
        let chain = self.published.acquire(chain);
        self.forest.get_mut(index).chain = chain;
        self.closed += usize::from(chain.is_some());
    }

    fn withdraw(&mut self, index: Index) {
        if let Some(chain) = self.forest.get_mut(index).chain.take() {
            self.published.release(chain);
            self.closed -= 1;
        }
    }

    fn uncount(&mut self, index: Index) {
        let copies = self.forest.get(index).copies;
        self.stats.copies -= u64::from(copies);
        self.held -= usize::from(copies > 0);
    }
}
