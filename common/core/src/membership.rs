//! Which relays are alive: SWIM gossip, as a state machine without a network.
//!
//! [`Membership`] drives the crate foca, which probes members, spreads news on the back of
//! probes, and declares down who neither answers nor refutes the suspicion. Around it stands
//! what a grid needs beyond that:
//!
//! - a packet is taken only from the relay whose certificate it came with;
//! - announcements are repeated until somebody answers, seeds are tried for ever and lost
//!   members for a day, so that parts of a mesh which lost each other meet again;
//! - a suspect is told so directly and repeatedly by who suspects it, because lost datagrams
//!   must not be enough to declare anybody down;
//! - a relay that was declared down by mistake, or forgot its generation, takes a higher one;
//! - everything that packets can make grow has a bound.
//!
//! The shell hands in datagrams with [`Membership::handle_datagram`] and time with
//! [`Membership::handle_timeout`], then drains [`Membership::poll_transmit`] and
//! [`Membership::poll_event`] and sleeps until [`Membership::poll_timeout`].
//!
//! Any relay with a certificate can spread rumours about others, down to declaring them down
//! (they come back with their next generation). So members are hints whom to dial: who dials
//! checks the certificate, and connections say who is alive.
//!
//! **Invariants:** a member list has each relay at most once and never the relay itself; a
//! packet has at most [`PACKET_BYTES`]; a refused datagram changes nothing but a counter.

mod address;
mod admission;
mod config;
mod contacts;
mod drive;
mod error;
mod identity;
mod members;
mod timers;
mod wire;

use core::fmt;
use std::collections::VecDeque;

use bytes::Bytes;
use foca::{AccumulatingRuntime, Foca, Message, NoCustomBroadcast};
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use address::{AddressError, Addresses, Scope};
pub use config::{MembershipConfig, PACKET_BYTES};
use contacts::Contacts;
pub use error::MembershipError;
use identity::Identity;
pub use identity::Member;
use members::Members;
use timers::{Slot, Timers};
pub use wire::WireError;
use wire::{Packet, Wire, third_party};

use crate::backoff::Backoff;
use crate::id::RelayId;
use crate::time::Instant;

/// Most packets waiting to be sent; beyond it the oldest is dropped and counted, for old
/// gossip is worth the least.
const TRANSMITS: usize = 1_024;
/// Most members that a leaving relay tells itself; the others hear of it from them.
const LAST_LISTENERS: usize = 128;

/// A packet to be sent, as a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    /// Whom to. The generation is the one that the packet is for; 0 and no addresses if
    /// only the name is known.
    pub to: Member,
    /// At most [`PACKET_BYTES`].
    pub payload: Bytes,
}

/// A change of the members, or of ourselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEvent {
    /// A relay is a member now.
    Up(Member),
    /// A relay is no member any more; as it was last told.
    Down(Member),
    /// A member has another generation or other addresses.
    Updated(Member),
    /// Our own generation from now on, to be persisted.
    OwnGeneration(u64),
}

/// What was refused or lost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MembershipCounters {
    /// Datagrams whose sender names itself otherwise than its certificate, or as ourselves.
    pub wrong_sender: u64,
    /// Datagrams that are too large, no packets, or ask for what makes no sense.
    pub undecodable: u64,
    /// Datagrams and single updates about relays for which there was no room.
    pub too_many: u64,
    /// Packets not sent because nothing is known of whom they are for.
    pub unroutable: u64,
    /// Packets dropped because nobody fetched them.
    pub dropped: u64,
    /// Refusals by the protocol that must not happen.
    pub faults: u64,
}

/// The members as one relay sees them.
pub struct Membership {
    config: MembershipConfig,
    foca: Foca<Identity, Wire, SmallRng, NoCustomBroadcast>,
    effects: AccumulatingRuntime<Identity>,
    rng: SmallRng,
    timers: Timers,
    members: Members,
    contacts: Contacts,
    transmits: VecDeque<Transmit>,
    counters: MembershipCounters,
    told_generation: u64,
    phase: Phase,
    /// Delays of rediscovery while nobody answers.
    rediscovery: Backoff,
    /// Times in a row that we were declared down without being accepted in between.
    renewals: u32,
    catching_up: CatchingUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No member has answered yet, or again.
    Alone,
    /// There are members.
    Joined,
    /// We left, for good.
    Left,
}

/// How far we are in learning of members after a join.
#[derive(Clone, Copy, Debug, Default)]
struct CatchingUp {
    members: usize,
    /// Answers in a row that may have taught nothing.
    quiet: u32,
}

impl Membership {
    /// A relay that knows nobody. Its generation must be above all it had before.
    pub fn new(own: Member, config: MembershipConfig, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let foca_rng = SmallRng::from_rng(&mut rng);
        Self {
            config,
            told_generation: own.generation,
            foca: Foca::new(Identity(own), config.for_foca(), foca_rng, Wire),
            effects: AccumulatingRuntime::new(),
            rng,
            timers: Timers::default(),
            members: Members::default(),
            contacts: Contacts::default(),
            transmits: VecDeque::new(),
            counters: MembershipCounters::default(),
            phase: Phase::Alone,
            rediscovery: Backoff::new(config.announce),
            renewals: 0,
            catching_up: CatchingUp::default(),
        }
    }

    /// A relay was reached, or is to be: announces ourselves to it, again and again until it
    /// is a member, and remembers it as a seed. The 64 latest are remembered.
    pub fn announce(&mut self, to: Member, now: Instant) {
        if self.phase == Phase::Left || to.relay == self.own().relay {
            return;
        }
        let relay = to.relay.clone();
        let evicted = self
            .contacts
            .add_seed(to, Backoff::new(self.config.announce));
        if let Some(evicted) = evicted {
            self.timers.cancel(&Slot::Seed(evicted));
        }
        self.try_seed(&relay, now);
        self.settle(None, now);
    }

    /// The same, for a relay of which only the certificate's name is known, and perhaps the
    /// address under which it was reached.
    pub fn handle_peer(&mut self, relay: RelayId, addresses: Addresses, now: Instant) {
        let generation = 0;
        self.announce(
            Member {
                relay,
                generation,
                addresses,
            },
            now,
        );
    }

    /// A datagram came from the relay with this certificate.
    pub fn handle_datagram(
        &mut self,
        from: &RelayId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), MembershipError> {
        if self.phase == Phase::Left {
            return Ok(());
        }
        let result = self.accept(from, bytes, now);
        match result {
            Err(MembershipError::WrongSender { .. } | MembershipError::OwnName(_)) => {
                self.counters.wrong_sender += 1;
            }
            Err(
                MembershipError::TooLarge { .. }
                | MembershipError::Undecodable { .. }
                | MembershipError::AboutOurselves { .. },
            ) => self.counters.undecodable += 1,
            Err(MembershipError::TooMany { .. }) => self.counters.too_many += 1,
            Err(MembershipError::Protocol { .. }) | Ok(()) => {}
        }
        result
    }

    /// When [`Self::handle_timeout`] has to be called, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.timers.pop(now) {
            self.on_due(due, now);
            self.settle(None, now);
        }
    }

    /// The next packet to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next change, our own first.
    pub fn poll_event(&mut self) -> Option<MembershipEvent> {
        let generation = self.own().generation;
        if generation != self.told_generation {
            self.told_generation = generation;
            return Some(MembershipEvent::OwnGeneration(generation));
        }
        self.members.poll()
    }

    /// The relays that are alive, ourselves not among them, by name.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.iter()
    }

    /// The member of this name.
    pub fn member(&self, relay: &RelayId) -> Option<&Member> {
        self.members.get(relay)
    }

    /// Ourselves, with the present generation.
    pub fn own(&self) -> &Member {
        &self.foca.identity().0
    }

    /// What was refused or lost so far.
    pub const fn counters(&self) -> MembershipCounters {
        self.counters
    }

    /// Tells the others that we are going. What is then polled is the last to be sent; all
    /// that comes later is ignored. The members stay as they were.
    pub fn leave(&mut self, now: Instant) {
        if self.phase == Phase::Left {
            return;
        }
        self.transmits.clear();
        let listeners = self.members.len().min(LAST_LISTENERS);
        let last_words = self.config.for_leaving(listeners);
        let result = self
            .foca
            .set_config(last_words)
            .and_then(|()| self.foca.leave_cluster(&mut self.effects))
            // Twice, for one of them may be lost.
            .and_then(|()| self.foca.gossip(&mut self.effects));
        self.count_fault(&result);
        self.settle(None, now);
        self.phase = Phase::Left;
        self.timers.clear();
    }

    fn accept(
        &mut self,
        from: &RelayId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), MembershipError> {
        let peer = || from.clone();
        if bytes.len() > PACKET_BYTES {
            let bytes = bytes.len();
            return Err(MembershipError::TooLarge {
                peer: peer(),
                bytes,
            });
        }
        let packet = Packet::decode(bytes).map_err(|source| MembershipError::Undecodable {
            peer: peer(),
            source,
        })?;
        let header = &packet.header;
        if header.src.0.relay != *from {
            return Err(MembershipError::WrongSender {
                claimed: header.src.0.relay.clone(),
                certified: peer(),
            });
        }
        let own = &self.own().relay;
        if from == own {
            return Err(MembershipError::OwnName(peer()));
        }
        if third_party(&header.message).is_some_and(|about| about.0.relay == *own) {
            return Err(MembershipError::AboutOurselves { peer: peer() });
        }
        let fewer = self.admit(&packet)?;
        if header.dst == *self.foca.identity() && header.message != Message::TurnUndead {
            self.renewals = 0;
        }
        let result = self
            .foca
            .handle_data(fewer.as_deref().unwrap_or(bytes), &mut self.effects);
        let reason = result.as_ref().err().map(ToString::to_string);
        self.count_fault(&result);
        self.settle(Some(from), now);
        let said = &packet.header.src.0;
        self.members.correct(from, said.generation, &said.addresses);
        match reason {
            Some(reason) => Err(MembershipError::Protocol {
                peer: peer(),
                reason,
            }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("own", self.own())
            .field("phase", &self.phase)
            .field("members", &self.members.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
