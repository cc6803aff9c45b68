use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A chain over a two-letter alphabet: its blocks are its prefixes.
type Path = Vec<u8>;

fn hash(path: &[u8]) -> ChainHash {
    ChainHash(
        path.iter()
            .fold(1, |hash, letter| hash * 4 + u64::from(*letter)),
    )
}

fn chain(path: &[u8]) -> Vec<ChainHash> {
    (1..=path.len()).map(|end| hash(&path[..end])).collect()
}

/// Stores all of `path` and ends its use; what was evicted comes back.
fn store(cache: &mut BlockCache, path: &[u8]) -> Option<Vec<ChainHash>> {
    let chain = chain(path);
    let depth = cache.depth(&chain);
    let mut tip = depth.checked_sub(1).map(|last| chain[last]);
    if let Some(tip) = tip {
        cache.pin(tip);
    }
    let evicted = cache.reserve(chain.len() - depth);
    if evicted.is_some() {
        for block in &chain[depth..] {
            assert!(cache.advance(tip, *block));
            tip = Some(*block);
        }
    }
    if let Some(tip) = tip {
        cache.unpin(tip);
    }
    evicted
}

#[test]
fn a_shared_prefix_is_stored_once() {
    let mut cache = BlockCache::new(10);

    store(&mut cache, &[0, 0, 0]);
    store(&mut cache, &[0, 0, 1]);

    assert_eq!(cache.len(), 4);
    assert_eq!(cache.depth(&chain(&[0, 0, 1, 1])), 3);
}

#[test]
fn the_leaf_used_longest_ago_goes_first() {
    let mut cache = BlockCache::new(4);
    store(&mut cache, &[0, 0]);
    store(&mut cache, &[1, 1]);
    store(&mut cache, &[0, 0]);

    let evicted = store(&mut cache, &[1, 2]).unwrap();

    assert_eq!(evicted, [hash(&[1, 1])]);
    assert_eq!(cache.depth(&chain(&[0, 0])), 2);
}

#[test]
fn what_is_in_use_stays_and_room_is_refused() {
    let mut cache = BlockCache::new(3);
    store(&mut cache, &[0, 0]);
    cache.pin(hash(&[0]));

    assert_eq!(cache.reserve(3), None);
    assert_eq!(cache.depth(&chain(&[0, 0])), 2);
    assert_eq!(cache.reserve(2), Some(vec![hash(&[0, 0])]));
    assert_eq!(cache.in_use(), 3);
}

#[test]
fn a_block_stored_twice_gives_its_room_back() {
    let mut cache = BlockCache::new(4);
    cache.reserve(2).unwrap();

    assert!(cache.advance(None, hash(&[0])));
    assert!(!cache.advance(None, hash(&[0])));

    assert_eq!((cache.len(), cache.in_use()), (1, 1));
    cache.unpin(hash(&[0]));
    assert_eq!(cache.in_use(), 1);
    cache.unpin(hash(&[0]));
    assert_eq!(cache.in_use(), 0);
}

/// The cache as a plain map from path to users and last use.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<Path, Entry>,
    reserved: usize,
    releases: u64,
}

#[derive(Default)]
struct Entry {
    pins: u32,
    last_used: u64,
}

impl Model {
    fn is_used(&self, path: &[u8]) -> bool {
        self.blocks
            .iter()
            .any(|(other, entry)| entry.pins > 0 && other.starts_with(path))
    }

    fn used(&self) -> usize {
        self.blocks.keys().filter(|path| self.is_used(path)).count()
    }

    fn unpin(&mut self, path: &[u8]) {
        self.releases += 1;
        let used_before: Vec<Path> = (1..=path.len())
            .map(|end| path[..end].to_vec())
            .filter(|prefix| self.is_used(prefix))
            .collect();
        self.blocks.get_mut(path).unwrap().pins -= 1;
        for prefix in used_before {
            if !self.is_used(&prefix) {
                self.blocks.get_mut(&prefix).unwrap().last_used = self.releases;
            }
        }
    }

    fn evict(&mut self) -> Path {
        let leaf = self
            .blocks
            .iter()
            .filter(|(path, _)| !self.is_used(path))
            .filter(|(path, _)| {
                let longer = |other: &&Path| other.len() > path.len() && other.starts_with(path);
                !self.blocks.keys().any(|other| longer(&other))
            })
            .min_by_key(|(path, entry)| (entry.last_used, hash(path)))
            .map(|(path, _)| path.clone())
            .unwrap();
        self.blocks.remove(&leaf);
        leaf
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A request over this path: pin what is here, reserve the rest.
    Begin(Path),
    /// The nth open request stores its next block.
    Advance(usize),
    /// The nth open request ends.
    End(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let path = prop::collection::vec(0u8..2, 1..6);
    let op = prop_oneof![
        2 => path.prop_map(Op::Begin),
        5 => (0usize..8).prop_map(Op::Advance),
        2 => (0usize..8).prop_map(Op::End),
    ];
    prop::collection::vec(op, 1..120)
}

struct Open {
    path: Path,
    stored: usize,
    reserved: usize,
}

struct Pair {
    cache: BlockCache,
    model: Model,
    open: Vec<Open>,
}

impl Pair {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Begin(path) => self.begin(path),
            Op::Advance(n) if !self.open.is_empty() => self.advance(n % self.open.len()),
            Op::End(n) if !self.open.is_empty() => self.end(n % self.open.len()),
            Op::Advance(_) | Op::End(_) => {}
        }
        self.check_invariants();
    }

    fn begin(&mut self, path: &[u8]) {
        let stored = self.cache.depth(&chain(path));
        let longest = (0..=path.len())
            .rev()
            .find(|end| *end == 0 || self.model.blocks.contains_key(&path[..*end]));
        assert_eq!(Some(stored), longest);
        if stored > 0 {
            self.cache.pin(hash(&path[..stored]));
            self.model.blocks.get_mut(&path[..stored]).unwrap().pins += 1;
        }
        let wanted = path.len() - stored;
        let fits = self.model.used() + self.model.reserved + wanted <= self.cache.capacity();
        let evicted = self.cache.reserve(wanted);
        assert_eq!(evicted.is_some(), fits);
        for block in evicted.iter().flatten() {
            assert_eq!(*block, hash(&self.model.evict()));
        }
        let reserved = if fits { wanted } else { 0 };
        self.model.reserved += reserved;
        self.open.push(Open {
            path: path.to_vec(),
            stored,
            reserved,
        });
    }

    fn advance(&mut self, n: usize) {
        let open = &mut self.open[n];
        if open.reserved == 0 {
            return;
        }
        let chain = chain(&open.path);
        let tip = open.stored.checked_sub(1).map(|last| chain[last]);
        let is_new = self.cache.advance(tip, chain[open.stored]);
        open.stored += 1;
        open.reserved -= 1;
        self.model.reserved -= 1;
        let next = open.path[..open.stored].to_vec();
        assert_eq!(is_new, !self.model.blocks.contains_key(&next));
        self.model.blocks.entry(next).or_default().pins += 1;
        if open.stored > 1 {
            let before = &open.path[..open.stored - 1];
            self.model.blocks.get_mut(before).unwrap().pins -= 1;
        }
    }

    fn end(&mut self, n: usize) {
        let open = self.open.swap_remove(n);
        self.cache.release(open.reserved);
        self.model.reserved -= open.reserved;
        if open.stored > 0 {
            let tip = &open.path[..open.stored];
            self.cache.unpin(hash(tip));
            self.model.unpin(tip);
        }
    }

    fn check_invariants(&self) {
        assert_eq!(self.cache.len(), self.model.blocks.len());
        assert_eq!(self.cache.in_use(), self.model.used() + self.model.reserved);
        assert!(self.cache.len() + self.model.reserved <= self.cache.capacity());
        for path in self.model.blocks.keys() {
            assert_eq!(self.cache.depth(&chain(path)), path.len());
        }
    }
}

proptest! {
    #[test]
    fn the_cache_does_what_a_plain_map_does(capacity in 1usize..14, ops in ops()) {
        let mut pair = Pair {
            cache: BlockCache::new(capacity),
            model: Model::default(),
            open: Vec::new(),
        };
        for op in &ops {
            pair.apply(op);
        }
    }
}
