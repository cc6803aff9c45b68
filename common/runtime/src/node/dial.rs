//! Dials a node and makes sure that it is the one that was wanted.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvgrid_certs::{Accepts, Identity, Peer, PeerError, TLS_NAME, peer_of};
use kvgrid_core::{EdgeId, RelayId};
use quinn::crypto::rustls::{HandshakeData, NoInitialCipherSuite, QuicClientConfig};
use quinn::rustls::pki_types::CertificateDer;
use quinn::{Connection, ConnectionError};
use thiserror::Error;

use super::{CloseReason, Node, PeerConnection, Protocol, announce};

/// Longer than two round trips around the world, twice over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whom a connection is meant for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any relay: a seed, of which only the address is known.
    AnyRelay,
    /// This relay and no other.
    Relay(RelayId),
    /// Any edge.
    AnyEdge,
    /// This edge and no other.
    Edge(EdgeId),
}

impl Expected {
    fn accepts(&self) -> Accepts {
        match self {
            Self::AnyRelay | Self::Relay(_) => Accepts::Relays,
            Self::AnyEdge | Self::Edge(_) => Accepts::Edges,
        }
    }

    fn is(&self, found: &Identity) -> bool {
        match self {
            Self::AnyRelay => found.as_relay().is_some(),
            Self::Relay(id) => found.as_relay().is_some_and(|(_, relay)| relay == id),
            Self::AnyEdge => found.as_edge().is_some(),
            Self::Edge(id) => found.as_edge().is_some_and(|(_, edge)| edge == id),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyRelay => f.write_str("a relay"),
            Self::Relay(id) => write!(f, "relay {id}"),
            Self::AnyEdge => f.write_str("an edge"),
            Self::Edge(id) => write!(f, "edge {id}"),
        }
    }
}

/// Why a node was not reached. No connection was kept.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address is of another family than our socket, or QUIC cannot dial it.
    #[error("{address} cannot be dialled: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What is wrong with it.
        error: quinn::ConnectError,
    },
    /// Nobody answered in time.
    #[error("{0} did not answer within {CONNECT_TIMEOUT:?}")]
    Timeout(SocketAddr),
    /// The handshake failed: one end did not accept the other's certificate, or the line broke.
    #[error("{address}: {error}")]
    Handshake {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        error: ConnectionError,
    },
    /// The peer's certificate or protocol is not what the handshake should have let pass.
    #[error("{address}: {error}")]
    Peer {
        /// The address.
        address: SocketAddr,
        /// What is wrong.
        error: PeerOfError,
    },
    /// Another node than was wanted answers there.
    #[error("{found} answers at {address}, where {expected} was dialled")]
    Unexpected {
        /// The address.
        address: SocketAddr,
        /// Who was wanted.
        expected: Expected,
        /// Who it is.
        found: Box<Identity>,
    },
    /// TLS lacks the cipher that QUIC begins with; a fault of the build.
    #[error(transparent)]
    Cipher(#[from] NoInitialCipherSuite),
}

/// Why an established connection has no peer that we can name.
#[derive(Debug, Error)]
pub enum PeerOfError {
    /// The certificate says nobody we know.
    #[error(transparent)]
    Certificate(#[from] PeerError),
    /// The handshake settled on no protocol of ours.
    #[error("the handshake settled on no protocol")]
    Protocol,
}

impl Node {
    /// Dials `address`, and gives the connection only if the right node answers.
    ///
    /// A peer that refuses us says so after our side of the handshake is done: then the
    /// connection's first use fails.
    pub async fn connect(
        &self,
        address: SocketAddr,
        protocol: Protocol,
        expected: &Expected,
    ) -> Result<PeerConnection, ConnectError> {
        let connecting = self
            .0
            .endpoint
            .connect_with(self.client_config(protocol, expected)?, address, TLS_NAME)
            .map_err(|error| ConnectError::Address { address, error })?;
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| ConnectError::Timeout(address))?
            .map_err(|error| ConnectError::Handshake { address, error })?;
        let (protocol, peer) = peer_of_connection(&connection)
            .map_err(|error| ConnectError::Peer { address, error })?;
        if !expected.is(&peer.identity) {
            CloseReason::Unexpected.close(&connection);
            return Err(ConnectError::Unexpected {
                address,
                expected: expected.clone(),
                found: Box::new(peer.identity),
            });
        }
        self.end_with_certificate(&connection, &peer);
        Ok(PeerConnection {
            protocol,
            peer: peer.identity,
            connection,
        })
    }

    fn client_config(
        &self,
        protocol: Protocol,
        expected: &Expected,
    ) -> Result<quinn::ClientConfig, NoInitialCipherSuite> {
        let credentials = &self.0.credentials;
        let tls = credentials.client_config(protocol.alpn(), expected.accepts());
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let own = credentials.identity().role().kind();
        config
            .transport_config(Arc::new(self.0.transport.dialled(protocol, own)))
            .initial_dst_cid_provider(Arc::new(move || announce::first_id(protocol)));
        Ok(config)
    }
}

/// The addresses of `HOST:PORT`, asked for anew each time: seeds move.
pub async fn resolve(host_and_port: &str) -> io::Result<Vec<SocketAddr>> {
    let looked_up = tokio::net::lookup_host(host_and_port);
    let found: Vec<_> = tokio::time::timeout(RESOLVE_TIMEOUT, looked_up)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??
        .collect();
    if found.is_empty() {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    Ok(found)
}

/// Reads protocol and peer out of what the handshake left.
pub(super) fn peer_of_connection(connection: &Connection) -> Result<(Protocol, Peer), PeerOfError> {
    let protocol = connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok())
        .and_then(|data| Protocol::from_alpn(&data.protocol?))
        .ok_or(PeerOfError::Protocol)?;
    let chain = connection
        .peer_identity()
        .and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(PeerError::NoCertificate)?;
    Ok((protocol, peer_of(&chain)?))
}
