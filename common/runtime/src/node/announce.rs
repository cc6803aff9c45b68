//! Who dials says in its first packet what for.
//!
//! An edge holds far less for a stream of a request than for one of a view, and QUIC settles
//! that before the handshake has told the protocol. So the first byte of the connection id
//! that a dialler makes up for its peer names the protocol; the other bytes are random, as
//! QUIC wants. It is a hint and no more: by what it says the peer chooses its settings, which
//! allow this one protocol in the handshake.

use std::hash::{BuildHasher as _, RandomState};

use quinn::ConnectionId;

use super::Protocol;

const fn byte(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::View => b'v',
        Protocol::Request => b'r',
        Protocol::Gossip => b'g',
    }
}

/// An id for the first packet of a connection. Eight unpredictable bytes are what QUIC wants.
pub(super) fn first_id(protocol: Protocol) -> ConnectionId {
    let mut id = [byte(protocol); 17];
    // Each state has keys of its own, drawn from the system's randomness.
    for half in id[1..].chunks_exact_mut(8) {
        half.copy_from_slice(&RandomState::new().hash_one(()).to_le_bytes());
    }
    ConnectionId::new(&id)
}

/// What the first packet's id says.
pub(super) fn announced(id: &ConnectionId) -> Option<Protocol> {
    let first = id.first()?;
    Protocol::ALL.into_iter().find(|p| byte(*p) == *first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_understood_and_no_two_ids_are_alike() {
        for protocol in Protocol::ALL {
            let (a, b) = (first_id(protocol), first_id(protocol));

            assert_eq!(announced(&a), Some(protocol));
            assert_ne!(a, b);
        }
        assert_eq!(announced(&ConnectionId::new(&[])), None);
        assert_eq!(announced(&ConnectionId::new(&[0; 8])), None);
    }
}
