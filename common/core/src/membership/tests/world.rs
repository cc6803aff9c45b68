//! Relays, datagrams under way and virtual time; no relay is alike in when it began.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::{
    Addresses, Member, Membership, MembershipConfig, MembershipEvent, PACKET_BYTES, TRANSMITS,
};
use crate::id::RelayId;
use crate::time::Instant;

/// 239 ms there and back.
const ONE_WAY: Duration = Duration::from_micros(119_500);

pub(super) fn relay(number: usize) -> RelayId {
    RelayId::new(&format!("relay-{number:03}")).unwrap()
}

fn number(relay: &RelayId) -> usize {
    relay.as_str()["relay-".len()..].parse().unwrap()
}

pub(in super::super) fn member(number: usize, generation: u64) -> Member {
    let relay = relay(number);
    let address = format!("{relay}.example.net:7440");
    Member {
        addresses: Addresses::new([("internet", address.as_str())]).unwrap(),
        relay,
        generation,
    }
}

/// What a relay told its shell.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) to: usize,
    pub(super) event: MembershipEvent,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Datagram {
        from: usize,
        to: usize,
        bytes: Bytes,
    },
    Wake(usize),
}

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) config: MembershipConfig,
    pub(super) rng: SmallRng,
    /// The probability that a datagram is lost.
    loss: f64,
    pub(super) relays: Vec<Option<Membership>>,
    wakes: Vec<Option<Instant>>,
    /// The part of the network that each is in; only within a part do datagrams arrive.
    pub(super) parts: Vec<usize>,
    pub(super) told: Vec<Told>,
    /// Payload sent by all.
    pub(super) bytes: u64,
    coming: BinaryHeap<Reverse<(Instant, u64, What)>>,
    events: u64,
}

impl World {
    pub(super) fn new(count: usize, loss: f64, seed: u64) -> Self {
        Self {
            now: Instant::ZERO,
            config: MembershipConfig::default(),
            rng: SmallRng::seed_from_u64(seed),
            loss,
            relays: (0..count).map(|_| None).collect(),
            wakes: vec![None; count],
            parts: vec![0; count],
            told: Vec::new(),
            bytes: 0,
            coming: BinaryHeap::new(),
            events: 0,
        }
    }

    /// All relays, begun within two seconds, with relay 0 as their seed.
    pub(super) fn begun(count: usize, loss: f64, seed: u64) -> Self {
        let mut world = Self::new(count, loss, seed);
        for number in 0..count {
            world.start(number, 1);
        }
        let mut others: Vec<usize> = (1..count).collect();
        while !others.is_empty() {
            let at = world.rng.random_range(0..others.len());
            let joining = others.swap_remove(at);
            world.join(joining, 0);
            let pause = world.rng.random_range(0.0..4.0 / count as f64);
            world.run_for(Duration::from_secs_f64(pause));
        }
        world
    }

    /// A mesh in which everyone knows everyone, at a random point of its protocol periods.
    pub(super) fn whole(count: usize, loss: f64, seed: u64) -> Self {
        let mut world = Self::begun(count, loss, seed);
        assert!(
            world.run_until_whole(Duration::from_secs(120)),
            "seed {seed}: {count} relays didn't meet at loss {loss}"
        );
        let more = world.rng.random_range(10.0..40.0);
        world.run_for(Duration::from_secs_f64(more));
        world.told.clear();
        world
    }

    pub(super) fn start(&mut self, number: usize, generation: u64) {
        let own = member(number, generation);
        let seed = self.rng.random();
        self.relays[number] = Some(Membership::new(own, self.config, seed));
        self.wakes[number] = None;
    }

    pub(super) fn kill(&mut self, number: usize) {
        self.relays[number] = None;
    }

    pub(super) fn join(&mut self, number: usize, seed: usize) {
        let now = self.now;
        self.get(number)
            .handle_peer(relay(seed), Addresses::none(), now);
        self.after(number);
    }

    pub(super) fn leave(&mut self, number: usize) {
        let now = self.now;
        self.get(number).leave(now);
        self.after(number);
    }

    pub(super) fn get(&mut self, number: usize) -> &mut Membership {
        self.relays[number].as_mut().unwrap()
    }

    /// Members that a live relay sees, by number.
    pub(super) fn seen_by(&self, number: usize) -> Vec<usize> {
        let members = self.relays[number].as_ref().unwrap().members();
        members.map(|m| self::number(&m.relay)).collect()
    }

    pub(super) fn live(&self) -> Vec<usize> {
        (0..self.relays.len())
            .filter(|number| self.relays[*number].is_some())
            .collect()
    }

    /// Whether every live relay sees all the other live ones and nobody else.
    pub(super) fn is_whole(&self) -> bool {
        let live = self.live();
        live.iter().all(|number| {
            let mut seen = self.seen_by(*number);
            seen.push(*number);
            seen.sort_unstable();
            seen == live
        })
    }

    /// Events that took a live relay off a list, or made one take another generation.
    pub(super) fn false_deaths(&self) -> usize {
        let wrong = |told: &&Told| match &told.event {
            MembershipEvent::Down(member) => self.relays[number(&member.relay)].is_some(),
            MembershipEvent::OwnGeneration(_) => true,
            MembershipEvent::Up(_) | MembershipEvent::Updated(_) => false,
        };
        self.told.iter().filter(wrong).count()
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
    }

    /// Runs until every list is right, and says whether that was in time.
    pub(super) fn run_until_whole(&mut self, time: Duration) -> bool {
        self.run_until(time, Self::is_whole)
    }

    /// Runs until the condition holds, looked at 50 times a second.
    pub(super) fn run_until(&mut self, time: Duration, condition: fn(&Self) -> bool) -> bool {
        let until = self.now + time;
        while self.now < until {
            if condition(self) {
                return true;
            }
            self.run_for(Duration::from_millis(20));
        }
        condition(self)
    }

    /// The next event before that time; false, and that time, if there is none.
    fn step(&mut self, until: Instant) -> bool {
        match self.coming.peek() {
            Some(Reverse((at, _, _))) if *at <= until => {}
            _ => {
                self.now = until;
                return false;
            }
        }
        let Some(Reverse((at, _, what))) = self.coming.pop() else {
            return false;
        };
        self.now = at;
        match what {
            What::Datagram { from, to, bytes } => {
                if let Some(receiver) = &mut self.relays[to] {
                    receiver.handle_datagram(&relay(from), &bytes, at).unwrap();
                    self.after(to);
                }
            }
            What::Wake(number) => {
                if self.wakes[number] == Some(at)
                    && let Some(relay) = &mut self.relays[number]
                {
                    self.wakes[number] = None;
                    relay.handle_timeout(at);
                    self.after(number);
                }
            }
        }
        true
    }

    /// Drains a relay, and checks what must always hold.
    fn after(&mut self, number: usize) {
        let Some(relay) = &mut self.relays[number] else {
            return;
        };
        check(relay);
        let mut sent = Vec::new();
        while let Some(transmit) = relay.poll_transmit() {
            sent.push(transmit);
        }
        while let Some(event) = relay.poll_event() {
            self.told.push(Told { to: number, event });
        }
        let next = relay.poll_timeout().map(|at| at.max(self.now));
        if let Some(at) = next
            && self.wakes[number].is_none_or(|set| set != at)
        {
            self.wakes[number] = Some(at);
            self.push(at, What::Wake(number));
        }
        for transmit in sent {
            assert!(transmit.payload.len() <= PACKET_BYTES);
            self.bytes += transmit.payload.len() as u64;
            let to = self::number(&transmit.to.relay);
            let lost = self.rng.random_bool(self.loss);
            if !lost && self.parts[number] == self.parts[to] {
                let (from, bytes) = (number, transmit.payload);
                self.push(self.now + ONE_WAY, What::Datagram { from, to, bytes });
            }
        }
    }

    fn push(&mut self, at: Instant, what: What) {
        self.events += 1;
        self.coming.push(Reverse((at, self.events, what)));
    }
}

/// What holds after every event.
pub(super) fn check(relay: &Membership) {
    let own = &relay.own().relay;
    assert!(relay.member(own).is_none(), "{own} is its own member");
    assert_eq!(relay.members().len(), relay.foca.num_members(), "at {own}");
    assert!(relay.transmits.len() <= TRANSMITS);
    let known = relay.foca.iter_membership_state().len();
    assert!(known <= relay.config.most_members);
    // A few of our own, and a suspicion, a reminder and a time to forget for each.
    let timers = relay.timers.len();
    assert!(
        timers <= 8 + 64 + 3 * known,
        "{timers} timers, {known} known"
    );
    assert!(relay.contacts.len() <= 64 + 256);
    assert!(relay.members.pending() <= 2 * relay.config.most_members);
    // The backlog of news waiting to be passed on.
    assert!(relay.foca.updates_backlog() <= 3 * relay.config.most_members + 100);
    assert_eq!(relay.counters().faults, 0, "at {own}");
}
