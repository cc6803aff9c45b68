//! A node on the network: one UDP socket that dials and is dialled, always under mutual TLS.
//!
//! The protocol of a connection is its ALPN; who the peer is stands in its certificate. Both
//! are known, and allowed, before a connection is handed out: by [`Node::connect`] for those we
//! dial, by [`Node::accept`] for those that dial us. A connection ends with the certificate it
//! was accepted by, so that a node that is no longer certified does not stay for ever.

mod accept;
mod announce;
mod close;
mod congestion;
mod dial;
mod seek;
mod socket;
mod transport;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kvgrid_certs::{Accepts, Identity, NodeCredentials, Peer, RoleKind};
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};
use quinn::{AsyncUdpSocket, Connection, Endpoint, EndpointConfig, Runtime, TokioRuntime};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use thiserror::Error;
use tokio::sync::{Mutex, mpsc};

use crate::tasks::Tasks;

pub use close::CloseReason;
pub use congestion::Congestion;
pub use dial::{ConnectError, Expected, PeerOfError, resolve};
pub use seek::{FoundRelay, Seed, seek};
pub use transport::TransportConfig;

/// Connections that finished their handshake and wait to be accepted. At the bound, handshakes
/// stay open until one is taken, and new ones are refused once there are too many of those.
const ACCEPTED: usize = 64;

/// What a connection is for; its ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A relay tells an edge what its site has cached and how loaded it is.
    View,
    /// An edge sends requests, one stream each.
    Request,
    /// Relays tell each other who is alive.
    Gossip,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::View, Self::Request, Self::Gossip];

    /// Its name in the handshake.
    pub const fn alpn(self) -> &'static [u8] {
        match self {
            Self::View => b"kvgrid-view/1",
            Self::Request => b"kvgrid-request/1",
            Self::Gossip => b"kvgrid-gossip/1",
        }
    }

    /// The protocol of this name.
    pub fn from_alpn(alpn: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.alpn() == alpn)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::View => "view",
            Self::Request => "request",
            Self::Gossip => "gossip",
        })
    }
}

/// Puts something between QUIC and its socket: a test's link with delay and loss.
pub type WrapSocket = Arc<dyn Fn(Arc<dyn AsyncUdpSocket>) -> Arc<dyn AsyncUdpSocket> + Send + Sync>;

/// What a node is made of.
#[derive(Clone)]
pub struct NodeConfig {
    /// The UDP address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Who the node is and whom it trusts.
    pub credentials: NodeCredentials,
    /// The protocols it serves, and to whom; none for a node that only dials.
    pub serves: Vec<(Protocol, Accepts)>,
    /// Windows, rates and switches.
    pub transport: TransportConfig,
    /// For tests with emulated links.
    pub wrap_socket: Option<WrapSocket>,
}

impl NodeConfig {
    /// A node with default transport that only dials.
    pub fn new(listen: SocketAddr, credentials: NodeCredentials) -> Self {
        Self {
            listen,
            credentials,
            serves: Vec::new(),
            transport: TransportConfig::default(),
            wrap_socket: None,
        }
    }

    /// The same node, which also serves `protocol` to those that `accepts` says.
    pub fn serve(mut self, protocol: Protocol, accepts: Accepts) -> Self {
        self.serves.push((protocol, accepts));
        self
    }

    /// The same node with other windows, rates and switches.
    pub fn transport(mut self, transport: TransportConfig) -> Self {
        self.transport = transport;
        self
    }
}

/// Why a node has no endpoint. Nothing was started.
#[derive(Debug, Error)]
pub enum BindError {
    /// The address is taken, not ours, or not allowed.
    #[error("{address} cannot be bound: {error}")]
    Socket {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// TLS lacks the cipher that QUIC begins with; a fault of the build.
    #[error(transparent)]
    Cipher(#[from] NoInitialCipherSuite),
}

/// A connection whose peer is known and allowed.
#[derive(Clone, Debug)]
pub struct PeerConnection {
    /// What it is for.
    pub protocol: Protocol,
    /// Who the peer is.
    pub peer: Identity,
    /// The connection itself.
    pub connection: Connection,
}

impl PeerConnection {
    /// Closes it, with the reason told to the peer.
    pub fn close(&self, reason: CloseReason) {
        reason.close(&self.connection);
    }

    /// Lets what this end sends give way to what else is on its path, or no more. A connection
    /// that goes by losses can't, and goes on as before.
    pub fn set_background(&self, background: bool) {
        if let Some(switch) = congestion::Background::of(&self.connection) {
            switch.set(background);
        }
    }

    /// Whether it does.
    pub fn is_background(&self) -> bool {
        congestion::Background::of(&self.connection).is_some_and(|switch| switch.get())
    }
}

type ByProtocol = BTreeMap<Protocol, Arc<quinn::ServerConfig>>;

struct Inner {
    endpoint: Endpoint,
    address: SocketAddr,
    credentials: NodeCredentials,
    transport: TransportConfig,
    /// An edge's settings for connections that dial it; a relay has one for all.
    by_protocol: Option<ByProtocol>,
    accepted: Mutex<mpsc::Receiver<PeerConnection>>,
    tasks: Tasks,
}

/// A QUIC endpoint; clones share it.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} at {})", self.identity(), self.0.address)
    }
}

impl Node {
    /// Binds the socket and begins to take connections; must run within the runtime.
    pub fn bind(config: NodeConfig, tasks: &Tasks) -> Result<Self, BindError> {
        let server = server_config(&config, &config.serves, config.transport.served())?;
        let by_protocol = by_protocol(&config)?;
        let (endpoint, address) =
            bind_endpoint(&config, server).map_err(|error| BindError::Socket {
                address: config.listen,
                error,
            })?;
        let (sender, receiver) = mpsc::channel(ACCEPTED);
        let node = Self(Arc::new(Inner {
            endpoint,
            address,
            credentials: config.credentials,
            transport: config.transport,
            by_protocol,
            accepted: Mutex::new(receiver),
            tasks: tasks.clone(),
        }));
        if !config.serves.is_empty() {
            let accepting = accept::run(node.clone(), config.serves, sender);
            tasks.spawn_vital("accept connections", accepting);
        }
        Ok(node)
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.address
    }

    /// Who the node is.
    pub fn identity(&self) -> Identity {
        self.0.credentials.identity()
    }

    /// The next connection from outside; `None` once the tasks have been told to stop.
    ///
    /// One task calls this: several would share the connections among them.
    pub async fn accept(&self) -> Option<PeerConnection> {
        let mut accepted = self.0.accepted.lock().await;
        tokio::select! {
            () = self.0.tasks.stopping() => None,
            connection = accepted.recv() => connection,
        }
    }

    /// Closes all connections and waits, a moment at most, until the peers have been told.
    pub async fn close(&self, reason: CloseReason) {
        self.0.endpoint.close(reason.code(), reason.text());
        // A peer that is gone keeps its connection draining for three probe timeouts.
        let told = self.0.endpoint.wait_idle();
        let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
    }

    /// Ends the connection when the certificate it was accepted by ends.
    fn end_with_certificate(&self, connection: &Connection, peer: &Peer) {
        let left = peer
            .not_after
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        let (connection, tasks) = (connection.clone(), self.0.tasks.clone());
        self.0.tasks.spawn("certificate's end", async move {
            tokio::select! {
                _ = connection.closed() => {}
                () = tasks.stopping() => {}
                () = tokio::time::sleep(left) => {
                    CloseReason::CertificateEnded.close(&connection);
                }
            }
        });
    }
}

/// Settings by which a node takes connections of these protocols; `None` if it takes none.
fn server_config(
    config: &NodeConfig,
    serves: &[(Protocol, Accepts)],
    transport: quinn::TransportConfig,
) -> Result<Option<quinn::ServerConfig>, BindError> {
    let accepts = serves.iter().map(|(_, accepts)| *accepts);
    let Some(accepts) = accepts.reduce(|a, b| if a == b { a } else { Accepts::Both }) else {
        return Ok(None);
    };
    let alpn: Vec<_> = serves.iter().map(|(p, _)| p.alpn()).collect();
    let tls = config.credentials.server_config(&alpn, accepts);
    let crypto = Arc::new(QuicServerConfig::try_from(tls)?);
    let mut server = quinn::ServerConfig::with_crypto(crypto);
    server
        .transport_config(Arc::new(transport))
        .max_incoming(accept::MAX_INCOMING)
        .migration(false);
    Ok(Some(server))
}

/// Settings of each protocol that an edge serves, if the node is one.
fn by_protocol(config: &NodeConfig) -> Result<Option<ByProtocol>, BindError> {
    if config.credentials.identity().role().kind() == RoleKind::Relay {
        return Ok(None);
    }
    let mut settings = ByProtocol::new();
    for served in &config.serves {
        let transport = config.transport.edge(served.0);
        if let Some(server) = server_config(config, &[*served], transport)? {
            settings.insert(served.0, Arc::new(server));
        }
    }
    Ok(Some(settings))
}

/// A node that is back ends, by stateless resets, what its last life had open, instead of
/// leaving its peers to wait. For that, both lives name and reset connections alike.
fn endpoint_config(credentials: &NodeCredentials) -> EndpointConfig {
    let reset = credentials.secret("stateless reset");
    let reset = hmac::Key::new(hmac::HMAC_SHA256, &reset);
    let [a, b, c, d, e, f, g, h, ..] = credentials.secret("connection ids");
    let ids = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config
}

fn bind_endpoint(
    config: &NodeConfig,
    server: Option<quinn::ServerConfig>,
) -> io::Result<(Endpoint, SocketAddr)> {
    let socket = socket::bind(config.listen, config.transport.socket_buffer_bytes)?;
    let mut socket = TokioRuntime.wrap_udp_socket(socket)?;
    if let Some(wrap) = &config.wrap_socket {
        socket = wrap(socket);
    }
    let runtime = Arc::new(TokioRuntime);
    let endpoint = endpoint_config(&config.credentials);
    let endpoint = Endpoint::new_with_abstract_socket(endpoint, server, socket, runtime)?;
    let address = endpoint.local_addr()?;
    Ok((endpoint, address))
}

#[cfg(test)]
pub(crate) mod tests;
