//! What a pool must hold, worked out the slow way.
//!
//! Sets of (rank, tier, name), every chain from scratch each time it is asked for: a block
//! counts while its rank holds it and all before it, in the same tier. Shares with the code
//! under test only xxh3 itself.

use std::collections::{BTreeMap, BTreeSet};

use kvgrid_core::event::Tier;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What an engine calls a block.
pub(super) type Name = Vec<u8>;

/// Who holds a block, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) rank: u32,
    pub(super) tier: Tier,
}

/// What an event means to somebody who understands it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fact {
    /// A run of blocks, with the hashes of what is in them.
    Stored(Place, Option<Name>, Vec<(Name, u64)>),
    Removed(Place, Vec<Name>),
    /// The rank holds nothing any more.
    Cleared(u32),
}

/// What storing a block means that is held already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// One copy more.
    More,
    /// Nothing.
    Same,
}

struct Held {
    parent: Option<Name>,
    local: u64,
    copies: u32,
}

/// What one publisher's ranks hold, as far as facts tell.
pub(super) struct Model {
    again: Again,
    held: BTreeMap<Place, BTreeMap<Name, Held>>,
}

impl Model {
    pub(super) fn new(again: Again) -> Self {
        let held = BTreeMap::new();
        Self { again, held }
    }

    /// What is held after these facts.
    pub(super) fn after<'a>(again: Again, facts: impl IntoIterator<Item = &'a Fact>) -> Self {
        let mut model = Self::new(again);
        facts.into_iter().for_each(|fact| model.learn(fact));
        model
    }

    pub(super) fn learn(&mut self, fact: &Fact) {
        match fact {
            Fact::Stored(place, parent, blocks) => {
                let mut parent = parent.clone();
                for (name, local) in blocks {
                    self.store(*place, parent, name, *local);
                    parent = Some(name.clone());
                }
            }
            Fact::Removed(place, names) => {
                let held = self.held.entry(*place).or_default();
                for name in names {
                    if let Some(block) = held.get_mut(name) {
                        block.copies -= 1;
                        if block.copies == 0 {
                            held.remove(name);
                        }
                    }
                }
            }
            Fact::Cleared(rank) => self.held.retain(|place, _| place.rank != *rank),
        }
    }

    fn store(&mut self, place: Place, parent: Option<Name>, name: &Name, local: u64) {
        let held = self.held.entry(place).or_default();
        match held.get_mut(name) {
            Some(block) if block.parent == parent && block.local == local => {
                block.copies += u32::from(self.again == Again::More);
            }
            _ => {
                let copies = 1;
                let block = Held {
                    parent,
                    local,
                    copies,
                };
                held.insert(name.clone(), block);
            }
        }
    }

    /// The chain hashes of all prefixes that a rank holds whole in a tier.
    pub(super) fn chains(&self, tier: Tier) -> BTreeSet<u64> {
        let ranks = self.held.iter().filter(|(place, _)| place.tier == tier);
        let chains = ranks.flat_map(|(_, held)| held.keys().filter_map(|name| chain(held, name)));
        chains.collect()
    }
}

/// The chain of a block, if all before it are held too.
fn chain(held: &BTreeMap<Name, Held>, name: &Name) -> Option<u64> {
    let mut locals = Vec::new();
    let mut at = Some(name);
    while let Some(name) = at {
        let block = held.get(name)?;
        locals.push(block.local);
        if locals.len() > held.len() {
            return None;
        }
        at = block.parent.as_ref();
    }
    chain_of(locals.into_iter().rev())
}

/// The chain hash of a prefix, from the hashes of its blocks.
fn chain_of(locals: impl IntoIterator<Item = u64>) -> Option<u64> {
    locals.into_iter().reduce(|chain, local| {
        let both = u128::from(local) << 64 | u128::from(chain);
        xxh3_64_with_seed(&both.to_le_bytes(), 1337)
    })
}

/// The hash of one block's tokens.
pub(super) fn local_hash(tokens: &[u32], lora: Option<&str>, salt: Option<&str>) -> u64 {
    let folded = |text: Option<&str>, seed| match text {
        None | Some("") => 0,
        Some(text) => xxh3_64_with_seed(text.as_bytes(), seed),
    };
    let seed = 1337_u64.wrapping_add(folded(lora, 0));
    let seed = seed.wrapping_add(folded(salt, 1));
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    xxh3_64_with_seed(&bytes, seed)
}

#[test]
fn the_model_hashes_as_dynamo_does() {
    let (first, second) = ([1, 2, 3, 4], [5, 6, 7, 8]);
    let plain = |tokens| local_hash(tokens, None, None);
    assert_eq!(plain(&first), 14643705804678351452);
    assert_eq!(
        chain_of([plain(&first), plain(&second)]),
        Some(4945711292740353085)
    );
    let (lora, salt) = (Some("adapter-a"), Some("tenant-a"));
    assert_eq!(local_hash(&first, lora, None), 11381080598872079209);
    assert_eq!(local_hash(&first, None, salt), 5738685477468498325);
    assert_eq!(local_hash(&first, lora, salt), 9967753091837871098);
}
