//! Why a datagram is refused.

use thiserror::Error;

use super::wire::WireError;
use crate::id::RelayId;

/// Why a datagram was refused. Nothing but a counter was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MembershipError {
    /// The sender names itself otherwise than its certificate does: a forgery.
    #[error("relay {certified} sent a packet as {claimed}")]
    WrongSender {
        /// Who the packet says sent it.
        claimed: RelayId,
        /// Who sent it.
        certified: RelayId,
    },
    /// The sender has our own name: two relays were given the same certificate.
    #[error("another relay is named {0} as well")]
    OwnName(RelayId),
    /// The packet is larger than any may be. The sender's fault.
    #[error("relay {peer} sent a packet of {bytes} bytes, of at most 1100")]
    TooLarge {
        /// The sender.
        peer: RelayId,
        /// The packet's length.
        bytes: usize,
    },
    /// The bytes are no packet. The sender's fault, or it speaks another version.
    #[error("relay {peer} sent what is no packet: {source}")]
    Undecodable {
        /// The sender.
        peer: RelayId,
        /// What is wrong with them.
        source: WireError,
    },
    /// The sender asks to probe ourselves for it. The sender's fault, unless it has not yet
    /// heard that we started again.
    #[error("relay {peer} asks to probe ourselves")]
    AboutOurselves {
        /// The sender.
        peer: RelayId,
    },
    /// The sender is unknown and there is no room for it. Nobody's fault; see
    /// [`most_members`](super::MembershipConfig::most_members).
    #[error("no room for relay {peer} beside {known} others")]
    TooMany {
        /// The sender.
        peer: RelayId,
        /// Relays known.
        known: usize,
    },
    /// The protocol refused it otherwise. Must not happen: our own fault.
    #[error("the packet of relay {peer} was refused: {reason}")]
    Protocol {
        /// The sender.
        peer: RelayId,
        /// Foca's reason.
        reason: String,
    },
}
