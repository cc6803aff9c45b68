//! What a relay with a certificate, or plain noise, can and cannot do.

use core::time::Duration;

use foca::{Header, Member as Update, Message, State};
use proptest::prelude::*;

use super::world::{World, check, member, relay};
use crate::id::RelayId;
use crate::membership::identity::Identity;
use crate::membership::wire::Packet;
use crate::membership::{
    Addresses, Member, Membership, MembershipConfig, MembershipError, MembershipEvent,
    PACKET_BYTES, Transmit,
};
use crate::time::Instant;

const NOW: Instant = Instant::ZERO;

fn packet(from: Member, to: Member, message: Message<Identity>) -> Packet {
    Packet {
        header: Header {
            src: Identity(from),
            src_incarnation: 0,
            dst: Identity(to),
            message,
        },
        updates: Vec::new(),
    }
}

fn update(about: Member, state: State) -> Update<Identity> {
    Update::new(Identity(about), 0, state)
}

/// Relay 0 with the others as members, nothing left to poll.
fn knowing(others: core::ops::Range<usize>, config: MembershipConfig) -> Membership {
    let mut own = Membership::new(member(0, 1), config, 1);
    for other in others {
        let gossip = packet(member(other, 1), member(0, 1), Message::Gossip);
        own.handle_datagram(&relay(other), &gossip.encode().unwrap(), NOW)
            .unwrap();
    }
    drain(&mut own);
    own
}

fn drain(own: &mut Membership) -> (Vec<Transmit>, Vec<MembershipEvent>) {
    let transmits = std::iter::from_fn(|| own.poll_transmit()).collect();
    let events = std::iter::from_fn(|| own.poll_event()).collect();
    (transmits, events)
}

/// All of the state that can be seen, but for the counters.
fn state(own: &Membership) -> impl PartialEq + std::fmt::Debug + use<> {
    let known: Vec<_> = own.foca.iter_membership_state().cloned().collect();
    let members: Vec<_> = own.members().cloned().collect();
    let queued: Vec<_> = own.transmits.iter().cloned().collect();
    let timers = (own.poll_timeout(), own.timers.len());
    (own.own().clone(), known, members, queued, timers, own.phase)
}

#[test]
fn a_forged_sender_is_refused_and_changes_nothing() {
    let mut own = knowing(1..4, MembershipConfig::default());
    let before = state(&own);
    let mut forged = packet(member(2, 9), member(0, 1), Message::Ping(1));
    forged.updates.push(update(member(3, 1), State::Down));

    let result = own.handle_datagram(&relay(1), &forged.encode().unwrap(), NOW);

    let (claimed, certified) = (relay(2), relay(1));
    assert_eq!(
        result,
        Err(MembershipError::WrongSender { claimed, certified })
    );
    assert_eq!(state(&own), before);
    assert_eq!(own.counters().wrong_sender, 1);
    assert_eq!(drain(&mut own), (vec![], vec![]));
}

#[test]
fn a_relay_with_our_own_name_is_refused() {
    let mut own = knowing(1..4, MembershipConfig::default());
    let before = state(&own);
    let twin = packet(member(0, 5), member(0, 1), Message::Announce);

    let result = own.handle_datagram(&relay(0), &twin.encode().unwrap(), NOW);

    assert_eq!(result, Err(MembershipError::OwnName(relay(0))));
    assert_eq!(state(&own), before);
}

#[test]
fn a_packet_that_is_too_large_is_refused_with_its_sender_named() {
    let mut own = knowing(1..4, MembershipConfig::default());

    let result = own.handle_datagram(&relay(1), &[1; PACKET_BYTES + 1], NOW);

    let message = result.unwrap_err().to_string();
    assert_eq!(
        message,
        "relay relay-001 sent a packet of 1101 bytes, of at most 1100"
    );
    assert_eq!(own.counters().undecodable, 1);
}

#[test]
fn nobody_makes_us_probe_ourselves_or_talk_to_strangers() {
    let mut own = knowing(1..4, MembershipConfig::default());
    let before = state(&own);
    let ask = |target| Message::PingReq {
        target: Identity(target),
        probe_number: 1,
    };

    let ourselves = packet(member(1, 1), member(0, 1), ask(member(0, 1)));
    let result = own.handle_datagram(&relay(1), &ourselves.encode().unwrap(), NOW);
    assert_eq!(
        result,
        Err(MembershipError::AboutOurselves { peer: relay(1) })
    );
    assert_eq!(state(&own), before);

    let stranger = packet(member(1, 1), member(0, 1), ask(member(77, 1)));
    own.handle_datagram(&relay(1), &stranger.encode().unwrap(), NOW)
        .unwrap();
    assert_eq!(drain(&mut own).0, vec![]);
    assert_eq!(own.counters().unroutable, 1);

    let friend = packet(member(1, 1), member(0, 1), ask(member(2, 1)));
    own.handle_datagram(&relay(1), &friend.encode().unwrap(), NOW)
        .unwrap();
    assert_eq!(drain(&mut own).0[0].to, member(2, 1));
}

#[test]
fn what_a_member_says_of_its_addresses_overrides_rumours() {
    let mut own = knowing(1..2, MembershipConfig::default());
    let lie = Member {
        addresses: Addresses::new([("internet", "trap.example:1")]).unwrap(),
        ..member(2, 1)
    };
    let mut rumour = packet(member(1, 1), member(0, 1), Message::Gossip);
    rumour.updates.push(update(lie.clone(), State::Alive));
    own.handle_datagram(&relay(1), &rumour.encode().unwrap(), NOW)
        .unwrap();
    assert_eq!(drain(&mut own).1, vec![MembershipEvent::Up(lie)]);

    let itself = packet(member(2, 1), member(0, 1), Message::Gossip);
    own.handle_datagram(&relay(2), &itself.encode().unwrap(), NOW)
        .unwrap();
    assert_eq!(
        drain(&mut own).1,
        vec![MembershipEvent::Updated(member(2, 1))]
    );

    own.handle_datagram(&relay(1), &rumour.encode().unwrap(), NOW)
        .unwrap();
    assert_eq!(drain(&mut own).1, vec![]);
    assert_eq!(own.member(&relay(2)), Some(&member(2, 1)));
}

#[test]
fn a_relay_that_a_rumour_declared_down_comes_back_with_its_next_generation() {
    let mut world = World::whole(8, 0.0, 4);
    let mut rumour = packet(member(1, 1), member(2, 1), Message::Gossip);
    rumour.updates.push(update(member(3, 1), State::Down));
    let now = world.now;
    world
        .get(2)
        .handle_datagram(&relay(1), &rumour.encode().unwrap(), now)
        .unwrap();

    world.run_for(Duration::from_secs(10));

    assert!(world.is_whole());
    assert_eq!(world.get(3).own().generation, 2);
    assert_eq!(world.get(2).member(&relay(3)), Some(&member(3, 2)));
}

#[test]
fn beyond_the_limit_newcomers_take_the_place_of_the_dead_or_are_refused() {
    let config = MembershipConfig {
        most_members: 4,
        ..MembershipConfig::default()
    };
    let mut own = knowing(1..4, config);
    let mut rumours = packet(member(1, 1), member(0, 1), Message::Gossip);
    rumours.updates = (10..13)
        .map(|n| update(member(n, 1), State::Alive))
        .collect();
    own.handle_datagram(&relay(1), &rumours.encode().unwrap(), NOW)
        .unwrap();
    assert_eq!(own.members().len(), 4);
    assert_eq!(own.counters().too_many, 2);

    let newcomer = packet(member(20, 1), member(0, 0), Message::Announce);
    let newcomer = newcomer.encode().unwrap();
    let before = state(&own);
    let refused = own.handle_datagram(&relay(20), &newcomer, NOW);
    let (peer, known) = (relay(20), 4);
    assert_eq!(refused, Err(MembershipError::TooMany { peer, known }));
    assert_eq!(state(&own), before);

    let mut death = packet(member(1, 1), member(0, 1), Message::Gossip);
    death.updates.push(update(member(2, 1), State::Down));
    own.handle_datagram(&relay(1), &death.encode().unwrap(), NOW)
        .unwrap();
    own.handle_datagram(&relay(20), &newcomer, NOW).unwrap();
    assert!(own.member(&relay(20)).is_some());
    check(&own);
}

#[test]
fn packets_that_nobody_fetches_are_dropped_oldest_first() {
    let mut own = knowing(1..3, MembershipConfig::default());
    for number in 0..=u8::MAX {
        for _ in 0..5 {
            let ping = packet(member(1, 1), member(0, 1), Message::Ping(number));
            own.handle_datagram(&relay(1), &ping.encode().unwrap(), NOW)
                .unwrap();
        }
    }

    let (kept, _) = drain(&mut own);

    assert_eq!(kept.len(), 1_024);
    assert_eq!(own.counters().dropped, 256);
    let last = Packet::decode(&kept[1_023].payload).unwrap();
    assert_eq!(last.header.message, Message::Ack(u8::MAX));
}

proptest! {
    #[test]
    fn noise_is_refused_and_changes_nothing(bytes in prop::collection::vec(any::<u8>(), 0..1_200)) {
        let mut own = knowing(1..4, MembershipConfig::default());
        let before = state(&own);

        prop_assert!(own.handle_datagram(&relay(1), &bytes, NOW).is_err());

        prop_assert_eq!(state(&own), before);
    }

    #[test]
    fn a_damaged_packet_is_taken_whole_or_changes_nothing(
        at in 0_usize..400,
        byte: u8,
        length in 0_usize..400,
    ) {
        let mut own = knowing(1..4, MembershipConfig::default());
        let before = state(&own);
        let mut good = packet(member(1, 1), member(0, 1), Message::Ping(3));
        good.updates = (2..6).map(|n| update(member(n, 2), State::Alive)).collect();
        let mut bytes = good.encode().unwrap();
        bytes.truncate(length);
        if let Some(damaged) = bytes.get_mut(at) {
            *damaged = byte;
        }

        if own.handle_datagram(&relay(1), &bytes, NOW).is_err() {
            prop_assert_eq!(state(&own), before);
        }
        check(&own);
    }
}

fn any_identity() -> impl Strategy<Value = Member> {
    let generation = prop_oneof![4 => 0_u64..4, 1 => Just(u64::MAX)];
    (0_usize..12, generation).prop_map(|(number, generation)| member(number, generation))
}

fn any_message() -> impl Strategy<Value = Message<Identity>> {
    let about = || (any_identity().prop_map(Identity), any::<u8>());
    prop_oneof![
        any::<u8>().prop_map(Message::Ping),
        any::<u8>().prop_map(Message::Ack),
        about().prop_map(|(target, probe_number)| Message::PingReq {
            target,
            probe_number
        }),
        about().prop_map(|(origin, probe_number)| Message::IndirectPing {
            origin,
            probe_number
        }),
        about().prop_map(|(target, probe_number)| Message::IndirectAck {
            target,
            probe_number
        }),
        about().prop_map(|(origin, probe_number)| Message::ForwardedAck {
            origin,
            probe_number
        }),
        Just(Message::Announce),
        Just(Message::Feed),
        Just(Message::Gossip),
        Just(Message::TurnUndead),
    ]
}

fn any_update() -> impl Strategy<Value = Update<Identity>> {
    let state = prop_oneof![Just(State::Alive), Just(State::Suspect), Just(State::Down)];
    let incarnation = prop_oneof![4 => 0_u16..4, 1 => Just(u16::MAX)];
    (any_identity(), incarnation, state)
        .prop_map(|(about, incarnation, state)| Update::new(Identity(about), incarnation, state))
}

#[derive(Clone, Debug)]
enum Op {
    /// A well-formed packet; to our present identity if none is named.
    Packet(
        Member,
        Option<Member>,
        Message<Identity>,
        Vec<Update<Identity>>,
    ),
    Announce(Member),
    Wait(u64),
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let updates = prop::collection::vec(any_update(), 0..6);
    prop_oneof![
        12 => (any_identity(), prop::option::weighted(0.2, any_identity()), any_message(), updates)
            .prop_map(|(from, to, message, updates)| Op::Packet(from, to, message, updates)),
        1 => any_identity().prop_map(Op::Announce),
        4 => (0_u64..3_000).prop_map(Op::Wait),
        1 => Just(Op::Drain),
    ]
}

proptest! {
    #[test]
    fn no_sequence_of_packets_breaks_what_must_always_hold(
        most_members in prop_oneof![Just(4_usize), Just(4_096)],
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let config = MembershipConfig { most_members, ..MembershipConfig::default() };
        let mut own = Membership::new(member(0, 1), config, 1);
        let mut now = NOW;
        let mut told = std::collections::BTreeMap::<RelayId, Member>::new();
        let mut generation = 1;

        for op in ops {
            match op {
                Op::Packet(from, to, message, updates) => {
                    let to = to.unwrap_or_else(|| own.own().clone());
                    let updates = if message == Message::Announce { Vec::new() } else { updates };
                    let certified = from.relay.clone();
                    let bytes = Packet { updates, ..packet(from, to, message) }.encode().unwrap();
                    let before = state(&own);
                    if own.handle_datagram(&certified, &bytes, now).is_err() {
                        prop_assert_eq!(state(&own), before);
                    }
                }
                Op::Announce(to) => own.announce(to, now),
                Op::Wait(ms) => {
                    let until = now + Duration::from_millis(ms);
                    while let Some(at) = own.poll_timeout().filter(|at| *at <= until) {
                        now = now.max(at);
                        own.handle_timeout(now);
                        check(&own);
                    }
                    now = until;
                }
                Op::Drain => {}
            }
            check(&own);
            while let Some(transmit) = own.poll_transmit() {
                prop_assert!(transmit.payload.len() <= PACKET_BYTES);
                prop_assert!(transmit.to.relay != own.own().relay);
            }
            while let Some(event) = own.poll_event() {
                match event {
                    MembershipEvent::Up(m) => prop_assert!(told.insert(m.relay.clone(), m).is_none()),
                    MembershipEvent::Updated(m) => {
                        let before = told.insert(m.relay.clone(), m.clone());
                        prop_assert!(before.is_some_and(|before| before != m));
                    }
                    MembershipEvent::Down(m) => prop_assert_eq!(told.remove(&m.relay), Some(m)),
                    MembershipEvent::OwnGeneration(new) => {
                        prop_assert!(new > generation);
                        generation = new;
                    }
                }
            }
            let members: Vec<&Member> = own.members().collect();
            prop_assert_eq!(told.values().collect::<Vec<_>>(), members);
            prop_assert_eq!(generation, own.own().generation);
        }
    }
}
