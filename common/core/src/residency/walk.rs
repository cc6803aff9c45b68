//! Resumable walks over one tree, along its own links: no stack, one entry a step.
//!
//! Nothing else touches the forest while a walk is under way.

use super::forest::{Forest, Slot};
use super::slab::Index;

/// What a walk does to the entries it visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Publish, parents first.
    Publish,
    /// Withdraw, children first; then the top becomes a ghost.
    Withdraw,
    /// Withdraw and delete, children first.
    Delete(Slot),
}

/// A walk and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) purpose: Purpose,
    top: Index,
    at: Index,
    /// On the way down, towards the leaves; otherwise this entry's children are done.
    down: bool,
}

impl Walk {
    pub(super) const fn new(purpose: Purpose, top: Index) -> Self {
        Self {
            purpose,
            top,
            at: top,
            down: true,
        }
    }

    pub(super) const fn top(&self) -> Index {
        self.top
    }

    /// The entry to visit now, if any, and the walk that is left after it.
    pub(super) fn step(self, forest: &Forest) -> (Option<Index>, Option<Self>) {
        let parents_first = self.purpose == Purpose::Publish;
        let visit = (self.down == parents_first).then_some(self.at);
        (visit, self.next(forest))
    }

    fn next(mut self, forest: &Forest) -> Option<Self> {
        let entry = forest.get(self.at);
        if self.down {
            match entry.child {
                Some(child) => self.at = child,
                None => self.down = false,
            }
            return Some(self);
        }
        if self.at == self.top {
            return None;
        }
        match entry.next {
            Some(sibling) => {
                self.at = sibling;
                self.down = true;
            }
            None => self.at = entry.parent?,
        }
        Some(self)
    }
}
