use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::block::BlockHash;

fn worker(publisher: u64) -> WorkerKey {
    WorkerKey { publisher, rank: 0 }
}

fn block(engine: u64, local: u64) -> StoredBlock {
    StoredBlock {
        engine: EngineHash(engine),
        local: BlockHash(local),
    }
}

fn stored(parent: Option<u64>, blocks: &[(u64, u64)]) -> KvEvent {
    KvEvent::Stored {
        parent: parent.map(EngineHash),
        tier: Tier::Device,
        blocks: blocks.iter().map(|(e, l)| block(*e, *l)).collect(),
    }
}

fn removed(blocks: &[u64]) -> KvEvent {
    KvEvent::Removed {
        tier: Tier::Device,
        blocks: blocks.iter().copied().map(EngineHash).collect(),
    }
}

fn residency(max_entries: usize) -> Residency {
    Residency::new(ResidencyConfig {
        tier: Tier::Device,
        copies: Copies::Counted,
        max_entries,
        max_workers: 8,
    })
}

/// The chain of a run of local hashes.
fn chain(locals: &[u64]) -> ChainHash {
    let mut hashes = locals.iter().map(|local| BlockHash(*local));
    let root = ChainHash::root(hashes.next().unwrap());
    hashes.fold(root, ChainHash::child)
}

impl Residency {
    fn settle(&mut self) -> Vec<PoolOp> {
        while self.step(1) {}
        self.drain_ops().collect()
    }

    fn after(&mut self, publisher: u64, event: KvEvent) -> Vec<PoolOp> {
        self.apply(worker(publisher), event);
        self.settle()
    }
}

use PoolOp::{Insert, Remove};

#[test]
fn a_stored_run_is_published_parents_first() {
    let mut pool = residency(100);

    let ops = pool.after(1, stored(None, &[(91, 1), (92, 2)]));
    let more = pool.after(1, stored(Some(92), &[(93, 3)]));

    assert_eq!(ops, [Insert(chain(&[1])), Insert(chain(&[1, 2]))]);
    assert_eq!(more, [Insert(chain(&[1, 2, 3]))]);
}

#[test]
fn where_copies_are_not_told_one_removal_ends_what_was_stored_twice() {
    let mut pool = Residency::new(ResidencyConfig {
        copies: Copies::Once,
        ..residency(100).config
    });
    pool.after(1, stored(None, &[(91, 1)]));
    pool.after(1, stored(None, &[(91, 1), (92, 2)]));

    let ops = pool.after(1, removed(&[92, 91]));

    assert_eq!(ops, [Remove(chain(&[1, 2])), Remove(chain(&[1]))]);
    assert_eq!((pool.stats().copies, pool.stats().unknown_removals), (0, 0));
}

#[test]
fn a_removal_in_the_middle_withdraws_what_follows_leaf_first() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1), (92, 2), (93, 3)]));

    let ops = pool.after(1, removed(&[92]));

    assert_eq!(ops, [Remove(chain(&[1, 2, 3])), Remove(chain(&[1, 2]))]);
    assert_eq!(pool.stats().orphans, 1);
}

#[test]
fn storing_a_removed_block_again_publishes_what_follows() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1), (92, 2), (93, 3)]));
    pool.after(1, removed(&[92]));

    let ops = pool.after(1, stored(Some(91), &[(92, 2)]));

    assert_eq!(ops, [Insert(chain(&[1, 2])), Insert(chain(&[1, 2, 3]))]);
    assert_eq!(pool.stats().orphans, 0);
}

#[test]
fn an_orphan_waits_for_its_parent() {
    let mut pool = residency(100);

    let early = pool.after(1, stored(Some(91), &[(92, 2)]));
    let orphans = pool.stats().orphans;
    let late = pool.after(1, stored(None, &[(91, 1)]));

    assert_eq!(early, []);
    assert_eq!(orphans, 1);
    assert_eq!(late, [Insert(chain(&[1])), Insert(chain(&[1, 2]))]);
}

#[test]
fn no_patchwork_of_two_workers_is_published() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1)]));

    let ops = pool.after(2, stored(Some(91), &[(92, 2)]));

    assert_eq!(ops, []);
}

#[test]
fn a_chain_stays_while_one_worker_holds_it() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1)]));

    let second = pool.after(2, stored(None, &[(77, 1)]));
    let first_gone = pool.after(1, removed(&[91]));
    let both_gone = pool.after(2, removed(&[77]));

    assert_eq!(second, []);
    assert_eq!(first_gone, []);
    assert_eq!(both_gone, [Remove(chain(&[1]))]);
}

#[test]
fn each_physical_copy_is_removed_for_itself() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1)]));
    pool.after(1, stored(None, &[(91, 1)]));

    let one_left = pool.after(1, removed(&[91]));
    let none_left = pool.after(1, removed(&[91]));

    assert_eq!(one_left, []);
    assert_eq!(none_left, [Remove(chain(&[1]))]);
}

#[test]
fn one_chain_under_two_names_is_counted_twice() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1)]));
    pool.after(1, stored(None, &[(81, 1)]));

    let one_left = pool.after(1, removed(&[91]));
    let none_left = pool.after(1, removed(&[81]));

    assert_eq!(one_left, []);
    assert_eq!(none_left, [Remove(chain(&[1]))]);
}

#[test]
fn a_dropped_worker_takes_its_blocks_leaf_first() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1), (92, 2)]));
    pool.after(1, stored(Some(55), &[(56, 6)]));

    pool.drop_worker(worker(1));
    let ops = pool.settle();

    assert_eq!(ops, [Remove(chain(&[1, 2])), Remove(chain(&[1]))]);
    assert_eq!(pool.stats(), ResidencyStats::default());
    assert_eq!(pool.forest.len(), 0);
}

#[test]
fn a_ring_of_names_is_never_published_and_goes_with_its_worker() {
    let mut pool = residency(100);
    pool.after(1, stored(Some(92), &[(91, 1)]));
    pool.after(1, stored(Some(91), &[(92, 2), (93, 3)]));
    let held = pool.stats().held;

    pool.drop_worker(worker(1));
    let ops = pool.settle();

    assert_eq!(held, 3);
    assert_eq!(ops, []);
    assert_eq!(pool.stats(), ResidencyStats::default());
    assert_eq!(pool.forest.len(), 0);
}

#[test]
fn a_name_with_new_content_loses_the_old() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1), (92, 2)]));

    let ops = pool.after(1, stored(None, &[(91, 7)]));

    assert_eq!(
        ops,
        [
            Remove(chain(&[1, 2])),
            Remove(chain(&[1])),
            Insert(chain(&[7])),
            Insert(chain(&[7, 2])),
        ]
    );
    assert_eq!(pool.stats().renamed, 1);
}

#[test]
fn a_full_residency_refuses_new_blocks_and_counts_them() {
    let mut pool = residency(2);

    let ops = pool.after(1, stored(None, &[(91, 1), (92, 2), (93, 3)]));
    let refused = pool.stats().refused;
    pool.after(1, removed(&[92]));
    let room = pool.after(1, stored(Some(91), &[(94, 4)]));

    assert_eq!(ops.len(), 2);
    assert_eq!(refused, 1);
    assert_eq!(room, [Insert(chain(&[1, 4]))]);
}

#[test]
fn workers_past_the_limit_are_refused() {
    let mut pool = residency(100);
    for publisher in 0..8 {
        pool.after(publisher, stored(None, &[(91, publisher)]));
    }

    let ops = pool.after(8, stored(None, &[(91, 99)]));

    assert_eq!(ops, []);
    assert_eq!(pool.stats().refused, 1);
}

#[test]
fn another_tier_is_not_this_pools() {
    let mut pool = residency(100);
    pool.after(1, stored(None, &[(91, 1)]));

    let ops = pool.after(
        1,
        KvEvent::Removed {
            tier: Tier::Disk,
            blocks: vec![EngineHash(91)],
        },
    );

    assert_eq!(ops, []);
    assert_eq!(pool.stats().unknown_removals, 0);
}

#[test]
fn a_step_touches_no_more_than_its_budget() {
    let mut pool = residency(10_000);
    let run: Vec<_> = (1..=1000).map(|n| (n + 5000, n)).collect();
    pool.after(1, stored(None, &run));

    pool.drop_worker(worker(1));
    let more = pool.step(100);

    assert!(more);
    assert!(pool.drain_ops().count() <= 100);
}

/// What a worker holds, plainly: name -> (parent's name, local hash, copies).
type Held = BTreeMap<u64, (Option<u64>, u64, u32)>;

#[derive(Default)]
struct Model {
    workers: BTreeMap<u64, Held>,
    /// Every chain ever closed, and the chain before it.
    before: BTreeMap<ChainHash, Option<ChainHash>>,
}

impl Model {
    fn store(&mut self, publisher: u64, parent: Option<u64>, blocks: &[(u64, u64)]) {
        let held = self.workers.entry(publisher).or_default();
        let mut parent = parent;
        for (engine, local) in blocks {
            if parent == Some(*engine) {
                return;
            }
            match held.get_mut(engine) {
                Some((p, l, copies)) if (*p, *l) == (parent, *local) => *copies += 1,
                _ => {
                    held.insert(*engine, (parent, *local, 1));
                }
            }
            parent = Some(*engine);
        }
    }

    fn remove(&mut self, publisher: u64, blocks: &[u64]) {
        let held = self.workers.entry(publisher).or_default();
        for engine in blocks {
            if let Some((_, _, copies)) = held.get_mut(engine) {
                *copies -= 1;
                if *copies == 0 {
                    held.remove(engine);
                }
            }
        }
    }

    /// The locals from the prompt's beginning to this name, if all are held.
    fn path(held: &Held, engine: u64) -> Option<Vec<u64>> {
        let mut path = Vec::new();
        let mut at = Some(engine);
        while let Some(name) = at {
            let (parent, local, _) = held.get(&name)?;
            path.push(*local);
            if path.len() > held.len() {
                return None;
            }
            at = *parent;
        }
        path.reverse();
        Some(path)
    }

    fn published(&mut self) -> BTreeSet<ChainHash> {
        let mut found = BTreeSet::new();
        for held in self.workers.values() {
            for path in held.keys().filter_map(|name| Self::path(held, *name)) {
                let parent = match path.len() {
                    1 => None,
                    length => Some(chain(&path[..length - 1])),
                };
                self.before.insert(chain(&path), parent);
                found.insert(chain(&path));
            }
        }
        found
    }

    fn held(&self) -> usize {
        self.workers.values().map(BTreeMap::len).sum()
    }

    fn copies(&self) -> u64 {
        let entries = self.workers.values().flat_map(BTreeMap::values);
        entries.map(|(_, _, copies)| u64::from(*copies)).sum()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Store(u64, Option<u64>, Vec<(u64, u64)>),
    Remove(u64, Vec<u64>),
    Clear(u64),
    Drop(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let name = 0u64..10;
    let run = prop::collection::vec((name.clone(), 0u64..4), 1..5);
    prop_oneof![
        6 => (0u64..3, prop::option::of(name.clone()), run)
            .prop_map(|(w, parent, run)| Op::Store(w, parent, run)),
        4 => (0u64..3, prop::collection::vec(name, 1..4)).prop_map(|(w, names)| Op::Remove(w, names)),
        1 => (0u64..3).prop_map(Op::Clear),
        1 => (0u64..3).prop_map(Op::Drop),
    ]
}

/// Replays changes into a set and insists that it is closed at every moment.
fn replay(
    set: &mut BTreeSet<ChainHash>,
    ops: &[PoolOp],
    before: &BTreeMap<ChainHash, Option<ChainHash>>,
) {
    for op in ops {
        match op {
            Insert(chain) => {
                assert!(set.insert(*chain), "inserted twice");
                if let Some(Some(parent)) = before.get(chain) {
                    assert!(set.contains(parent), "inserted before its parent");
                }
            }
            Remove(chain) => {
                assert!(set.remove(chain), "removed but not there");
                let child = set
                    .iter()
                    .find(|child| before.get(*child) == Some(&Some(*chain)));
                assert_eq!(child, None, "removed before its child");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_published_set_is_the_closed_union(
        ops in prop::collection::vec(op(), 1..60),
        budget in 1usize..20,
    ) {
        let mut model = Model::default();
        let mut pool = residency(1000);
        let mut replica = BTreeSet::new();

        for op in ops {
            match op {
                Op::Store(w, parent, run) => {
                    model.store(w, parent, &run);
                    pool.apply(worker(w), stored(parent, &run));
                }
                Op::Remove(w, names) => {
                    model.remove(w, &names);
                    pool.apply(worker(w), removed(&names));
                }
                Op::Clear(w) => {
                    model.workers.remove(&w);
                    pool.apply(worker(w), KvEvent::Cleared);
                }
                Op::Drop(w) => {
                    model.workers.remove(&w);
                    pool.drop_worker(worker(w));
                }
            }
            let expected = model.published();
            while pool.step(budget) {}
            let changes: Vec<_> = pool.drain_ops().collect();
            replay(&mut replica, &changes, &model.before);

            prop_assert_eq!(&replica, &expected);
            prop_assert_eq!(pool.published().collect::<BTreeSet<_>>(), expected);
            prop_assert_eq!(pool.stats().held, model.held());
            prop_assert_eq!(pool.stats().copies, model.copies());
        }

        for w in 0..3 {
            pool.drop_worker(worker(w));
        }
        pool.settle();
        prop_assert_eq!(pool.published().count(), 0);
        prop_assert_eq!(pool.forest.len(), 0);
    }
}
