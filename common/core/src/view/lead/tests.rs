use proptest::prelude::*;

use super::*;

fn relay(name: &str) -> RelayId {
    RelayId::new(name).unwrap()
}

fn standing(name: &str, rtt_ms: u64, knows: Knowledge) -> Standing {
    Standing {
        relay: relay(name),
        available: true,
        rtt: Duration::from_millis(rtt_ms),
        knows,
        live: knows != Knowledge::Nothing,
    }
}

fn gone(standing: &mut Standing) {
    standing.available = false;
    standing.live = false;
}

const fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

#[test]
fn the_nearest_leads_and_is_followed_alone() {
    let mut lead = Lead::default();
    let mut relays = [
        standing("a", 9, Knowledge::Nothing),
        standing("b", 4, Knowledge::Nothing),
    ];

    lead.update(&relays, at(0));
    assert_eq!(lead.leader(), Some(&relay("b")));
    assert!(lead.follows(&relay("b")) && !lead.follows(&relay("a")));

    // Nearer now, but the other one does its work.
    relays[1] = standing("b", 4, Knowledge::Whole);
    relays[0].rtt = Duration::from_millis(1);
    lead.update(&relays, at(100));
    assert_eq!(lead.leader(), Some(&relay("b")));
    assert!(!lead.follows(&relay("a")));
    assert_eq!(lead.poll_timeout(), None);
}

#[test]
fn what_was_known_is_shown_until_the_next_one_knows_as_much() {
    let mut lead = Lead::default();
    let mut relays = [
        standing("a", 4, Knowledge::Whole),
        standing("b", 9, Knowledge::Nothing),
    ];
    lead.update(&relays, at(0));

    gone(&mut relays[0]);
    lead.update(&relays, at(1));
    assert_eq!(lead.leader(), Some(&relay("b")));
    assert_eq!(lead.shown(), Some(&relay("a")));

    relays[1] = standing("b", 9, Knowledge::Partial);
    lead.update(&relays, at(2));
    assert_eq!(lead.shown(), Some(&relay("a")));

    relays[1] = standing("b", 9, Knowledge::Whole);
    lead.update(&relays, at(3));
    assert_eq!(lead.shown(), Some(&relay("b")));
    assert!(!lead.follows(&relay("a")));
}

#[test]
fn a_relay_that_leaves_is_followed_until_another_has_taken_over() {
    let mut lead = Lead::default();
    let mut relays = [
        standing("a", 4, Knowledge::Whole),
        standing("b", 9, Knowledge::Nothing),
    ];
    lead.update(&relays, at(0));

    relays[0].available = false;
    lead.update(&relays, at(1));

    assert_eq!(lead.leader(), Some(&relay("b")));
    assert!(lead.follows(&relay("a")) && lead.follows(&relay("b")));
}

#[test]
fn a_relay_that_does_not_know_all_is_challenged_and_gives_way_to_who_does() {
    let mut lead = Lead::default();
    let mut relays = [
        standing("a", 4, Knowledge::Partial),
        standing("b", 9, Knowledge::Nothing),
    ];
    lead.update(&relays, at(0));
    assert_eq!(lead.poll_timeout(), Some(at(3)));
    lead.update(&relays, at(2));
    assert!(!lead.follows(&relay("b")));

    lead.update(&relays, at(3));
    assert!(lead.follows(&relay("b")));
    assert_eq!(lead.shown(), Some(&relay("a")));

    relays[1] = standing("b", 9, Knowledge::Whole);
    lead.update(&relays, at(4));
    assert_eq!(lead.leader(), Some(&relay("b")));
    assert_eq!(lead.shown(), Some(&relay("b")));
}

#[test]
fn who_challenged_in_vain_is_left_alone_for_a_while() {
    let mut lead = Lead::default();
    let mut relays = [
        standing("a", 4, Knowledge::Partial),
        standing("b", 9, Knowledge::Nothing),
    ];
    lead.update(&relays, at(0));
    lead.update(&relays, at(3));

    relays[1] = standing("b", 9, Knowledge::Partial);
    lead.update(&relays, at(4));
    assert_eq!(lead.leader(), Some(&relay("a")));
    assert!(!lead.follows(&relay("b")));

    lead.update(&relays, at(20));
    assert!(!lead.follows(&relay("b")));
    lead.update(&relays, at(33));
    lead.update(&relays, at(63));
    assert!(lead.follows(&relay("b")));
}

#[test]
fn the_last_one_leads_on_when_nobody_is_left() {
    let mut lead = Lead::default();
    let mut relays = [standing("a", 4, Knowledge::Whole)];
    lead.update(&relays, at(0));

    gone(&mut relays[0]);
    lead.update(&relays, at(1));

    assert_eq!(lead.leader(), Some(&relay("a")));
    assert_eq!(lead.shown(), Some(&relay("a")));
    lead.update(&[], at(2));
    assert_eq!((lead.leader(), lead.shown()), (None, None));
}

fn knowledge() -> impl Strategy<Value = Knowledge> {
    prop_oneof![
        Just(Knowledge::Nothing),
        Just(Knowledge::Partial),
        Just(Knowledge::Incomplete),
        Just(Knowledge::Whole),
    ]
}

/// One relay changes: what it knows, whether that is live, whether it is there, whether it stays.
fn change() -> impl Strategy<Value = (usize, Knowledge, bool, bool, bool, u64)> {
    let (which, wait) = (0..4_usize, 0..40_u64);
    (
        which,
        knowledge(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        wait,
    )
}

proptest! {
    #[test]
    fn a_site_that_was_known_is_never_shown_empty(
        changes in prop::collection::vec(change(), 1..80),
    ) {
        let mut lead = Lead::default();
        let mut relays = ["a", "b", "c", "d"].map(|name| standing(name, 4, Knowledge::Nothing));
        let mut now = 0;
        for (which, knows, live, connected, stays, wait) in changes {
            now += wait;
            let relay = &mut relays[which];
            // Only what is followed is learnt, and what was learnt is not lost by itself.
            if lead.follows(&relay.relay) {
                relay.knows = knows.max(Knowledge::Partial.min(relay.knows));
            }
            relay.available = connected && stays;
            relay.live = live && connected && relay.knows != Knowledge::Nothing;
            let shown_before = find(&relays, lead.shown()).map(|shown| shown.knows);

            lead.update(&relays, at(now));

            let shown = find(&relays, lead.shown()).map(|shown| shown.knows);
            prop_assert!(shown >= shown_before.map(|knew| knew.min(Knowledge::Partial)));
            let anybody = relays.iter().any(|relay| relay.available);
            let leader = find(&relays, lead.leader());
            prop_assert!(!anybody || leader.is_some_and(|leader| leader.available));
            let followed = relays.iter().filter(|relay| lead.follows(&relay.relay));
            prop_assert!(followed.count() <= 3);
        }
    }
}
