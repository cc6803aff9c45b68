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

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::membership::tests::member;

    fn identity(number: usize) -> Identity {
        Identity(member(number, 1))
    }

    fn suspicion(incarnation: u16) -> Timer<Identity> {
        Timer::ChangeSuspectToDown {
            member_id: identity(1),
            incarnation,
            token: 0,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn pop(timers: &mut Timers, now: Instant) -> Option<Timer<Identity>> {
        match timers.pop(now)? {
            Due::Foca(timer) => Some(timer),
            own => panic!("{own:?} is none of foca's"),
        }
    }

    #[test]
    fn what_is_due_at_once_is_done_in_the_order_that_foca_wants() {
        let mut wanted = vec![
            Timer::PeriodicAnnounceDown(0),
            Timer::RemoveDown(identity(1)),
            Timer::PeriodicGossip(0),
            Timer::PeriodicAnnounce(0),
            suspicion(0),
            Timer::ProbeRandomMember(0),
            Timer::SendIndirectProbe {
                probed_id: identity(1),
                token: 0,
            },
        ];
        let mut timers = Timers::default();
        for timer in &wanted {
            timers.set_foca(timer.clone(), at(1));
        }
        wanted.sort();

        let done: Vec<_> = std::iter::from_fn(|| pop(&mut timers, at(1))).collect();

        assert_eq!(done, wanted);
        assert_eq!(timers.len(), 0);
    }

    #[test]
    fn nothing_is_done_before_its_time_and_the_earlier_goes_first() {
        let mut timers = Timers::default();
        timers.set_foca(Timer::PeriodicGossip(0), at(1));
        timers.set_foca(Timer::ProbeRandomMember(0), at(2));

        assert_eq!(pop(&mut timers, Instant::ZERO), None);
        assert_eq!(timers.next(), Some(at(1)));
        assert_eq!(pop(&mut timers, at(5)), Some(Timer::PeriodicGossip(0)));
        assert_eq!(pop(&mut timers, at(5)), Some(Timer::ProbeRandomMember(0)));
    }

    #[test]
    fn a_newer_timer_takes_the_place_of_the_older() {
        let mut timers = Timers::default();
        timers.set_foca(Timer::ProbeRandomMember(0), at(1));
        timers.set_foca(Timer::ProbeRandomMember(1), at(2));
        timers.set_foca(suspicion(0), at(3));
        timers.set_foca(suspicion(1), at(4));

        assert_eq!(pop(&mut timers, at(9)), Some(Timer::ProbeRandomMember(1)));
        assert_eq!(pop(&mut timers, at(9)), Some(suspicion(1)));
        assert_eq!(pop(&mut timers, at(9)), None);
    }

    #[test]
    fn a_suspect_that_fails_again_has_no_more_time_for_it() {
        let mut timers = Timers::default();
        timers.set_foca(suspicion(0), at(5));
        timers.set_foca(suspicion(0), at(8));

        assert_eq!(timers.next(), Some(at(5)));
    }
}
