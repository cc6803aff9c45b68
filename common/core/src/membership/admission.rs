//! Which relays are let into the table of known ones.
//!
//! Foca keeps every relay that it hears of, so hearsay about relays that don't exist would
//! fill the memory. Beyond the limit a newcomer takes the place of a relay that is down, and
//! without such a one is left out of the packet, or the packet refused if it is its sender.

use std::collections::BTreeSet;

use foca::{State, Timer};

use super::identity::Identity;
use super::timers::Slot;
use super::wire::Packet;
use super::{Membership, MembershipError};
use crate::id::RelayId;

impl Membership {
    /// Makes room for the relays a packet names. Some: the packet without those that there
    /// is no room for.
    pub(super) fn admit(&mut self, packet: &Packet) -> Result<Option<Vec<u8>>, MembershipError> {
        let known = self.foca.iter_membership_state().len();
        let limit = self.config.most_members;
        // News of relays that have been forgotten since waits to be passed on as well.
        let crowded = self.foca.updates_backlog() >= limit.saturating_mul(2);
        if !crowded && known + 1 + packet.updates.len() <= limit {
            return Ok(None);
        }
        let mut room = if crowded {
            Some(0)
        } else {
            limit.checked_sub(known)
        }
        .unwrap_or(0);
        let named: BTreeSet<RelayId> = std::iter::once(&packet.header.src)
            .chain(packet.updates.iter().map(foca::Member::id))
            .map(|identity| identity.0.relay.clone())
            .collect();
        let mut refused = BTreeSet::new();
        for relay in self.unknown_of(&named, &packet.header.src) {
            if room > 0 {
                room -= 1;
            } else if crowded || !self.forget_one_but(&named) {
                refused.insert(relay);
            }
        }
        let peer = &packet.header.src.0.relay;
        if refused.contains(peer) {
            let peer = peer.clone();
            return Err(MembershipError::TooMany { peer, known });
        }
        if refused.is_empty() {
            return Ok(None);
        }
        let mut fewer = packet.clone();
        fewer
            .updates
            .retain(|update| !refused.contains(&update.id().0.relay));
        self.counters.too_many += (packet.updates.len() - fewer.updates.len()) as u64;
        // It was larger before, so it fits.
        Ok(fewer.encode().ok())
    }

    /// The relays among these that are in no table, the sender first.
    fn unknown_of(&self, named: &BTreeSet<RelayId>, sender: &Identity) -> Vec<RelayId> {
        let known: BTreeSet<&RelayId> = self
            .foca
            .iter_membership_state()
            .map(|member| &member.id().0.relay)
            .collect();
        let sender = &sender.0.relay;
        let others = named.iter().filter(|relay| *relay != sender);
        std::iter::once(sender)
            .chain(others)
            .filter(|relay| !known.contains(relay))
            .cloned()
            .collect()
    }

    /// Forgets a relay that is down and none of these; false if there is none.
    fn forget_one_but(&mut self, named: &BTreeSet<RelayId>) -> bool {
        let down = self
            .foca
            .iter_membership_state()
            .find(|member| member.state() == State::Down && !named.contains(&member.id().0.relay));
        let Some(identity) = down.map(|member| member.id().clone()) else {
            return false;
        };
        self.timers.cancel(&Slot::Forget(identity.0.relay.clone()));
        let result = self
            .foca
            .handle_timer(Timer::RemoveDown(identity), &mut self.effects);
        self.count_fault(&result);
        true
    }
}
