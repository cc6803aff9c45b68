//! Members on the wire: relays that gossip believes alive.

use kvgrid_core::RelayId;
use kvgrid_core::membership::Addresses;

use crate::convert::ConvertError;
use crate::v1;

/// Members of one frame: each takes at most about 230 bytes.
const PER_FRAME: usize = 1000;

/// The frames that tell of all these members; one at least.
pub fn members_to_wire<'a>(
    members: impl IntoIterator<Item = (&'a RelayId, &'a Addresses)>,
) -> Vec<v1::Members> {
    let members: Vec<v1::Member> = members.into_iter().map(member_to_wire).collect();
    let mut frames: Vec<v1::Members> = members
        .chunks(PER_FRAME)
        .map(|members| v1::Members {
            members: members.to_vec(),
            more: true,
        })
        .collect();
    match frames.last_mut() {
        Some(last) => last.more = false,
        None => frames.push(v1::Members::default()),
    }
    frames
}

/// The members of one frame.
pub fn members_from_wire(wire: &v1::Members) -> Result<Vec<(RelayId, Addresses)>, ConvertError> {
    wire.members.iter().map(member_from_wire).collect()
}

fn member_to_wire((relay, addresses): (&RelayId, &Addresses)) -> v1::Member {
    let address = |(scope, address): (&kvgrid_core::membership::Scope, &str)| v1::Address {
        scope: scope.to_string(),
        address: address.to_owned(),
    };
    v1::Member {
        relay_id: relay.to_string(),
        addresses: addresses.iter().map(address).collect(),
    }
}

fn member_from_wire(wire: &v1::Member) -> Result<(RelayId, Addresses), ConvertError> {
    let relay = RelayId::new(&wire.relay_id)
        .map_err(|error| ConvertError::invalid("member.relay_id", error))?;
    let entries = wire.addresses.iter();
    let entries = entries.map(|entry| (entry.scope.as_str(), entry.address.as_str()));
    let addresses = Addresses::new(entries)
        .map_err(|error| ConvertError::invalid("member.addresses", error))?;
    Ok((relay, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_survive_the_wire_in_as_many_frames_as_they_need() {
        for count in [0, 1, 1000, 2500] {
            let members: Vec<(RelayId, Addresses)> = (0..count)
                .map(|n| {
                    let address = format!("r{n}.example:7440");
                    let addresses = Addresses::new([("public", address.as_str())]).unwrap();
                    (RelayId::new(&format!("r{n}")).unwrap(), addresses)
                })
                .collect();

            let frames = members_to_wire(members.iter().map(|(relay, list)| (relay, list)));

            let more: Vec<bool> = frames.iter().map(|frame| frame.more).collect();
            let (last, before) = more.split_last().unwrap();
            assert!(!last && before.iter().all(|more| *more), "{more:?}");
            let read: Vec<_> = frames
                .iter()
                .flat_map(|frame| members_from_wire(frame).unwrap())
                .collect();
            assert_eq!(read, members);
        }
    }

    #[test]
    fn a_member_that_cannot_be_is_refused_by_field() {
        let member = |relay: &str, address: &str| v1::Members {
            members: vec![v1::Member {
                relay_id: relay.into(),
                addresses: vec![v1::Address {
                    scope: "public".into(),
                    address: address.into(),
                }],
            }],
            more: false,
        };

        let error = |relay, address| members_from_wire(&member(relay, address)).unwrap_err();
        assert!(
            error("", "a:1")
                .to_string()
                .starts_with("member.relay_id: ")
        );
        assert!(
            error("a", "a:0")
                .to_string()
                .starts_with("member.addresses: ")
        );
        assert!(members_from_wire(&member("a", "a:1")).is_ok());
    }
}
