//! The open batch: changes that have no sequence yet.

use crate::filter::Class;

/// Changes since the last delta, in the order they came.
#[derive(Debug, Default)]
pub(super) struct Batch {
    changes: Vec<(Class, Change)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

/// What a batch comes to: two sorted lists that have no class in common.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Net {
    pub(super) adds: Vec<Class>,
    pub(super) removes: Vec<Class>,
}

impl Batch {
    pub(super) fn add(&mut self, class: Class) {
        self.changes.push((class, Change::Add));
    }

    pub(super) fn remove(&mut self, class: Class) {
        self.changes.push((class, Change::Remove));
    }

    pub(super) const fn len(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn clear(&mut self) {
        self.changes.clear();
    }

    /// Empties the batch. Opposing changes of one class cancel out, whichever hashes they were
    /// for: the filter is a multiset of classes, so only the count matters.
    pub(super) fn take_net(&mut self) -> Net {
        self.changes.sort_unstable_by_key(|(class, _)| *class);
        let mut net = Net::default();
        for run in self.changes.chunk_by(|a, b| a.0 == b.0) {
            let class = run[0].0;
            let adds = run.iter().filter(|(_, c)| *c == Change::Add).count();
            let removes = run.len() - adds;
            let surplus = adds.abs_diff(removes);
            let list = if adds > removes {
                &mut net.adds
            } else {
                &mut net.removes
            };
            list.extend(core::iter::repeat_n(class, surplus));
        }
        self.changes.clear();
        net
    }
}
