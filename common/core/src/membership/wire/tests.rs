use proptest::prelude::*;

use super::*;

fn addresses() -> impl Strategy<Value = Addresses> {
    let entry = ("[a-z0-9-]{1,16}", "[a-z0-9.-]{1,60}", 1_u16..);
    prop::collection::vec(entry, 0..5).prop_filter_map("too long or repeated", |entries| {
        let texts: Vec<_> = entries
            .into_iter()
            .map(|(scope, host, port)| (scope, format!("{host}:{port}")))
            .collect();
        Addresses::new(texts.iter().map(|(s, a)| (s.as_str(), a.as_str()))).ok()
    })
}

fn member() -> impl Strategy<Value = Member> {
    ("[A-Za-z0-9._-]{1,63}", any::<u64>(), addresses()).prop_map(
        |(relay, generation, addresses)| Member {
            relay: RelayId::new(&relay).unwrap(),
            generation,
            addresses,
        },
    )
}

/// The member without what a receiver is not told.
fn name(member: Member) -> Member {
    let addresses = Addresses::none();
    Member {
        addresses,
        ..member
    }
}

fn message() -> impl Strategy<Value = Message<Identity>> {
    let about = || (member().prop_map(|m| Identity(name(m))), any::<u8>());
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

fn update() -> impl Strategy<Value = Update<Identity>> {
    let state = prop_oneof![Just(State::Alive), Just(State::Suspect), Just(State::Down)];
    (member(), any::<u16>(), state)
        .prop_map(|(about, incarnation, state)| Update::new(Identity(about), incarnation, state))
}

proptest! {
    #[test]
    fn a_packet_survives_its_bytes(
        src in member(),
        dst in member(),
        src_incarnation: u16,
        message in message(),
        updates in prop::collection::vec(update(), 0..8),
    ) {
        let dst = Identity(name(dst));
        let header = Header { src: Identity(src.clone()), src_incarnation, dst, message };

        let bytes = Packet { header: header.clone(), updates: updates.clone() }.encode().unwrap();
        let decoded = Packet::decode(&bytes).unwrap();

        prop_assert!(bytes.len() <= PACKET_BYTES);
        prop_assert_eq!(&decoded.header, &header);
        // Identities are equal by name and generation, so addresses are compared apart.
        prop_assert_eq!(&decoded.header.src.0, &src);
        let fitting = decoded.updates.len();
        prop_assert_eq!(&decoded.updates, &updates[..fitting]);
        for (decoded, update) in decoded.updates.iter().zip(&updates) {
            prop_assert_eq!(&decoded.id().0, &update.id().0);
        }
        let bare = header.message == Message::Announce;
let fits = if bare { fitting == 0 } else { fitting >= updates.len().min(3) };
        prop_assert!(fits);
    }

    #[test]
    fn an_identity_takes_at_most_220_bytes(member in member()) {
        let mut bytes = Vec::new();
        put_member(&mut bytes, &Identity(member));

        prop_assert!(bytes.len() <= 220);
    }

    #[test]
    fn any_bytes_decode_to_what_encodes_to_them_or_not_at_all(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        kind in 0_u8..12,
    ) {
        let mut framed = vec![VERSION, kind];
        framed.extend(bytes);

        if let Ok(packet) = Packet::decode(&framed) {
            let again = Packet::decode(&packet.encode().unwrap()).unwrap();
            prop_assert_eq!(again.header, packet.header);
            prop_assert_eq!(again.updates, packet.updates);
        }
    }
}

#[test]
fn the_largest_identity_fits_three_times_beside_the_largest_header() {
    let text = format!("{}:65535", "h".repeat(60));
    let largest = Member {
        relay: RelayId::new(&"r".repeat(63)).unwrap(),
        generation: u64::MAX,
        addresses: Addresses::new([("a", text.as_str()), ("b", text.as_str())]).unwrap(),
    };
    let identity = Identity(largest);
    let packet = Packet {
        header: Header {
            src: identity.clone(),
            src_incarnation: u16::MAX,
            dst: identity.clone(),
            message: Message::PingReq {
                target: identity.clone(),
                probe_number: 1,
            },
        },
        updates: vec![Update::alive(identity); 5],
    };

    let decoded = Packet::decode(&packet.encode().unwrap()).unwrap();

    assert_eq!(decoded.updates.len(), 3);
}

#[test]
fn unknown_versions_kinds_and_states_are_named() {
    assert_eq!(Packet::decode(&[]).unwrap_err(), WireError::Short);
    assert_eq!(Packet::decode(&[2, 1]).unwrap_err(), WireError::Version(2));
    let relay = [1, 1, 1, b'a', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, b'b'];
    let mut bytes = [&relay[..], &[0; 8]].concat();
    bytes[1] = 77;
    assert_eq!(Packet::decode(&bytes).unwrap_err(), WireError::Kind(77));
    bytes[1] = 9;
    assert!(Packet::decode(&bytes).is_ok());
    bytes.push(0);
    assert_eq!(Packet::decode(&bytes).unwrap_err(), WireError::Short);
    bytes.extend([0, 9]);
    assert_eq!(Packet::decode(&bytes).unwrap_err(), WireError::Trailing(1));
}
