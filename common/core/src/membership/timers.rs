//! What is due when.
//!
//! Each thing has one slot, so that no number of packets can make the table grow beyond a few
//! slots for each known relay. Foca takes back its earlier timers by giving new ones another
//! token; here the newer one takes the slot.

use std::collections::{BTreeMap, BTreeSet};

use foca::Timer;

use super::identity::Identity;
use crate::id::RelayId;
use crate::time::Instant;

/// A slot. Things due at the same time are done in this order; foca's own order comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    Indirect,
    Probe,
    Suspect(RelayId),
    Announce,
    Gossip,
    Forget(RelayId),
    AnnounceDown,
    Remind(RelayId),
    Seed(RelayId),
    Rediscover,
    CatchUp,
}

/// What is done when a slot is due.
#[derive(Clone, Debug)]
pub(super) enum Due {
    /// Foca's own business.
    Foca(Timer<Identity>),
    /// Tell a suspect of this incarnation that it is one.
    Remind { suspect: Identity, incarnation: u16 },
    /// Announce to a seed.
    Seed(RelayId),
    /// Announce to one of those that were lost.
    Rediscover,
    /// Ask a member for more members.
    CatchUp,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    slots: BTreeMap<Slot, (Instant, Due)>,
    order: BTreeSet<(Instant, Slot)>,
}

impl Timers {
    /// Takes the slot, whatever it held.
    pub(super) fn set(&mut self, slot: Slot, at: Instant, due: Due) {
        self.cancel(&slot);
        self.order.insert((at, slot.clone()));
        self.slots.insert(slot, (at, due));
    }

    pub(super) fn cancel(&mut self, slot: &Slot) {
        if let Some((at, _)) = self.slots.remove(slot) {
            self.order.remove(&(at, slot.clone()));
        }
    }

    pub(super) fn set_foca(&mut self, timer: Timer<Identity>, at: Instant) {
        let slot = match &timer {
            Timer::SendIndirectProbe { .. } => Slot::Indirect,
            Timer::ProbeRandomMember(_) => Slot::Probe,
            Timer::ChangeSuspectToDown { member_id, .. } => {
                Slot::Suspect(member_id.0.relay.clone())
            }
            Timer::PeriodicAnnounce(_) => Slot::Announce,
            Timer::PeriodicGossip(_) => Slot::Gossip,
            Timer::RemoveDown(member) => Slot::Forget(member.0.relay.clone()),
            Timer::PeriodicAnnounceDown(_) => Slot::AnnounceDown,
        };
        // A suspect that fails another probe is declared down no later for it.
        let waits = matches!(self.slots.get(&slot), Some((_, Due::Foca(held))) if *held == timer);
        if !(waits && matches!(slot, Slot::Suspect(_))) {
            self.set(slot, at, Due::Foca(timer));
        }
    }

    pub(super) fn contains(&self, slot: &Slot) -> bool {
        self.slots.contains_key(slot)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes out the first thing that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Due> {
        if self.next()? > now {
            return None;
        }
        let (_, slot) = self.order.pop_first()?;
        self.slots.remove(&slot).map(|(_, due)| due)
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.order.clear();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        debug_assert_eq!(self.slots.len(), self.order.len());
        self.slots.len()
    }
}
