//! A relay as gossip knows it.

use std::fmt;

use super::address::Addresses;
use crate::id::RelayId;

/// A relay, the number of its life, and where it can be reached.
///
/// A relay that starts again takes a higher generation than ever before, and a relay that was
/// declared down by mistake takes the next one: the higher generation replaces the lower.
/// Addresses belong to a generation and change with it only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The relay, as its certificate says.
    pub relay: RelayId,
    /// The number of the relay's life, persisted by it.
    pub generation: u64,
    /// Where it says that it can be reached: a hint whom to dial, to be checked against the
    /// certificate found there.
    pub addresses: Addresses,
}

/// A member as the protocol compares it: by relay and generation. If addresses counted, a
/// forged rumour about them would cut the relay off, because packets name whom they are for.
#[derive(Clone)]
pub(super) struct Identity(pub(super) Member);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.0.generation == other.0.generation && self.0.relay == other.0.relay
    }
}

impl Eq for Identity {}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.0.relay, self.0.generation)
    }
}

impl foca::Identity for Identity {
    type Addr = RelayId;

    /// None only at the last generation of all, which a rumour may have forced: such a relay
    /// needs another name.
    fn renew(&self) -> Option<Self> {
        let generation = self.0.generation.checked_add(1)?;
        Some(Self(Member {
            generation,
            ..self.0.clone()
        }))
    }

    fn addr(&self) -> RelayId {
        self.0.relay.clone()
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.0.generation > adversary.0.generation
    }
}

#[cfg(test)]
mod tests {
    use foca::Identity as _;

    use super::*;

    #[test]
    fn a_renewed_identity_replaces_its_former_self() {
        let identity = Identity(Member {
            relay: RelayId::new("fra-1").unwrap(),
            generation: 7,
            addresses: Addresses::new([("internet", "fra-1:7440")]).unwrap(),
        });

        let renewed = identity.renew().unwrap();

        assert_eq!(renewed.0.generation, 8);
        assert_eq!(renewed.0.addresses, identity.0.addresses);
        assert_eq!(renewed.addr(), identity.addr());
        assert!(renewed.win_addr_conflict(&identity));
        assert!(!identity.win_addr_conflict(&renewed));
    }
}
