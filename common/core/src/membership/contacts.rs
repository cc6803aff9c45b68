//! Relays that are no members, and are worth a try.
//!
//! Seeds are those the shell named or reached. Lost ones were members until they went down:
//! in a partition that is the other half of the mesh, which nobody else may remember.

use core::time::Duration;
use std::collections::BTreeMap;

use super::identity::Member;
use crate::backoff::Backoff;
use crate::id::RelayId;
use crate::time::Instant;

/// Most seeds; a further one takes the place of the first by name.
const SEEDS: usize = 64;
/// Most lost members; a further one takes the place of the one that was lost first.
const LOST: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Contacts {
    seeds: BTreeMap<RelayId, Seed>,
    lost: BTreeMap<RelayId, (Instant, Member)>,
}

#[derive(Debug)]
pub(super) struct Seed {
    pub(super) member: Member,
    pub(super) backoff: Backoff,
}

impl Contacts {
    /// Remembers a seed, and says which one had to go for it.
    pub(super) fn add_seed(&mut self, member: Member, backoff: Backoff) -> Option<RelayId> {
        let relay = member.relay.clone();
        let evicted = if self.seeds.contains_key(&relay) || self.seeds.len() < SEEDS {
            None
        } else {
            self.seeds.pop_first().map(|(relay, _)| relay)
        };
        self.seeds.insert(relay, Seed { member, backoff });
        evicted
    }

    pub(super) fn seed(&mut self, relay: &RelayId) -> Option<&mut Seed> {
        self.seeds.get_mut(relay)
    }

    pub(super) fn lose(&mut self, member: Member, now: Instant) {
        if self.lost.len() >= LOST
            && !self.lost.contains_key(&member.relay)
            && let Some((_, first)) = self.lost.iter().map(|(r, (at, _))| (*at, r.clone())).min()
        {
            self.lost.remove(&first);
        }
        self.lost.insert(member.relay.clone(), (now, member));
    }

    pub(super) fn find(&mut self, relay: &RelayId) {
        self.lost.remove(relay);
    }

    pub(super) fn forget_older(&mut self, age: Duration, now: Instant) {
        self.lost
            .retain(|_, (at, _)| now.saturating_since(*at) < age);
    }

    pub(super) fn lost(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.lost.values().map(|(_, member)| member)
    }

    pub(super) fn get(&self, relay: &RelayId) -> Option<&Member> {
        let seed = || self.seeds.get(relay).map(|seed| &seed.member);
        self.lost.get(relay).map(|(_, member)| member).or_else(seed)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.seeds.len() + self.lost.len()
    }
}
