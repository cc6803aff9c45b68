use kvgrid_certs::{CertAuthority, TrustDomain, Validity};
use kvgrid_core::RelayId;
use quinn::ConnectionError;
use tokio::net::UdpSocket;
use tokio::sync::watch;

use super::*;

const RELAY: &str = "spiffe://grid.example/region/eu/site/fra/relay/fra-1";
const EDGE: &str = "spiffe://grid.example/region/eu/edge/eu-1";

fn authority() -> CertAuthority {
    CertAuthority::generate(TrustDomain::new("grid.example").unwrap()).unwrap()
}

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A relay and an edge of one grid, which stop when the pair is dropped.
pub(crate) struct Pair {
    authority: CertAuthority,
    pub(crate) relay: Node,
    edge: Node,
    tasks: Tasks,
}

impl Pair {
    pub(crate) fn start() -> Self {
        let authority = authority();
        let tasks = Tasks::new();
        let credentials = |uri: &str| authority.credentials(&uri.parse().unwrap()).unwrap();
        let relay = NodeConfig::new(local(), credentials(RELAY))
            .serve(Protocol::View, Accepts::Edges)
            .serve(Protocol::Request, Accepts::Edges)
            .serve(Protocol::Gossip, Accepts::Relays);
        let edge = NodeConfig::new(local(), credentials(EDGE))
            .serve(Protocol::View, Accepts::Relays)
            .serve(Protocol::Request, Accepts::Relays);
        Self {
            relay: Node::bind(relay, &tasks).unwrap(),
            edge: Node::bind(edge, &tasks).unwrap(),
            authority,
            tasks,
        }
    }

    /// A node that only dials, with a certificate of the pair's authority.
    fn dialler(&self, uri: &str, validity: Validity) -> Node {
        let leaf = self
            .authority
            .issue(&uri.parse().unwrap(), validity)
            .unwrap();
        let credentials = NodeCredentials::from_pem(
            leaf.certificate_pem.as_bytes(),
            leaf.key_pem.as_bytes(),
            self.authority.certificate_pem().as_bytes(),
        );
        let config = NodeConfig::new(local(), credentials.unwrap());
        Node::bind(config, &self.tasks).unwrap()
    }

    pub(crate) async fn dial(&self, protocol: Protocol, expected: &Expected) -> PeerConnection {
        let address = self.relay.local_addr();
        self.edge
            .connect(address, protocol, expected)
            .await
            .unwrap()
    }
}

impl Pair {
    /// A connection that the relay has dialled: its end and the edge's.
    async fn dial_back(&self, protocol: Protocol) -> (Connection, Connection) {
        let address = self.edge.local_addr();
        let relay = self
            .relay
            .connect(address, protocol, &Expected::AnyEdge)
            .await
            .unwrap();
        let edge = self.edge.accept().await.unwrap();
        assert_eq!((edge.protocol, edge.peer.uri()), (protocol, RELAY.into()));
        (relay.connection, edge.connection)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

fn relay_id(id: &str) -> Expected {
    Expected::Relay(RelayId::new(id).unwrap())
}

#[tokio::test]
async fn both_ends_know_the_peer_and_the_protocol() {
    let pair = Pair::start();

    for protocol in [Protocol::View, Protocol::Request] {
        let dialled = pair.dial(protocol, &relay_id("fra-1")).await;
        let taken = pair.relay.accept().await.unwrap();

        assert_eq!(
            (dialled.protocol, dialled.peer.uri()),
            (protocol, RELAY.into())
        );
        assert_eq!((taken.protocol, taken.peer.uri()), (protocol, EDGE.into()));
    }
}

#[tokio::test]
async fn another_relay_than_dialled_is_refused_and_both_are_named() {
    let pair = Pair::start();
    let address = pair.relay.local_addr();

    let error = pair
        .edge
        .connect(address, Protocol::View, &relay_id("fra-2"))
        .await
        .unwrap_err();

    assert_eq!(
        error.to_string(),
        format!("{RELAY} answers at {address}, where relay fra-2 was dialled")
    );
    let taken = pair.relay.accept().await.unwrap();
    let reason = CloseReason::of(&taken.connection.closed().await);
    assert_eq!(reason, Some(CloseReason::Unexpected));
}

#[tokio::test]
async fn a_role_that_may_not_speak_the_protocol_is_told_so() {
    let pair = Pair::start();

    let dialled = pair.dial(Protocol::Gossip, &Expected::AnyRelay).await;

    let reason = CloseReason::of(&dialled.connection.closed().await);
    assert_eq!(reason, Some(CloseReason::Role));
}

#[tokio::test]
async fn a_node_of_another_grid_gets_no_connection() {
    let pair = Pair::start();
    let other = CertAuthority::generate(TrustDomain::new("other.example").unwrap()).unwrap();
    let stranger = "spiffe://other.example/region/eu/edge/eu-1"
        .parse()
        .unwrap();
    let config = NodeConfig::new(local(), other.credentials(&stranger).unwrap());
    let stranger = Node::bind(config, &pair.tasks).unwrap();

    let error = stranger
        .connect(pair.relay.local_addr(), Protocol::View, &Expected::AnyRelay)
        .await
        .unwrap_err();

    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
}

#[tokio::test]
async fn a_request_connection_has_many_streams_at_once() {
    let pair = Pair::start();
    let dialled = pair.dial(Protocol::Request, &Expected::AnyRelay).await;
    let taken = pair.relay.accept().await.unwrap();

    let mut streams = Vec::new();
    for _ in 0..100 {
        let (mut send, receive) = dialled.connection.open_bi().await.unwrap();
        send.write_all(b"x").await.unwrap();
        streams.push((send, receive));
    }

    for _ in 0..100 {
        taken.connection.accept_bi().await.unwrap();
    }
}

/// Bytes that the other end takes on a stream that nobody reads there.
async fn taken_unread(send: &mut quinn::SendStream) -> usize {
    let mut taken = 0;
    loop {
        let more = send.write(&[0; 1024]);
        match tokio::time::timeout(Duration::from_millis(300), more).await {
            Ok(written) => taken += written.unwrap(),
            Err(_) => return taken,
        }
    }
}

#[tokio::test]
async fn an_edge_holds_as_much_of_a_request_whoever_has_dialled() {
    let pair = Pair::start();
    let dialled = pair.dial(Protocol::Request, &Expected::AnyRelay).await;
    let taken = pair.relay.accept().await.unwrap();
    let dialled_back = pair.dial_back(Protocol::Request).await;

    for (relay, edge) in [(taken.connection, dialled.connection), dialled_back] {
        let (mut request, _answer) = edge.open_bi().await.unwrap();
        request.write_all(b"x").await.unwrap();
        let (mut answer, mut request_read) = relay.accept_bi().await.unwrap();
        request_read.read_exact(&mut [0]).await.unwrap();

        assert_eq!(taken_unread(&mut answer).await, 64 << 10);
        // Uploads have more room, with the byte before: the relay is the same whoever dialled, too.
        request.write_all(&vec![0; (2 << 20) - 1]).await.unwrap();
    }
}

#[tokio::test]
async fn an_edge_holds_as_much_of_a_view_whoever_has_dialled() {
    let pair = Pair::start();
    let dialled = pair.dial(Protocol::View, &Expected::AnyRelay).await;
    let taken = pair.relay.accept().await.unwrap();
    let dialled_back = pair.dial_back(Protocol::View).await;

    for (relay, edge) in [(taken.connection, dialled.connection), dialled_back] {
        let mut streams = Vec::new();
        for _ in 0..100 {
            streams.push(relay.open_uni().await.unwrap());
        }
        assert_eq!(taken_unread(&mut streams[0]).await, 2 << 20);
        edge.open_bi().await.unwrap();
    }
}

#[tokio::test]
async fn many_requests_go_to_a_relay_that_has_dialled() {
    let pair = Pair::start();
    let (_relay, edge) = pair.dial_back(Protocol::Request).await;

    for _ in 0..512 {
        edge.open_bi().await.unwrap();
    }
}

#[tokio::test]
async fn an_edge_takes_no_protocol_but_those_it_serves() {
    let pair = Pair::start();
    let address = pair.edge.local_addr();

    let error = pair
        .relay
        .connect(address, Protocol::Gossip, &Expected::AnyEdge)
        .await
        .unwrap_err();

    assert!(matches!(error, ConnectError::Handshake { .. }), "{error}");
}

#[tokio::test]
async fn an_edge_takes_no_connection_of_another_edge() {
    let pair = Pair::start();
    let other = pair.dialler(
        "spiffe://grid.example/region/eu/edge/eu-2",
        Validity::days(1).unwrap(),
    );

    let dialled = other
        .connect(pair.edge.local_addr(), Protocol::View, &Expected::AnyEdge)
        .await;

    // Whether the refusal comes within the handshake or right after is up to TLS.
    if let Ok(dialled) = dialled {
        dialled.connection.closed().await;
    }
    let taken = pair.edge.accept();
    let waited = tokio::time::timeout(Duration::from_millis(200), taken).await;
    assert!(waited.is_err(), "{waited:?}");
}

#[tokio::test]
async fn a_connection_ends_with_its_certificate() {
    let pair = Pair::start();
    let now = SystemTime::now();
    // Certificates count in whole seconds.
    let soon = Validity::between(now - Duration::from_secs(60), now + Duration::from_secs(2));
    let edge = pair.dialler(EDGE, soon);

    let dialled = edge
        .connect(pair.relay.local_addr(), Protocol::View, &Expected::AnyRelay)
        .await
        .unwrap();

    let reason = CloseReason::of(&dialled.connection.closed().await);
    assert_eq!(reason, Some(CloseReason::CertificateEnded));
}

#[tokio::test]
async fn a_node_that_stops_says_so() {
    let pair = Pair::start();
    let dialled = pair.dial(Protocol::View, &Expected::AnyRelay).await;
    pair.relay.accept().await.unwrap();

    pair.relay.close(CloseReason::Stopping).await;

    let reason = CloseReason::of(&dialled.connection.closed().await);
    assert_eq!(reason, Some(CloseReason::Stopping));
}

/// A port that processes follow each other at: packets go to the newest, and come from it.
async fn port(newest: watch::Receiver<SocketAddr>, tasks: &Tasks) -> SocketAddr {
    let outside = UdpSocket::bind(local()).await.unwrap();
    let inside = UdpSocket::bind(local()).await.unwrap();
    let address = outside.local_addr().unwrap();
    let stop = tasks.token().clone();
    tasks.spawn("port", async move {
        let passing = pass_on(outside, inside, newest);
        stop.run_until_cancelled(passing).await;
    });
    address
}

async fn pass_on(outside: UdpSocket, inside: UdpSocket, newest: watch::Receiver<SocketAddr>) {
    let mut client = None;
    let (mut out, mut back) = ([0; 2048], [0; 2048]);
    loop {
        tokio::select! {
            Ok((length, from)) = outside.recv_from(&mut out) => {
                client = Some(from);
                let to = *newest.borrow();
                inside.send_to(&out[..length], to).await.unwrap();
            }
            Ok((length, from)) = inside.recv_from(&mut back) => {
                if let Some(client) = client.filter(|_| from == *newest.borrow()) {
                    outside.send_to(&back[..length], client).await.unwrap();
                }
            }
        }
    }
}

#[tokio::test]
async fn a_node_that_is_back_ends_what_its_last_life_had_open() {
    let pair = Pair::start();
    let (newest, at) = watch::channel(pair.relay.local_addr());
    let port = port(at, &pair.tasks).await;
    let of = relay_id("fra-1");
    let connected = pair.edge.connect(port, Protocol::View, &of).await.unwrap();
    let again = NodeConfig::new(local(), pair.relay.0.credentials.clone())
        .serve(Protocol::View, Accepts::Edges);
    let again = Node::bind(again, &pair.tasks).unwrap();

    newest.send(again.local_addr()).unwrap();
    // The reset may be quicker than this.
    if let Ok(mut stream) = connected.connection.open_uni().await {
        let _ = stream.write_all(b"anybody there?").await;
    }

    assert_eq!(connected.connection.closed().await, ConnectionError::Reset);
    pair.edge.connect(port, Protocol::View, &of).await.unwrap();
}

#[tokio::test]
async fn accepting_ends_when_the_tasks_stop() {
    let pair = Pair::start();

    pair.tasks.stop();

    assert!(pair.relay.accept().await.is_none());
}

#[tokio::test]
async fn names_are_resolved_and_unknown_ones_are_errors() {
    let found = resolve("127.0.0.1:7440").await.unwrap();

    assert_eq!(found, ["127.0.0.1:7440".parse().unwrap()]);
    assert!(resolve("no port").await.is_err());
}
