//! The entries of all workers as trees: who is whose parent, by the engines' own names.
//!
//! An entry is *held* while the worker has copies of its block. A name that is only known as a
//! parent is a *ghost*: it has no copies and no parent, and lives as long as it has children.
//! So the top of a tree is either a held entry that begins a prompt, and then all of the tree is
//! closed, or a ghost, and then none of it is. (A worker that lies can tie held entries into a
//! ring; a ring has no top, is never closed, and goes with its worker.)

use std::collections::BTreeMap;

use super::lookup::{Lookup, mixed};
use super::slab::{Index, Slab, Vacant};
use crate::block::BlockHash;
use crate::event::{EngineHash, StoredBlock, WorkerKey};

/// A worker's place in the forest.
pub(super) type Slot = u16;

/// The slot of entries that are free.
const NOBODY: Slot = Slot::MAX;

/// A block of one worker, or a ghost.
pub(super) struct Entry {
    pub(super) engine: EngineHash,
    pub(super) local: BlockHash,
    /// Its published chain; `None` while it is not closed.
    pub(super) chain: Option<Index>,
    pub(super) parent: Option<Index>,
    pub(super) child: Option<Index>,
    pub(super) next: Option<Index>,
    prev: Option<Index>,
    worker: Slot,
    /// Physical copies; zero for a ghost.
    pub(super) copies: u16,
}

const _: () = assert!(size_of::<Entry>() == 40, "memory budget of an entry");

impl Vacant for Entry {
    fn next_free(&self) -> Option<Index> {
        self.next
    }

    fn set_next_free(&mut self, next: Option<Index>) {
        self.next = next;
    }
}

struct Worker {
    key: WorkerKey,
    roots: Option<Index>,
    ghosts: Option<Index>,
    entries: usize,
}

/// All entries, found by worker and engine name.
pub(super) struct Forest {
    entries: Slab<Entry>,
    names: Lookup,
    workers: Vec<Option<Worker>>,
    slots: BTreeMap<WorkerKey, Slot>,
}

impl Forest {
    /// An empty forest of at most so many entries.
    pub(super) fn new(most: usize) -> Self {
        Self {
            entries: Slab::new(most),
            names: Lookup::new(most),
            workers: Vec::new(),
            slots: BTreeMap::new(),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.entries.live()
    }

    pub(super) fn workers(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn slot(&self, worker: WorkerKey) -> Option<Slot> {
        self.slots.get(&worker).copied()
    }

    /// The worker's slot, a new one if need be; `None` past `limit` workers, which lies below [`NOBODY`].
    pub(super) fn slot_or_new(&mut self, key: WorkerKey, limit: u16) -> Option<Slot> {
        if let Some(slot) = self.slot(key) {
            return Some(slot);
        }
        if self.slots.len() >= usize::from(limit) {
            return None;
        }
        let worker = Worker {
            key,
            roots: None,
            ghosts: None,
            entries: 0,
        };
        let place = self.workers.iter().position(Option::is_none);
        let place = place.unwrap_or(self.workers.len());
        let slot = Slot::try_from(place).ok()?;
        match self.workers.get_mut(place) {
            Some(vacant) => *vacant = Some(worker),
            None => self.workers.push(Some(worker)),
        }
        self.slots.insert(key, slot);
        Some(slot)
    }

    /// Forgets a worker that has no entries left.
    pub(super) fn release_slot(&mut self, slot: Slot) {
        if let Some(worker) = self.workers[usize::from(slot)].take() {
            self.slots.remove(&worker.key);
        }
    }

    /// A tree of this worker that is still there, prompt beginnings first.
    pub(super) fn any_top(&self, slot: Slot) -> Option<Index> {
        let worker = self.workers[usize::from(slot)].as_ref()?;
        worker.roots.or(worker.ghosts)
    }

    /// Whether the worker still has entries.
    pub(super) fn has_entries(&self, slot: Slot) -> bool {
        let worker = self.workers[usize::from(slot)].as_ref();
        worker.is_some_and(|worker| worker.entries > 0)
    }

    /// Places to look through to see every entry.
    pub(super) fn places(&self) -> usize {
        self.entries.places()
    }

    /// The entry at a place, if it is this worker's.
    pub(super) fn at_place(&self, place: usize, slot: Slot) -> Option<Index> {
        let index = self.entries.index(place)?;
        (self.entries[index].worker == slot).then_some(index)
    }

    pub(super) fn find(&self, slot: Slot, engine: EngineHash) -> Option<Index> {
        self.names.find(name(slot, engine), |index| {
            let entry = &self.entries[index];
            entry.worker == slot && entry.engine == engine
        })
    }

    pub(super) fn get(&self, index: Index) -> &Entry {
        &self.entries[index]
    }

    pub(super) fn get_mut(&mut self, index: Index) -> &mut Entry {
        &mut self.entries[index]
    }

    /// Looks at where an entry of this name would be found; what it gives means nothing.
    pub(super) fn touch(&self, slot: Slot, engine: EngineHash) -> u32 {
        self.names.touch(name(slot, engine))
    }

    /// A ghost of a name that has no entry.
    pub(super) fn insert_ghost(&mut self, slot: Slot, engine: EngineHash) -> Option<Index> {
        self.add(Entry {
            engine,
            local: BlockHash(0),
            chain: None,
            parent: None,
            child: None,
            next: None,
            prev: None,
            worker: slot,
            copies: 0,
        })
    }

    /// A held entry of a name that has none.
    pub(super) fn insert(
        &mut self,
        slot: Slot,
        block: StoredBlock,
        parent: Option<Index>,
    ) -> Option<Index> {
        self.add(Entry {
            engine: block.engine,
            local: block.local,
            chain: None,
            parent,
            child: None,
            next: None,
            prev: None,
            worker: slot,
            copies: 1,
        })
    }

    /// `None` when all places are taken.
    fn add(&mut self, entry: Entry) -> Option<Index> {
        let (slot, engine) = (entry.worker, entry.engine);
        let index = self.entries.insert(entry)?;
        let entries = &self.entries;
        self.names.insert(name(slot, engine), index, |index| {
            name(entries[index].worker, entries[index].engine)
        });
        if let Some(worker) = &mut self.workers[usize::from(slot)] {
            worker.entries += 1;
        }
        self.link(index);
        Some(index)
    }

    /// Makes a ghost a held entry below `parent`; its children stay with it.
    pub(super) fn embody(&mut self, index: Index, local: BlockHash, parent: Option<Index>) {
        self.unlink(index);
        let entry = &mut self.entries[index];
        entry.local = local;
        entry.copies = 1;
        entry.parent = parent;
        self.link(index);
    }

    /// Makes a held entry a ghost, or deletes it when it has no children.
    pub(super) fn bury(&mut self, index: Index) {
        if self.entries[index].child.is_none() {
            return self.delete(index);
        }
        let parent = self.unlink(index);
        let entry = &mut self.entries[index];
        entry.copies = 0;
        entry.parent = None;
        self.link(index);
        self.delete_if_idle(parent);
    }

    /// Deletes an entry without children, and its parent if that is a ghost with no others.
    pub(super) fn delete(&mut self, index: Index) {
        let parent = self.unlink(index);
        self.erase(index);
        self.delete_if_idle(parent);
    }

    /// Deletes an entry whose children are gone, and leaves its parent to be visited later.
    pub(super) fn prune(&mut self, index: Index) {
        self.unlink(index);
        self.erase(index);
    }

    /// Takes an entry away, whatever is linked to it: only for rings, which go as a whole.
    pub(super) fn erase(&mut self, index: Index) {
        let entry = &mut self.entries[index];
        let (slot, engine) = (entry.worker, entry.engine);
        entry.worker = NOBODY;
        self.names.remove(name(slot, engine), index);
        self.entries.remove(index);
        if let Some(worker) = &mut self.workers[usize::from(slot)] {
            worker.entries -= 1;
        }
    }

    fn delete_if_idle(&mut self, parent: Option<Index>) {
        if let Some(parent) = parent {
            let entry = &self.entries[parent];
            if entry.copies == 0 && entry.child.is_none() {
                self.unlink(parent);
                self.erase(parent);
            }
        }
    }

    /// The head of the list an entry belongs to.
    fn head(&mut self, index: Index) -> Option<&mut Option<Index>> {
        let entry = &self.entries[index];
        if let Some(parent) = entry.parent {
            return Some(&mut self.entries[parent].child);
        }
        let worker = self.workers[usize::from(entry.worker)].as_mut()?;
        Some(match entry.copies {
            0 => &mut worker.ghosts,
            _ => &mut worker.roots,
        })
    }

    fn link(&mut self, index: Index) {
        let first = self.head(index).and_then(|head| head.replace(index));
        self.entries[index].prev = None;
        self.entries[index].next = first;
        if let Some(first) = first {
            self.entries[first].prev = Some(index);
        }
    }

    /// Takes an entry out of its list and says whose child it was.
    fn unlink(&mut self, index: Index) -> Option<Index> {
        let entry = &self.entries[index];
        let (parent, prev, next) = (entry.parent, entry.prev, entry.next);
        match prev {
            Some(prev) => self.entries[prev].next = next,
            None => {
                if let Some(head) = self.head(index) {
                    *head = next;
                }
            }
        }
        if let Some(next) = next {
            self.entries[next].prev = prev;
        }
        parent
    }
}

const fn name(slot: Slot, engine: EngineHash) -> u64 {
    // Blocks that several workers hold under one name would else share a bucket.
    mixed(engine.0 ^ (slot as u64).rotate_right(16))
}
