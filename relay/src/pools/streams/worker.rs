//! A Dynamo worker that stores and drops blocks at random, and says so on the event plane.

use bytes::Bytes;
use kvgrid_core::event::Tier;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::engine::Said;
use super::model::{Fact, Name, Place};
use super::value::Value;
use super::value::Value::{Bytes as Binary, List, Nil, Uint};

/// How a worker behaves and writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// One event a message, and that not in a list.
    pub(super) single: bool,
    /// A frame is around each message.
    pub(super) framed: bool,
    /// One publisher speaks for two ranks.
    pub(super) two_ranks: bool,
    /// Some messages are broken.
    pub(super) malformed: bool,
    /// Some events get lost before they are published.
    pub(super) forgets: bool,
}

impl Habits {
    pub(super) fn draw(dice: &mut SmallRng) -> Self {
        let (two_ranks, malformed) = (dice.random_bool(0.3), dice.random_bool(0.2));
        Self {
            single: dice.random_bool(0.2),
            framed: dice.random(),
            two_ranks,
            malformed,
            // The hole shows with the rank's next event, at once if there is but one rank, and
            // not at all behind another hole.
            forgets: !two_ranks && !malformed && dice.random_bool(0.3),
        }
    }
}

pub(super) struct Worker {
    pub(super) habits: Habits,
    pub(super) publisher: u64,
    pub(super) worker: u64,
    /// The first rank it speaks for.
    pub(super) rank: u32,
    /// Events so far, by rank.
    events: [u64; 2],
    messages: u64,
    held: Vec<(Place, Name)>,
    dice: SmallRng,
}

impl Worker {
    pub(super) fn new(habits: Habits, worker: u64, rank: u32, dice: &mut SmallRng) -> Self {
        Self {
            habits,
            publisher: dice.random::<u64>() >> 11,
            worker,
            rank,
            events: [0; 2],
            messages: 0,
            held: Vec::new(),
            dice: SmallRng::seed_from_u64(dice.random()),
        }
    }

    /// Does something, and says so.
    pub(super) fn says(&mut self) -> Said {
        let count = if self.habits.single {
            1
        } else {
            self.dice.random_range(1..4)
        };
        let (mut events, mut happened) = (Vec::new(), Vec::new());
        let mut hole = None;
        for _ in 0..count {
            let rank = self.any_rank();
            if self.habits.forgets && self.dice.random_bool(0.03) {
                happened.extend(self.change(rank).1);
                hole = Some(happened.len());
                self.next_number(rank);
            }
            let odd = self.habits.malformed && self.dice.random_bool(0.03);
            let (event, fact) = self.event(rank, odd);
            events.push(event);
            happened.extend(fact);
            if odd {
                hole = Some(happened.len());
            }
        }
        if !self.habits.two_ranks && !self.habits.single && self.dice.random_bool(0.1) {
            events.push(self.foreign());
        }
        let payload = match self.habits.single {
            true => events.remove(0),
            false => List(events),
        };
        let mut payload = self.message(&payload);
        if self.habits.malformed && self.dice.random_bool(0.05) {
            hole = Some(happened.len());
            payload.truncate(payload.len() / 2);
        }
        Said {
            payload: Bytes::from(payload),
            told: happened[hole.unwrap_or(0)..].to_vec(),
            happened,
            holed: hole.is_some(),
        }
    }

    fn message(&mut self, payload: &Value) -> Vec<u8> {
        let message = Value::map([
            ("publisher_id", Uint(self.publisher)),
            ("sequence", Uint(self.messages)),
            ("published_at", Uint(0)),
            ("topic", Value::text("kv-events")),
            ("payload", Binary(payload.write())),
        ]);
        self.messages += 1;
        let message = message.write();
        if !self.habits.framed {
            return message;
        }
        let length = u32::try_from(message.len()).unwrap();
        [&[1][..], &length.to_be_bytes(), &message].concat()
    }

    fn any_rank(&mut self) -> u32 {
        let other = self.habits.two_ranks && self.dice.random();
        self.rank + u32::from(other)
    }

    fn next_number(&mut self, rank: u32) -> u64 {
        let events = &mut self.events[usize::from(rank > self.rank)];
        *events += 1;
        *events
    }

    /// An event of a worker that the publisher doesn't speak for.
    fn foreign(&mut self) -> Value {
        let data = Value::text("cleared");
        let number = Uint(self.dice.random_range(0..9));
        let rank = Uint(self.rank.into());
        let inner = Value::map([("event_id", number), ("data", data), ("dp_rank", rank)]);
        Value::map([("worker_id", Uint(self.worker + 1000)), ("event", inner)])
    }

    /// `odd`: something was removed, but nobody can read what.
    fn event(&mut self, rank: u32, odd: bool) -> (Value, Option<Fact>) {
        let number = self.next_number(rank);
        // What a cache owner says is none of the worker's, broken or not.
        let noise = !odd && self.dice.random_bool(0.1);
        let (mut data, fact) = match noise {
            true => self.noise(),
            false => self.change(rank),
        };
        let owned = noise && self.dice.random();
        let tier = match &fact {
            Some(Fact::Stored(place, ..) | Fact::Removed(place, _))
                if place.tier == Tier::HostPinned =>
            {
                Value::text("host_pinned")
            }
            None if !owned => Value::text("tape"),
            _ => Value::text("device"),
        };
        let domain = if owned { "cache_owner" } else { "worker" };
        if odd {
            data = Value::map([("removed", Nil)]);
        }
        let inner = Value::map([
            ("event_id", Uint(number)),
            ("data", data),
            ("dp_rank", Uint(rank.into())),
        ]);
        let event = Value::map([
            ("worker_id", Uint(self.worker)),
            ("storage_tier", tier),
            ("residency_domain", Value::text(domain)),
            ("event", inner),
        ]);
        (event, fact)
    }

    /// What is no worker's storage, or of no known kind.
    fn noise(&mut self) -> (Value, Option<Fact>) {
        let blocks = List(vec![block(&[7; 8].to_vec(), 1)]);
        let stored = Value::map([("parent_hash", Nil), ("blocks", blocks)]);
        let kind = ["stored", "moved"].choose(&mut self.dice).unwrap();
        (Value::map([(*kind, stored)]), None)
    }

    fn change(&mut self, rank: u32) -> (Value, Option<Fact>) {
        let tier = match self.dice.random_bool(0.75) {
            true => Tier::Device,
            false => Tier::HostPinned,
        };
        let place = Place { rank, tier };
        let there = self.held.iter().filter(|(of, _)| *of == place);
        let there: Vec<Name> = there.map(|(_, name)| name.clone()).collect();
        match self.dice.random_range(0..100) {
            0..2 => {
                self.held.retain(|(of, _)| of.rank != rank);
                (Value::text("cleared"), Some(Fact::Cleared(rank)))
            }
            2..40 if !there.is_empty() => self.remove(place, &there),
            _ => self.store(place, &there),
        }
    }

    fn store(&mut self, place: Place, there: &[Name]) -> (Value, Option<Fact>) {
        let parent = match self.dice.random_range(0..10) {
            0 => Some(self.dice.random::<[u8; 8]>().to_vec()),
            1..7 => there.choose(&mut self.dice).cloned(),
            _ => None,
        };
        let (mut blocks, mut before) = (Vec::new(), parent.clone());
        for _ in 0..self.dice.random_range(1..=4) {
            let local = self.dice.random_range(1..4);
            let content = format!("{}{before:?}{local}", self.publisher);
            let hash = xxhash_rust::xxh3::xxh3_64(content.as_bytes());
            let name = hash.to_le_bytes().to_vec();
            before = Some(name.clone());
            if !there.contains(&name) {
                self.held.push((place, name.clone()));
            }
            blocks.push((name, local));
        }
        let list = Value::list(blocks.iter().map(|(name, local)| block(name, *local)));
        let data = Value::map([
            ("parent_hash", parent.as_ref().map_or(Nil, number)),
            ("start_position", Nil),
            ("blocks", list),
        ]);
        let fact = Fact::Stored(place, parent, blocks);
        (Value::map([("stored", data)]), Some(fact))
    }

    fn remove(&mut self, place: Place, there: &[Name]) -> (Value, Option<Fact>) {
        let count = self.dice.random_range(1..=3);
        let mut names: Vec<Name> = there.sample(&mut self.dice, count).cloned().collect();
        self.held
            .retain(|(of, name)| *of != place || !names.contains(name));
        if self.dice.random_bool(0.1) {
            names.push(self.dice.random::<[u8; 8]>().to_vec());
        }
        let hashes = Value::list(names.iter().map(number));
        let data = Value::map([("removed", Value::map([("block_hashes", hashes)]))]);
        (data, Some(Fact::Removed(place, names)))
    }
}

fn block(name: &Name, local: u64) -> Value {
    Value::map([
        ("block_hash", number(name)),
        ("tokens_hash", Uint(local)),
        ("mm_extra_info", Nil),
    ])
}

fn number(name: &Name) -> Value {
    Uint(u64::from_le_bytes(*name.first_chunk().unwrap()))
}
