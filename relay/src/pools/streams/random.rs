//! Random streams over links that lose, double and swap messages.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use kvgrid_core::block::HashFormat;
use kvgrid_core::event::engine::DecoderConfig;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::engine::{self, BLOCK_SIZE, Engine, Said, Salts};
use super::model::Again;
use super::worker::{self, Worker};
use super::{Life, Pools, index, seeds};
use crate::sources::dynamo_events::scripted::ScriptedFollower;
use crate::sources::engine_zmq::scripted::{Past, ScriptedFeed, SharedPast};
use crate::sources::{FeedId, FeedState, SourceEvent};

/// Messages of all publishers of a stream together, about.
const STEPS: usize = 120;

/// How well a link works, in chances a message.
#[derive(Clone, Copy, Debug)]
struct Link {
    loses: f64,
    doubles: f64,
    swaps: f64,
}

impl Link {
    fn draw(dice: &mut SmallRng) -> Self {
        let mut chance = |chance| if dice.random() { chance } else { 0.0 };
        Self {
            loses: chance(0.05),
            doubles: chance(0.05),
            swaps: chance(0.05),
        }
    }

    /// Which messages come now, when this one was sent; `late` holds back what is overtaken.
    fn carry(self, sent: u64, late: &mut Option<u64>, dice: &mut SmallRng) -> Vec<u64> {
        if dice.random_bool(self.loses) {
            return Vec::new();
        }
        if late.is_none() && dice.random_bool(self.swaps) {
            *late = Some(sent);
            return Vec::new();
        }
        let twice = dice.random_bool(self.doubles).then_some(sent);
        [sent].into_iter().chain(twice).chain(late.take()).collect()
    }
}

/// What a listener that can't ask again must have: all since the last hole.
#[derive(Default)]
struct Expected {
    first: Option<u64>,
    next: u64,
}

impl Expected {
    fn hears(&mut self, sequence: u64, said: &Said) {
        if self.first.is_none() || sequence != self.next || said.holed {
            self.first = Some(sequence);
        }
        self.next = sequence + 1;
    }
}

/// How far back an engine can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    None,
    /// So many messages.
    Short,
    /// All, but not always.
    Flaky,
    All,
}

/// An engine, its link and its feed.
struct Line {
    engine: Engine,
    link: Link,
    memory: Memory,
    feed: ScriptedFeed,
    past: Option<SharedPast>,
    late: Option<u64>,
    life: Life,
    expected: Expected,
    connected: bool,
}

impl Line {
    fn new(place: usize, eagle: bool, dice: &mut SmallRng) -> Self {
        let kinds = [Memory::None, Memory::Short, Memory::Flaky, Memory::All];
        let memory = *kinds.choose(dice).unwrap();
        let past = (memory != Memory::None).then(|| {
            Arc::new(Mutex::new(Past {
                messages: VecDeque::new(),
                breaks_after: None,
            }))
        });
        let rank = u32::try_from(place).unwrap() * 2;
        let decoder = DecoderConfig {
            block_size: NonZeroU32::new(u32::try_from(BLOCK_SIZE).unwrap()).unwrap(),
            format: if eagle {
                HashFormat::Eagle
            } else {
                HashFormat::Standard
            },
            max_salted: 10_000,
        };
        let habits = engine::Habits::draw(dice, eagle, memory == Memory::All);
        Self {
            engine: Engine::new(habits, rank, dice),
            link: Link::draw(dice),
            memory,
            feed: ScriptedFeed::new(feed(place), rank, decoder, past.clone()),
            past,
            late: None,
            life: Life::new(),
            expected: Expected::default(),
            connected: false,
        }
    }

    fn step(&mut self, dice: &mut SmallRng) -> Vec<SourceEvent> {
        if let Some(past) = &self.past {
            let fails = self.memory == Memory::Flaky && dice.random_bool(0.3);
            let breaks_after = fails.then(|| dice.random_range(0..5));
            past.lock().unwrap().breaks_after = breaks_after;
        }
        match dice.random_range(0..100) {
            0..4 => self.feed.checks(),
            4..6 => {
                // Lost connection: what is sent meanwhile is not heard.
                self.connected = false;
                Vec::new()
            }
            6..7 => self.restart(dice),
            _ if !self.connected && dice.random() => self.connect(),
            _ => self.speak(dice),
        }
    }

    fn connect(&mut self) -> Vec<SourceEvent> {
        self.connected = true;
        self.late = None;
        self.feed.connected()
    }

    fn restart(&mut self, dice: &mut SmallRng) -> Vec<SourceEvent> {
        // Who can't be asked is taken for the same one if it comes back at once.
        let slow = self.memory == Memory::None || dice.random();
        let habits = self.engine.habits;
        self.engine = Engine::new(habits, self.engine.rank, dice);
        if let Some(past) = &self.past {
            past.lock().unwrap().messages.clear();
        }
        self.expected = Expected::default();
        // As many messages as the old life had are the hardest to tell from it.
        let early = match dice.random() {
            true => self.life.said.len(),
            false => dice.random_range(0..4),
        };
        self.life.restart();
        let mut told = if slow { self.feed.gone() } else { Vec::new() };
        for _ in 0..early {
            self.publish();
        }
        told.extend(self.connect());
        told
    }

    /// Publishes a message, heard or not.
    fn publish(&mut self) -> u64 {
        let said = self.engine.says();
        let sequence = self.life.said.len() as u64;
        if let Some(past) = &self.past {
            let mut past = past.lock().unwrap();
            past.messages.push_back((sequence, said.payload.clone()));
            if self.memory == Memory::Short && past.messages.len() > 8 {
                past.messages.pop_front();
            }
        }
        self.life.said.push(said);
        sequence
    }

    fn speak(&mut self, dice: &mut SmallRng) -> Vec<SourceEvent> {
        let sent = self.publish();
        if !self.connected {
            return Vec::new();
        }
        let mut told = Vec::new();
        for sequence in self.link.carry(sent, &mut self.late, dice) {
            let said = &self.life.said[index(sequence)];
            self.expected.hears(sequence, said);
            told.extend(self.feed.hears(sequence, said.payload.clone()));
        }
        told
    }

    /// All is well again, and there was time to ask.
    fn settle(&mut self) -> Vec<SourceEvent> {
        if let Some(past) = &self.past {
            past.lock().unwrap().breaks_after = None;
        }
        let mut told = if self.connected {
            Vec::new()
        } else {
            self.connect()
        };
        told.extend(self.feed.checks());
        told
    }

    /// Insists that the feed knows what can be known.
    fn check_settled(&self, when: &str) {
        let claimed = self.life.claim.map(|claim| (claim.first, claim.last));
        assert!(self.life.before.is_none(), "{when}");
        let newest = (self.life.said.len() as u64).checked_sub(1);
        match (self.memory, newest) {
            (Memory::None, _) => assert_eq!(
                claimed.map(|(first, _)| first),
                self.expected.first,
                "{when}"
            ),
            (Memory::Short, _) => assert_eq!(claimed.map(|(_, last)| last), newest, "{when}"),
            (Memory::Flaky | Memory::All, None) => assert_eq!(claimed, None, "{when}"),
            (Memory::Flaky | Memory::All, Some(newest)) => {
                let first = self.life.first_understood(newest);
                assert_eq!(claimed, Some((first, newest)), "{when}");
                let broken = self.life.said.iter().any(|said| said.holed);
                assert_eq!(self.life.state == FeedState::Whole, !broken, "{when}");
            }
        }
    }

    /// Whether what is known can be compared with the truth: without a prompt's beginning
    /// nobody knows the salt of its rest.
    fn has_truth(&self) -> bool {
        self.memory == Memory::All || self.engine.habits.salts != Salts::Inherited
    }
}

fn feed(endpoint: usize) -> FeedId {
    FeedId {
        source: 0,
        endpoint,
    }
}

#[test]
fn random_streams_of_engines_give_what_the_model_says() {
    for seed in seeds() {
        let mut dice = SmallRng::seed_from_u64(seed);
        let eagle = dice.random_bool(0.25);
        let count = dice.random_range(1..=3);
        let mut lines: Vec<Line> = (0..count)
            .map(|it| Line::new(it, eagle, &mut dice))
            .collect();
        let mut pools = Pools::new(Again::More);
        for step in 0..STEPS {
            let when = format!("in step {step} of seed {seed}");
            let at = dice.random_range(0..count);
            let told = lines[at].step(&mut dice);
            take(&mut pools, &mut lines[at].life, &told);
            if dice.random_bool(0.2) {
                check(&pools, &lines, &when);
            }
        }
        for line in &mut lines {
            let told = line.settle();
            take(&mut pools, &mut line.life, &told);
        }
        let when = format!("at the end of seed {seed}");
        check(&pools, &lines, &when);
        for line in &lines {
            line.check_settled(&when);
        }
    }
}

fn take(pools: &mut Pools, life: &mut Life, told: &[SourceEvent]) {
    for event in told {
        life.take(event);
        pools.take(event);
    }
}

fn check(pools: &Pools, lines: &[Line], when: &str) {
    pools.check(&lines.iter().map(|line| &line.life), when);
    for line in lines.iter().filter(|line| line.has_truth()) {
        line.life.check_truth(pools.again, when);
    }
}

/// A Dynamo worker's publisher, its link and its follower.
struct Voice {
    worker: Worker,
    link: Link,
    follower: ScriptedFollower,
    feed: FeedId,
    late: Option<u64>,
    life: Life,
    expected: Expected,
}

impl Voice {
    fn new(place: usize, feed: FeedId, late: bool, dice: &mut SmallRng) -> Self {
        let habits = worker::Habits::draw(dice);
        let rank = u32::try_from(place % 2).unwrap() * 2;
        let worker = Worker::new(habits, place as u64 / 2, rank, dice);
        let speaks_for = (worker.worker, rank);
        let told = (!habits.two_ranks).then_some(speaks_for);
        Self {
            follower: ScriptedFollower::new(feed, worker.publisher, told, late),
            worker,
            link: Link::draw(dice),
            feed,
            late: None,
            life: Life::new(),
            expected: Expected::default(),
        }
    }

    fn step(&mut self, dice: &mut SmallRng) -> Vec<SourceEvent> {
        let said = self.worker.says();
        let sent = self.life.said.len() as u64;
        self.life.said.push(said);
        let mut told = Vec::new();
        for sequence in self.link.carry(sent, &mut self.late, dice) {
            let said = &self.life.said[index(sequence)];
            self.expected.hears(sequence, said);
            let framed = self.worker.habits.framed;
            let mut heard = self.follower.hears(sequence, said.payload.clone(), framed);
            for event in &mut heard {
                // A message of several ranks counts as applied with the last one's part.
                if let SourceEvent::Batch {
                    sequence: so_far, ..
                } = event
                {
                    assert!(*so_far == sequence || *so_far + 1 == sequence);
                    *so_far = sequence;
                }
            }
            told.extend(heard);
        }
        told
    }

    /// As the source does when discovery shows the publisher no more.
    fn end(&self) -> [SourceEvent; 2] {
        let (feed, publisher) = (self.feed, self.worker.publisher);
        [
            SourceEvent::PublisherGone { feed, publisher },
            SourceEvent::FeedEnded { feed },
        ]
    }

    fn check(&self, when: &str) {
        self.life.check_truth(Again::Same, when);
        let first = self.life.claim.map(|claim| claim.first);
        assert_eq!(first, self.expected.first, "{when}");
    }
}

#[test]
fn random_streams_of_dynamo_workers_give_what_the_model_says() {
    for seed in seeds() {
        let mut dice = SmallRng::seed_from_u64(seed);
        let count = dice.random_range(1..=4);
        let late = dice.random();
        let voice = |it| Voice::new(it, feed(it), late, &mut dice);
        let mut voices: Vec<Voice> = (0..count).map(voice).collect();
        let mut pools = Pools::new(Again::Same);
        for step in 0..STEPS {
            let when = format!("in step {step} of seed {seed}");
            let at = dice.random_range(0..count);
            if dice.random_bool(0.02) {
                let old = std::mem::replace(
                    &mut voices[at],
                    Voice::new(at, feed(at + (step + 1) * count), false, &mut dice),
                );
                old.end().iter().for_each(|event| pools.take(event));
            }
            let told = voices[at].step(&mut dice);
            take(&mut pools, &mut voices[at].life, &told);
            if dice.random_bool(0.2) || step + 1 == STEPS {
                pools.check(&voices.iter().map(|voice| &voice.life), &when);
                voices.iter().for_each(|voice| voice.check(&when));
            }
        }
    }
}
