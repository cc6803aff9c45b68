//! Which relay of a site an edge has the cache view from.
//!
//! Relays of one site see the same events, so one of them is followed: the nearest, and then
//! the same one for as long as it does. When it is gone or leaves, another takes over, and
//! what was known stays shown until that one knows as much. A relay that does not know all
//! gets a challenger, followed beside it, which takes over if it knows more.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::id::RelayId;
use crate::time::Instant;

/// When a relay is challenged.
#[derive(Clone, Copy, Debug)]
pub struct LeadConfig {
    /// A leading relay that does not know all for so long is challenged by the next one.
    pub challenge_after: Duration,
    /// Relays that have challenged in vain are left alone for so long.
    pub challenge_again: Duration,
}

impl Default for LeadConfig {
    fn default() -> Self {
        Self {
            challenge_after: Duration::from_secs(3),
            challenge_again: Duration::from_secs(30),
        }
    }
}

/// How much an edge knows by one relay; the later ones know more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Knowledge {
    /// Nothing that could be searched, in at least one pool.
    #[default]
    Nothing,
    /// Every pool can be searched, but the relay is still catching up with its engines.
    Partial,
    /// Every pool can be searched, and the relay can't learn more.
    Incomplete,
    /// All that the site has cached.
    Whole,
}

/// One relay of the site, as it stands now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which one.
    pub relay: RelayId,
    /// Whether it is connected and stays.
    pub available: bool,
    /// Round trip to it.
    pub rtt: Duration,
    /// What is known by it, up to date or not.
    pub knows: Knowledge,
    /// Whether what is known by it is up to date.
    pub live: bool,
}

/// The choice for one site, kept from one look to the next.
#[derive(Debug, Default)]
pub struct Lead {
    config: LeadConfig,
    leader: Option<RelayId>,
    /// Since when the leader does not know all.
    lacking_since: Option<Instant>,
    challenger: Option<RelayId>,
    challenged_at: Option<Instant>,
    /// Who has challenged the leader in vain.
    in_vain: BTreeSet<RelayId>,
    shown: Option<RelayId>,
}

impl Lead {
    /// No relay is known yet.
    pub fn new(config: LeadConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Looks at all relays of the site, and chooses.
    pub fn update(&mut self, relays: &[Standing], now: Instant) {
        self.choose_leader(relays);
        self.challenge(relays, now);
        self.show(relays);
    }

    /// When [`Self::update`] has to be called next though nothing changes.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let lacking = self.lacking_since? + self.config.challenge_after;
        Some(match self.challenged_at {
            Some(at) => lacking.max(at + self.config.challenge_again),
            None => lacking,
        })
    }

    /// Whether the relay's pools are to be followed.
    pub fn follows(&self, relay: &RelayId) -> bool {
        let one_of = [&self.leader, &self.challenger];
        one_of.contains(&&Some(relay.clone())) || self.shown() == Some(relay)
    }

    /// The relay whose pools, models and labels stand for the site.
    pub const fn shown(&self) -> Option<&RelayId> {
        self.shown.as_ref()
    }

    /// The relay that is followed in the first place.
    pub const fn leader(&self) -> Option<&RelayId> {
        self.leader.as_ref()
    }

    fn choose_leader(&mut self, relays: &[Standing]) {
        let leads = find(relays, self.leader.as_ref());
        if leads.is_some_and(|leader| leader.available) {
            return;
        }
        // What is known by the shown one counts if it leaves while another is leading.
        let best = relays
            .iter()
            .filter(|relay| relay.available)
            .min_by_key(|relay| (Some(&relay.relay) != self.shown.as_ref(), relay.rtt));
        match best {
            Some(best) => self.set_leader(best.relay.clone()),
            // Nobody can lead now: the last one may come back, if it is still known.
            None if leads.is_none() => self.leader = None,
            None => {}
        }
    }

    fn set_leader(&mut self, relay: RelayId) {
        self.leader = Some(relay);
        self.lacking_since = None;
        self.challenger = None;
        self.challenged_at = None;
        self.in_vain.clear();
    }

    fn challenge(&mut self, relays: &[Standing], now: Instant) {
        let Some(leader) = find(relays, self.leader.as_ref()) else {
            return;
        };
        if !leader.available || (leader.live && leader.knows == Knowledge::Whole) {
            self.lacking_since = None;
            self.challenger = None;
            return;
        }
        self.lacking_since.get_or_insert(now);
        let challenger = find(relays, self.challenger.as_ref());
        match challenger.filter(|challenger| challenger.available) {
            Some(challenger) if challenger.live && knows_more(challenger, leader) => {
                self.set_leader(challenger.relay.clone());
            }
            Some(challenger) if challenger.live => {
                self.in_vain.insert(challenger.relay.clone());
                self.challenger = None;
            }
            Some(_) => {}
            None => self.challenger = None,
        }
        if self.challenger.is_none() && self.poll_timeout().is_some_and(|at| at <= now) {
            self.next_challenger(relays, now);
        }
    }

    fn next_challenger(&mut self, relays: &[Standing], now: Instant) {
        let leader = self.leader.as_ref();
        let other = |relay: &&Standing| relay.available && Some(&relay.relay) != leader;
        let others: Vec<_> = relays.iter().filter(other).collect();
        if others.is_empty() {
            return;
        }
        self.challenged_at = Some(now);
        let fresh = others
            .into_iter()
            .filter(|relay| !self.in_vain.contains(&relay.relay));
        let next = fresh.min_by_key(|relay| relay.rtt);
        self.challenger = next.map(|relay| relay.relay.clone());
        if self.challenger.is_none() {
            self.in_vain.clear();
        }
    }

    fn show(&mut self, relays: &[Standing]) {
        let leader = find(relays, self.leader.as_ref());
        let Some(shown) = find(relays, self.shown.as_ref()) else {
            self.shown = leader.map(|leader| leader.relay.clone());
            return;
        };
        let Some(leader) = leader else { return };
        // Old knowledge of everything is worth more than the beginnings of new one.
        let enough = leader.live && leader.knows >= shown.knows.min(Knowledge::Incomplete);
        if enough || shown.knows == Knowledge::Nothing {
            self.shown = Some(leader.relay.clone());
        }
    }
}

fn find<'a>(relays: &'a [Standing], relay: Option<&RelayId>) -> Option<&'a Standing> {
    relays
        .iter()
        .find(|standing| Some(&standing.relay) == relay)
}

fn knows_more(challenger: &Standing, leader: &Standing) -> bool {
    challenger.knows > leader.knows || !leader.live
}

#[cfg(test)]
mod tests;
