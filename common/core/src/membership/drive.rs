//! Between foca's wishes and what the shell sees: timers, announcements, reminders, routing.

use core::time::Duration;

use bytes::Bytes;
use foca::{Header, Member as Update, Message, OwnedNotification, State, Timer};
use rand::RngExt;
use rand::seq::IteratorRandom;

use super::identity::{Identity, Member};
use super::timers::{Due, Slot};
use super::wire::Packet;
use super::{CatchingUp, Membership, Phase, TRANSMITS, Transmit};
use crate::backoff::Backoff;
use crate::id::RelayId;
use crate::time::Instant;

/// Relays that are tried at once while nobody answers.
const TRIED_ALONE: usize = 3;
/// Answers in a row that teach nothing before catching up ends. A packet holds a third of a
/// mesh of 64, so this many leave hardly anyone out; probes find the rest.
const QUIET: u32 = 8;
/// The largest leap over generations that we have forgotten, as a power of two.
const LEAP_BITS: u32 = 16;
/// No timer is shorter, so that a period of zero can't hold the caller for ever.
const SHORTEST: Duration = Duration::from_millis(1);

impl Membership {
    pub(super) fn on_due(&mut self, due: Due, now: Instant) {
        match due {
            // Foca would tell a member that it is down although it refuted the suspicion.
            Due::Foca(Timer::ChangeSuspectToDown {
                member_id,
                incarnation,
                ..
            }) if !self.suspects(&member_id, incarnation) => {}
            Due::Foca(timer) => {
                let result = self.foca.handle_timer(timer, &mut self.effects);
                self.count_fault(&result);
            }
            Due::Remind {
                suspect,
                incarnation,
            } => self.remind(suspect, incarnation, now),
            Due::Seed(relay) => self.try_seed(&relay, now),
            Due::Rediscover => self.rediscover(now),
            Due::CatchUp => self.catch_up(now),
        }
    }

    /// Carries out what foca wished, and sees to it that rediscovery goes on.
    pub(super) fn settle(&mut self, sender: Option<&RelayId>, now: Instant) {
        if self.drain(sender, now) {
            self.leap();
            if let Some(relay) = sender {
                self.announce_to(Member {
                    relay: relay.clone(),
                    generation: 0,
                    addresses: super::Addresses::none(),
                });
            }
            self.drain(sender, now);
        }
        if self.phase != Phase::Left && !self.timers.contains(&Slot::Rediscover) {
            self.schedule_rediscovery(now);
        }
    }

    /// Announces to a seed unless it is a member, and sets the time of the next look.
    pub(super) fn try_seed(&mut self, relay: &RelayId, now: Instant) {
        let member = self.members.get(relay).is_some();
        let calm = self.phase == Phase::Joined;
        let usual = self.jittered(self.config.rediscover_every);
        let Some(seed) = self.contacts.seed(relay) else {
            return;
        };
        if member {
            seed.backoff = Backoff::new(self.config.announce);
        }
        let delay = if member || calm {
            usual
        } else {
            seed.backoff.next_delay(&mut self.rng)
        };
        let to = seed.member.clone();
        let slot = Slot::Seed(relay.clone());
        self.timers.set(slot, now + delay, Due::Seed(relay.clone()));
        if !member {
            self.announce_to(to);
        }
    }

    pub(super) fn count_fault(&mut self, result: &Result<(), foca::Error>) {
        self.counters.faults += u64::from(result.is_err());
    }

    /// Empties foca's out-tray. True if we were declared down and took the next generation.
    fn drain(&mut self, sender: Option<&RelayId>, now: Instant) -> bool {
        let mut renewed = false;
        while let Some(notification) = self.effects.to_notify() {
            renewed |= matches!(notification, OwnedNotification::Rejoin(_));
            self.on_notification(notification, now);
        }
        while let Some((after, timer)) = self.effects.to_schedule() {
            if let Timer::ChangeSuspectToDown {
                member_id,
                incarnation,
                ..
            } = &timer
            {
                self.remind(member_id.clone(), *incarnation, now);
            }
            self.timers.set_foca(timer, now + after.max(SHORTEST));
        }
        while let Some((to, payload)) = self.effects.to_send() {
            self.send(&to, payload, sender);
        }
        renewed
    }

    fn on_notification(&mut self, notification: OwnedNotification<Identity>, now: Instant) {
        match notification {
            OwnedNotification::MemberUp(identity) => {
                self.contacts.find(&identity.0.relay);
                self.members.insert(identity.0);
            }
            OwnedNotification::MemberDown(identity) => {
                if let Some(member) = self.members.remove(&identity.0.relay) {
                    self.contacts.lose(member, now);
                }
            }
            OwnedNotification::Rename(_, identity) => self.members.replace(identity.0),
            OwnedNotification::Active => {
                self.phase = Phase::Joined;
                self.catching_up = CatchingUp::default();
                let at = now + self.jittered(self.config.announce.first);
                self.timers.set(Slot::CatchUp, at, Due::CatchUp);
            }
            OwnedNotification::Idle | OwnedNotification::Rejoin(_) | OwnedNotification::Defunct => {
                self.phase = Phase::Alone;
                self.rediscovery = Backoff::new(self.config.announce);
                self.schedule_rediscovery(now);
            }
        }
    }

    /// Queues a packet. Peers can make us forward to whom they name, so only relays that we
    /// know, or are talking to, are sent anything.
    fn send(&mut self, to: &Identity, payload: Bytes, sender: Option<&RelayId>) {
        let relay = &to.0.relay;
        let known = self.members.get(relay).or_else(|| self.contacts.get(relay));
        let addresses = match known {
            Some(known) => known.addresses.clone(),
            None if sender == Some(relay) => super::Addresses::none(),
            None => {
                self.counters.unroutable += 1;
                return;
            }
        };
        if self.transmits.len() >= TRANSMITS {
            self.transmits.pop_front();
            self.counters.dropped += 1;
        }
        self.transmits.push_back(Transmit {
            to: Member {
                addresses,
                ..to.0.clone()
            },
            payload,
        });
    }

    fn announce_to(&mut self, to: Member) {
        let result = self.foca.announce(Identity(to), &mut self.effects);
        self.count_fault(&result);
    }

    /// Declared down again before anyone accepted the last generation: the others remember a
    /// higher one than we do, so look for it in ever larger steps.
    fn leap(&mut self) {
        self.renewals = self.renewals.saturating_add(1);
        if self.renewals < 2 {
            return;
        }
        let step = 1_u64 << (self.renewals - 1).min(LEAP_BITS);
        let mut own = self.own().clone();
        own.generation = own.generation.saturating_add(step);
        if own.generation > self.own().generation {
            let result = self.foca.change_identity(Identity(own), &mut self.effects);
            self.count_fault(&result);
        }
    }

    fn suspects(&self, member: &Identity, incarnation: u16) -> bool {
        self.foca.iter_members().any(|known| {
            known.state() == State::Suspect
                && known.incarnation() == incarnation
                && known.id() == member
        })
    }

    /// Tells a suspect of the suspicion and asks for a sign of life, until it is refuted or
    /// the time is up. The answer carries the suspect's new incarnation, which refutes it.
    fn remind(&mut self, suspect: Identity, incarnation: u16, now: Instant) {
        if !self.suspects(&suspect, incarnation) {
            return;
        }
        let packet = Packet {
            header: Header {
                src: self.foca.identity().clone(),
                // Ours isn't to be had from foca; the lowest changes nobody's knowledge of us.
                src_incarnation: 0,
                dst: suspect.clone(),
                // Counts as an answer to a probe of the same number, if one is under way:
                // rightly so, it comes from the one that is probed.
                message: Message::Ping(0),
            },
            updates: vec![Update::new(suspect.clone(), incarnation, State::Suspect)],
        };
        if let Ok(payload) = packet.encode() {
            self.send(&suspect, payload.into(), None);
        }
        let slot = Slot::Remind(suspect.0.relay.clone());
        let at = now + self.config.remind_every.max(SHORTEST);
        self.timers.set(
            slot,
            at,
            Due::Remind {
                suspect,
                incarnation,
            },
        );
    }

    fn rediscover(&mut self, now: Instant) {
        self.contacts.forget_older(self.config.forget_after, now);
        let tried: Vec<Member> = if self.phase == Phase::Joined {
            let lost = self.contacts.lost().choose(&mut self.rng);
            lost.into_iter().cloned().collect()
        } else {
            let rng = &mut self.rng;
            let all = || self.contacts.lost().chain(self.members.iter());
            (0..TRIED_ALONE)
                .filter_map(|_| all().choose(rng).cloned())
                .collect()
        };
        for member in tried {
            self.announce_to(member);
        }
        self.schedule_rediscovery(now);
    }

    fn schedule_rediscovery(&mut self, now: Instant) {
        let delay = if self.phase == Phase::Joined {
            self.jittered(self.config.rediscover_every)
        } else {
            self.rediscovery.next_delay(&mut self.rng)
        };
        let at = now + delay.max(SHORTEST);
        self.timers.set(Slot::Rediscover, at, Due::Rediscover);
    }

    /// Asks members for other members while that is worth it.
    fn catch_up(&mut self, now: Instant) {
        let members = self.members.len();
        let quiet = if members > self.catching_up.members {
            0
        } else {
            self.catching_up.quiet + 1
        };
        self.catching_up = CatchingUp { members, quiet };
        let chosen = self.members.iter().choose(&mut self.rng).cloned();
        if quiet > QUIET || self.phase != Phase::Joined {
            return;
        }
        if let Some(member) = chosen {
            self.announce_to(member);
        }
        let at = now + self.jittered(self.config.announce.first).max(SHORTEST);
        self.timers.set(Slot::CatchUp, at, Due::CatchUp);
    }

    /// Drawn from the upper half of the range, so that relays don't act in step.
    fn jittered(&mut self, range: Duration) -> Duration {
        range.mul_f64(self.rng.random_range(0.5..=1.0))
    }
}
