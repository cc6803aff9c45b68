//! Who is alive, and what of it the shell has not been told yet.
//!
//! Events are the difference between what was told and what is, so they are bounded by the
//! members and none is ever lost: whoever comes and goes while nobody asks was never there.

use std::collections::{BTreeMap, BTreeSet};

use super::MembershipEvent;
use super::address::Addresses;
use super::identity::Member;
use crate::id::RelayId;

#[derive(Debug, Default)]
pub(super) struct Members {
    alive: BTreeMap<RelayId, Member>,
    told: BTreeMap<RelayId, Member>,
    changed: BTreeSet<RelayId>,
}

impl Members {
    pub(super) fn get(&self, relay: &RelayId) -> Option<&Member> {
        self.alive.get(relay)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.alive.values()
    }

    pub(super) fn len(&self) -> usize {
        self.alive.len()
    }

    pub(super) fn insert(&mut self, member: Member) {
        self.changed.insert(member.relay.clone());
        self.alive.insert(member.relay.clone(), member);
    }

    pub(super) fn remove(&mut self, relay: &RelayId) -> Option<Member> {
        if self.told.contains_key(relay) {
            self.changed.insert(relay.clone());
        } else {
            self.changed.remove(relay);
        }
        self.alive.remove(relay)
    }

    /// Takes another generation of a member; of one that isn't, nothing.
    pub(super) fn replace(&mut self, member: Member) {
        if self.alive.contains_key(&member.relay) {
            self.insert(member);
        }
    }

    /// Takes what a member said of itself: it knows better than those who spoke about it.
    pub(super) fn correct(&mut self, relay: &RelayId, generation: u64, addresses: &Addresses) {
        if let Some(member) = self.alive.get_mut(relay)
            && member.generation == generation
            && member.addresses != *addresses
        {
            member.addresses = addresses.clone();
            self.changed.insert(relay.clone());
        }
    }

    pub(super) fn poll(&mut self) -> Option<MembershipEvent> {
        while let Some(relay) = self.changed.pop_first() {
            let now = self.alive.get(&relay).cloned();
            let before = match &now {
                Some(member) => self.told.insert(relay, member.clone()),
                None => self.told.remove(&relay),
            };
            match (before, now) {
                (None, Some(member)) => return Some(MembershipEvent::Up(member)),
                (Some(member), None) => return Some(MembershipEvent::Down(member)),
                (Some(before), Some(member)) if before != member => {
                    return Some(MembershipEvent::Updated(member));
                }
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
        None
    }

    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.changed.len()
    }
}
