//! An engine that stores and drops blocks at random, and writes about it as engines do.
//!
//! Names of blocks mean nothing, events come in all forms there are, and some are of no use
//! to the pool. Beside each message stands what it means.

use bytes::Bytes;
use kvgrid_core::event::Tier;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use xxhash_rust::xxh3::xxh3_64;

use super::model::{Fact, Name, Place, local_hash};
use super::value::Value;
use super::value::Value::{List, Nil, Uint};

mod form;

use form::set;

pub(super) const BLOCK_SIZE: usize = 2;
const SALTS: [&str; 2] = ["tenant-a", "tenant-b"];
const LORA: &str = "adapter";

/// How an engine names blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Numbers,
    /// As signed numbers, half of them negative.
    Signed,
    Binary,
}

/// Whether prompts are salted, and where that is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Salts {
    None,
    /// With every run.
    Told,
    /// With a prompt's first run only.
    Inherited,
}

/// How an engine behaves and writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub(super) names: Names,
    pub(super) salts: Salts,
    /// Events are maps, not arrays.
    pub(super) maps: bool,
    /// Arrays have a map where others have the adapter's name.
    pub(super) metadata: bool,
    /// Tokens come as pairs of neighbours.
    pub(super) eagle: bool,
    /// The number of the group of full attention; the other of 0 and 1 is of windows.
    pub(super) full_group: Option<u64>,
    /// It speaks for two ranks.
    pub(super) two_ranks: bool,
    /// Some messages are broken.
    pub(super) malformed: bool,
}

impl Habits {
    /// `repaired` says that its listener always hears of all; some things can't be known else.
    pub(super) fn draw(dice: &mut SmallRng, eagle: bool, repaired: bool) -> Self {
        let salts = [Salts::None, Salts::Told, Salts::Inherited];
        let malformed = dice.random_bool(0.15);
        let all_is_known = repaired && !malformed;
        let salts = &salts[..if all_is_known { 3 } else { 2 }];
        let groups = [None, Some(0), Some(1)];
        let groups = &groups[..if all_is_known { 3 } else { 2 }];
        let names = [Names::Numbers, Names::Signed, Names::Binary];
        Self {
            names: *names.choose(dice).unwrap(),
            salts: *salts.choose(dice).unwrap(),
            maps: dice.random(),
            metadata: dice.random(),
            eagle,
            full_group: *groups.choose(dice).unwrap(),
            two_ranks: dice.random_bool(0.3),
            malformed,
        }
    }
}

/// A message and what it means.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) payload: Bytes,
    /// All that has happened since the message before.
    pub(super) happened: Vec<Fact>,
    /// What can be known of it: all, or what is told behind the last hole.
    pub(super) told: Vec<Fact>,
    /// It has a hole, so that what was told before can't be believed any more.
    pub(super) holed: bool,
}

/// A physical copy of a block.
#[derive(Clone, Debug)]
struct Held {
    place: Place,
    name: Name,
    salt: Option<&'static str>,
}

pub(super) struct Engine {
    pub(super) habits: Habits,
    /// The rank of messages that name none.
    pub(super) rank: u32,
    dice: SmallRng,
    held: Vec<Held>,
    /// Ranks that have told what the group of windows is.
    taught: Vec<u32>,
    said: u32,
}

/// What a run of blocks is made of.
struct Run {
    place: Place,
    parent: Option<Name>,
    salt: Option<&'static str>,
    /// Whether the parent is known to be salted as the run is.
    inherits: bool,
    lora: Option<&'static str>,
    names: Vec<Name>,
    tokens: Vec<u32>,
    /// The tokens of each block, with one of the next block for EAGLE.
    windows: Vec<Vec<u32>>,
    /// Leading blocks that can be hashed.
    plain: usize,
}

impl Engine {
    pub(super) fn new(habits: Habits, rank: u32, dice: &mut SmallRng) -> Self {
        Self {
            habits,
            rank,
            dice: SmallRng::seed_from_u64(dice.random()),
            held: Vec::new(),
            taught: Vec::new(),
            said: 0,
        }
    }

    /// Does something, and says so.
    pub(super) fn says(&mut self) -> Said {
        let two = self.habits.two_ranks && self.dice.random();
        let rank = self.rank + u32::from(two);
        let (mut events, mut happened) = (Vec::new(), Vec::new());
        let mut hole = None;
        for _ in 0..self.dice.random_range(0..4) {
            let (event, fact) = self.event(rank);
            events.push(event);
            happened.extend(fact);
            if self.habits.malformed && self.dice.random_bool(0.03) {
                // Something was removed, but what?
                happened.extend(self.remove(rank).1);
                hole = Some(happened.len());
                let odd = [Uint(7), self.write("BlockRemoved", Vec::new())];
                events.push(odd.choose(&mut self.dice).unwrap().clone());
            }
        }
        let mut payload = self.batch(events, rank).write();
        if self.habits.malformed && self.dice.random_bool(0.03) {
            payload.pop();
            hole = Some(happened.len());
        }
        Said {
            payload: payload.into(),
            told: happened[hole.unwrap_or(0)..].to_vec(),
            happened,
            holed: hole.is_some(),
        }
    }

    fn event(&mut self, rank: u32) -> (Value, Option<Fact>) {
        match self.dice.random_range(0..100) {
            0..50 => self.store(rank),
            50..80 => self.remove(rank),
            80..82 => {
                self.held.retain(|held| held.place.rank != rank);
                (
                    self.write("AllBlocksCleared", vec![]),
                    Some(Fact::Cleared(rank)),
                )
            }
            _ => (self.noise(rank), None),
        }
    }

    fn store(&mut self, rank: u32) -> (Value, Option<Fact>) {
        let mut run = self.run(rank);
        let id_only = self.dice.random_bool(0.05);
        if id_only {
            run.lora = Some("nameless");
            run.names = self.names_of(&run);
        }
        let mut fields = self.fields(&run);
        if id_only {
            run.plain = 0;
            set(&mut fields, "lora_id", Uint(4));
            set(&mut fields, "lora_name", Nil);
            set(&mut fields, "extra_keys", Nil);
        }
        for name in &run.names {
            self.held.push(Held {
                place: run.place,
                name: name.clone(),
                salt: run.salt,
            });
        }
        if self.dice.random_bool(0.05) {
            // Too few tokens for the last block.
            if let Some((_, List(tokens))) =
                fields.iter_mut().find(|(name, _)| *name == "token_ids")
            {
                tokens.pop();
            }
            run.plain = run.plain.min(run.names.len() - 1);
        }
        let locals = run
            .windows
            .iter()
            .map(|window| local_hash(window, run.lora, run.salt));
        let blocks: Vec<_> = run
            .names
            .iter()
            .cloned()
            .zip(locals)
            .take(run.plain)
            .collect();
        let fact = (!blocks.is_empty()).then_some(Fact::Stored(run.place, run.parent, blocks));
        (self.write("BlockStored", fields), fact)
    }

    fn run(&mut self, rank: u32) -> Run {
        let tier = match self.dice.random_bool(0.75) {
            true => Tier::Device,
            false => Tier::HostPinned,
        };
        let place = Place { rank, tier };
        let any_tier = self.dice.random_bool(0.15);
        let parents = self
            .held
            .iter()
            .filter(|held| held.place == place || (any_tier && held.place.rank == rank));
        let parents: Vec<&Held> = parents.collect();
        let (parent, salt, inherits) = match self.dice.random_range(0..20) {
            0 => (Some(self.dice.random::<[u8; 8]>().to_vec()), None, false),
            1..13 if !parents.is_empty() => {
                let parent = *parents.choose(&mut self.dice).unwrap();
                (Some(parent.name.clone()), parent.salt, true)
            }
            _ if self.habits.salts == Salts::None => (None, None, false),
            18.. => (None, None, false),
            _ => (None, SALTS.choose(&mut self.dice).copied(), false),
        };
        let blocks = self.dice.random_range(1..=4);
        let ahead = usize::from(self.habits.eagle);
        let tokens = (0..blocks * BLOCK_SIZE + ahead).map(|_| self.dice.random_range(0..2));
        let tokens: Vec<u32> = tokens.collect();
        let windows = tokens.windows(BLOCK_SIZE + ahead).step_by(BLOCK_SIZE);
        let cut = self.dice.random_bool(0.1);
        let mut run = Run {
            place,
            parent,
            salt,
            inherits,
            lora: self.dice.random_bool(0.2).then_some(LORA),
            names: Vec::new(),
            windows: windows.map(<[u32]>::to_vec).collect(),
            tokens,
            plain: if cut {
                self.dice.random_range(0..=blocks)
            } else {
                blocks
            },
        };
        run.names = self.names_of(&run);
        run
    }

    /// The same content after the same parent has the same name, but for a few odd ones.
    fn names_of(&mut self, run: &Run) -> Vec<Name> {
        let mut parent = run.parent.clone().unwrap_or_default();
        let mut names = Vec::new();
        for window in &run.windows {
            let odd = self
                .dice
                .random_bool(0.05)
                .then(|| self.dice.random::<u64>());
            let content = format!("{parent:?}{window:?}{:?}{:?}{odd:?}", run.lora, run.salt);
            let hash = xxh3_64(content.as_bytes()).to_le_bytes().to_vec();
            parent = match self.habits.names {
                Names::Numbers | Names::Signed => hash,
                Names::Binary => hash.repeat(4),
            };
            names.push(parent.clone());
        }
        names
    }

    fn remove(&mut self, rank: u32) -> (Value, Option<Fact>) {
        let there = self.held.iter().filter(|held| held.place.rank == rank);
        let there: Vec<Place> = there.map(|held| held.place).collect();
        let Some(place) = there.choose(&mut self.dice).copied() else {
            return (self.noise(rank), None);
        };
        let mut names = Vec::new();
        for _ in 0..self.dice.random_range(1..=3) {
            let copies = (0..self.held.len()).filter(|at| self.held[*at].place == place);
            let copies: Vec<usize> = copies.collect();
            if let Some(at) = copies.choose(&mut self.dice) {
                names.push(self.held.swap_remove(*at).name);
            }
        }
        if self.dice.random_bool(0.1) {
            names.push(self.dice.random::<[u8; 8]>().to_vec());
        }
        let fields = vec![
            ("block_hashes", self.wires(&names)),
            ("medium", self.medium(place.tier)),
            ("group_idx", self.habits.full_group.map_or(Nil, Uint)),
        ];
        (
            self.write("BlockRemoved", fields),
            Some(Fact::Removed(place, names)),
        )
    }

    /// Something that changes nothing in any pool.
    fn noise(&mut self, rank: u32) -> Value {
        let mut run = self.run(rank);
        // Nothing may hang below what was never stored, so nothing is of these names again.
        run.names = run
            .names
            .iter()
            .map(|_| self.dice.random::<[u8; 8]>().to_vec())
            .collect();
        run.salt = None;
        let mut fields = self.fields(&run);
        match self.dice.random_range(0..8) {
            0 => return self.write("BlockMoved", fields),
            1 => set(&mut fields, "medium", Value::text("FS")),
            2 => set(&mut fields, "locality", Value::text("REMOTE")),
            3 => set(&mut fields, "block_size", Uint(16)),
            4 => set(&mut fields, "ownership", Value::text("kvcr")),
            5 => set(&mut fields, "token_ids", List(vec![])),
            6 => {
                let (one, pair) = (Uint(1), List(vec![Uint(1), Uint(1)]));
                let other = if self.habits.eagle { one } else { pair };
                set(
                    &mut fields,
                    "token_ids",
                    List(vec![other; run.tokens.len()]),
                );
            }
            _ => return self.window(rank, fields),
        }
        self.write("BlockStored", fields)
    }

    /// Says something of blocks of sliding windows, which have the same names as others.
    fn window(&mut self, rank: u32, mut fields: Vec<(&'static str, Value)>) -> Value {
        let same = self.held.iter().filter(|held| held.place.rank == rank);
        let same: Vec<&Held> = same.collect();
        let name = same
            .choose(&mut self.dice)
            .map(|held| self.wire(&held.name));
        let (Some(full), Some(name)) = (self.habits.full_group, name) else {
            return self.write("BlockMoved", vec![]);
        };
        let group = Uint(1 - full);
        let names = List(vec![name]);
        if self.taught.contains(&rank) && self.dice.random() {
            let fields = vec![
                ("block_hashes", names),
                ("medium", Nil),
                ("group_idx", group),
            ];
            return self.write("BlockRemoved", fields);
        }
        self.taught.push(rank);
        set(&mut fields, "block_hashes", names);
        set(&mut fields, "group_idx", group);
        set(
            &mut fields,
            "kv_cache_spec_kind",
            Value::text("sliding_window"),
        );
        set(&mut fields, "kv_cache_spec_sliding_window", Uint(128));
        self.write("BlockStored", fields)
    }
}
