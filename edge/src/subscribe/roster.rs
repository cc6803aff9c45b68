//! Which relays an edge follows.
//!
//! Relays are found by dialling seeds, dial themselves, and are told of by relays that are
//! connected. One that only dials has no address, and is waited for. What is
//! told is a hint whom to dial and no more: a relay that is connected is followed whatever
//! others say of it, and one that is gone is given up only on the word of others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use kvgrid_core::membership::{Addresses, Scope};
use kvgrid_core::{Instant, RelayId};

/// Most relays; those that are found beyond it are not followed.
pub(super) const RELAYS: usize = 4096;

/// How long a relay that no other knows any more is remembered, with all that it has told: it
/// may be back soon, and is then caught up with in a moment.
const REMEMBER: Duration = Duration::from_secs(600);

/// The same for a relay that has said goodbye.
const REMEMBER_LEFT: Duration = Duration::from_secs(5);

/// All relays, and what is known of how to reach them.
#[derive(Debug, Default)]
pub(super) struct Roster {
    relays: BTreeMap<RelayId, Entry>,
    /// What each connected relay tells.
    told: BTreeMap<RelayId, BTreeMap<RelayId, Addresses>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Where a seed led to it.
    found_at: Option<SocketAddr>,
    connected: bool,
    left: bool,
    /// Since when nobody knows it, while others are known.
    unknown_since: Option<Instant>,
}

/// There are too many relays already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Roster {
    /// A relay answers at this address.
    pub(super) fn handle_found(&mut self, relay: RelayId, at: SocketAddr) -> Result<(), Full> {
        self.entry(relay)?.found_at = Some(at);
        Ok(())
    }

    /// A relay has dialled: where it did so from is no address of it.
    pub(super) fn handle_dialled(&mut self, relay: RelayId) -> Result<(), Full> {
        self.entry(relay).map(drop)
    }

    /// A connected relay tells whom it believes alive, itself among them. Gives those that it
    /// did not tell of before: they may be back.
    pub(super) fn handle_members(
        &mut self,
        teller: RelayId,
        members: impl IntoIterator<Item = (RelayId, Addresses)>,
        now: Instant,
    ) -> (Vec<RelayId>, Result<(), Full>) {
        let members: BTreeMap<_, _> = members.into_iter().take(RELAYS).collect();
        let known = members
            .keys()
            .try_for_each(|relay| self.entry(relay.clone()).map(drop));
        let before = self.told.get(&teller);
        let is_new = |relay: &&RelayId| before.is_none_or(|told| !told.contains_key(*relay));
        let new = members.keys().filter(is_new).cloned().collect();
        self.told.insert(teller, members);
        self.look(now);
        (new, known)
    }

    /// A relay's connections are up.
    pub(super) fn handle_connected(&mut self, relay: &RelayId, now: Instant) {
        if let Some(entry) = self.relays.get_mut(relay) {
            entry.connected = true;
            entry.left = false;
        }
        self.look(now);
    }

    /// A relay's connections are down; `left` if it had said that it was leaving.
    pub(super) fn handle_lost(&mut self, relay: &RelayId, left: bool, now: Instant) {
        if let Some(entry) = self.relays.get_mut(relay) {
            entry.connected = false;
            entry.left = left;
        }
        self.told.remove(relay);
        self.look(now);
    }

    /// When [`Self::poll_forgotten`] may have a relay.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.relays.values().filter_map(Entry::forgotten_at).min()
    }

    /// A relay that is given up.
    pub(super) fn poll_forgotten(&mut self, now: Instant) -> Option<RelayId> {
        let is_due = |entry: &Entry| entry.forgotten_at().is_some_and(|at| at <= now);
        let (relay, _) = self.relays.iter().find(|(_, entry)| is_due(entry))?;
        let relay = relay.clone();
        self.relays.remove(&relay);
        Some(relay)
    }

    /// All relays that are followed.
    pub(super) fn relays(&self) -> impl Iterator<Item = &RelayId> {
        self.relays.keys()
    }

    /// Where to dial a relay for somebody who reaches these scopes, the best first.
    pub(super) fn addresses(&self, relay: &RelayId, scopes: &[Scope]) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        // Its own word counts more than what others have heard.
        let own = self.told.get(relay).into_iter();
        for told in own.chain(self.told.values()) {
            let advertised = told.get(relay).into_iter();
            all.extend(advertised.flat_map(|list| list.reachable(scopes).map(str::to_owned)));
        }
        let found_at = self.relays.get(relay).and_then(|entry| entry.found_at);
        all.extend(found_at.map(|at| at.to_string()));
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|address| seen.insert(address.clone()));
        all
    }

    fn entry(&mut self, relay: RelayId) -> Result<&mut Entry, Full> {
        if self.relays.len() >= RELAYS && !self.relays.contains_key(&relay) {
            return Err(Full);
        }
        Ok(self.relays.entry(relay).or_default())
    }

    fn look(&mut self, now: Instant) {
        // Who is alone knows nothing of others, and forgets nobody.
        let alone = self.told.is_empty();
        for (relay, entry) in &mut self.relays {
            let told = self.told.values().any(|told| told.contains_key(relay));
            if entry.connected || told || alone {
                entry.unknown_since = None;
            } else {
                entry.unknown_since.get_or_insert(now);
            }
        }
    }
}

impl Entry {
    fn forgotten_at(&self) -> Option<Instant> {
        let remember = if self.left { REMEMBER_LEFT } else { REMEMBER };
        Some(self.unknown_since? + remember)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(name: &str) -> RelayId {
        RelayId::new(name).unwrap()
    }

    fn member(name: &str) -> (RelayId, Addresses) {
        let address = format!("{name}.example:7440");
        (
            relay(name),
            Addresses::new([("public", address.as_str())]).unwrap(),
        )
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    fn forgotten(roster: &mut Roster, now: Instant) -> Vec<String> {
        let forgotten = std::iter::from_fn(|| roster.poll_forgotten(now));
        forgotten.map(|relay| relay.to_string()).collect()
    }

    /// An edge that is connected to `a`, which knows `b` too.
    fn connected_to_a() -> Roster {
        let mut roster = Roster::default();
        roster
            .handle_found(relay("a"), "127.0.0.1:1".parse().unwrap())
            .unwrap();
        roster.handle_connected(&relay("a"), at(0));
        let members = [member("a"), member("b")];
        roster.handle_members(relay("a"), members, at(0)).1.unwrap();
        roster
    }

    #[test]
    fn a_relay_that_others_tell_of_is_followed() {
        let roster = connected_to_a();

        let relays: Vec<_> = roster.relays().cloned().collect();
        assert_eq!(relays, [relay("a"), relay("b")]);
        let scopes = [Scope::new("public").unwrap()];
        assert_eq!(
            roster.addresses(&relay("a"), &scopes),
            ["a.example:7440", "127.0.0.1:1"]
        );
        assert_eq!(roster.addresses(&relay("b"), &scopes), ["b.example:7440"]);
        assert_eq!(roster.addresses(&relay("b"), &[]), [""; 0]);
    }

    #[test]
    fn a_relay_that_dials_is_followed_and_not_dialled() {
        let mut roster = connected_to_a();

        roster.handle_dialled(relay("c")).unwrap();
        roster.handle_connected(&relay("c"), at(1));
        roster
            .handle_members(relay("c"), [(relay("c"), Addresses::none())], at(1))
            .1
            .unwrap();

        assert!(roster.relays().any(|known| *known == relay("c")));
        let scopes = [Scope::new("public").unwrap()];
        assert_eq!(roster.addresses(&relay("c"), &scopes), [""; 0]);
    }

    #[test]
    fn a_relay_that_departed_is_forgotten_after_a_while_and_sooner_if_it_said_goodbye() {
        for (left, after) in [(false, 600), (true, 5)] {
            let mut roster = connected_to_a();
            roster.handle_connected(&relay("b"), at(1));
            roster.handle_lost(&relay("b"), left, at(2));
            roster
                .handle_members(relay("a"), [member("a")], at(10))
                .1
                .unwrap();

            assert_eq!(roster.poll_timeout(), Some(at(10 + after)));
            assert_eq!(forgotten(&mut roster, at(9 + after)), [""; 0]);
            assert_eq!(forgotten(&mut roster, at(10 + after)), ["b"]);
        }
    }

    #[test]
    fn a_relay_that_is_connected_is_kept_whatever_others_say() {
        let mut roster = connected_to_a();
        roster.handle_connected(&relay("b"), at(1));

        roster
            .handle_members(relay("a"), [member("a")], at(2))
            .1
            .unwrap();

        assert_eq!(roster.poll_timeout(), None);
    }

    #[test]
    fn an_edge_that_is_cut_off_from_all_forgets_nobody() {
        let mut roster = connected_to_a();

        roster.handle_lost(&relay("a"), false, at(2));

        assert_eq!(roster.poll_timeout(), None);
        assert_eq!(forgotten(&mut roster, at(100_000)), [""; 0]);
        assert_eq!(roster.relays().count(), 2);
    }

    #[test]
    fn relays_beyond_the_bound_are_not_followed() {
        let mut roster = connected_to_a();
        let many = (0..2 * RELAYS).map(|n| member(&format!("r{n}")));

        assert_eq!(roster.handle_members(relay("a"), many, at(1)).1, Err(Full));

        assert_eq!(roster.relays().count(), RELAYS);
    }
}
