//! Why connections are closed: codes that the peer can act on.

use quinn::{Connection, ConnectionError, VarInt};

/// Why one end closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It is not needed any more.
    Done,
    /// The node stops.
    Stopping,
    /// The peer is another node than was dialled.
    Unexpected,
    /// The peer's role may not speak this protocol.
    Role,
    /// The certificate that the connection was accepted by has ended.
    CertificateEnded,
    /// A newer connection of the same peer takes its place.
    Replaced,
    /// The peer broke the protocol.
    Protocol,
    /// The peer is at a limit, such as that of its connections.
    Limit,
}

impl CloseReason {
    const ALL: [Self; 8] = [
        Self::Done,
        Self::Stopping,
        Self::Unexpected,
        Self::Role,
        Self::CertificateEnded,
        Self::Replaced,
        Self::Protocol,
        Self::Limit,
    ];

    /// The code on the wire.
    pub fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Done => 0,
            Self::Stopping => 1,
            Self::Unexpected => 2,
            Self::Role => 3,
            Self::CertificateEnded => 4,
            Self::Replaced => 5,
            Self::Protocol => 6,
            Self::Limit => 7,
        })
    }

    /// The words on the wire, for people.
    pub fn text(self) -> &'static [u8] {
        match self {
            Self::Done => b"done",
            Self::Stopping => b"the node stops",
            Self::Unexpected => b"another node was dialled",
            Self::Role => b"the role may not speak this protocol",
            Self::CertificateEnded => b"the certificate has ended",
            Self::Replaced => b"a newer connection takes its place",
            Self::Protocol => b"the peer broke the protocol",
            Self::Limit => b"the peer is at a limit",
        }
    }

    /// Why the peer closed a connection, if it did and with a reason we know.
    pub fn of(error: &ConnectionError) -> Option<Self> {
        match error {
            ConnectionError::ApplicationClosed(close) => Self::ALL
                .into_iter()
                .find(|reason| reason.code() == close.error_code),
            ConnectionError::VersionMismatch
            | ConnectionError::TransportError(_)
            | ConnectionError::ConnectionClosed(_)
            | ConnectionError::Reset
            | ConnectionError::TimedOut
            | ConnectionError::LocallyClosed
            | ConnectionError::CidsExhausted => None,
        }
    }

    /// Closes `connection` for this reason.
    pub fn close(self, connection: &Connection) {
        connection.close(self.code(), self.text());
    }
}
