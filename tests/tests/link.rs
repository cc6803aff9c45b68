//! The two shells of the link model, over real sockets.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use kvgrid_certs::{Accepts, CertAuthority, TrustDomain};
use kvgrid_core::RelayId;
use kvgrid_runtime::{Expected, Node, NodeConfig, Protocol, Tasks, TransportConfig};
use kvgrid_tests::link::{Forwarder, ForwarderConfig, LinkProperties, Switch, socket};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::net::UdpSocket;

const LOCAL: &str = "127.0.0.1:0";
const ROUND_TRIP: Duration = Duration::from_millis(90);

fn local() -> SocketAddr {
    LOCAL.parse().unwrap()
}

/// Stops its tasks at the end of a test.
struct Stop(Tasks);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// An echo server behind a link.
async fn echo_behind(link: LinkProperties, tasks: &Tasks) -> Forwarder {
    let server = UdpSocket::bind(local()).await.unwrap();
    let config = ForwarderConfig {
        name: "test".into(),
        listen: local(),
        target: server.local_addr().unwrap(),
        seed: 1,
        link,
        bottleneck: None,
    };
    let token = tasks.token().clone();
    tasks.spawn("echo", async move {
        let echo = async {
            let mut buffer = [0; 2_000];
            loop {
                let (length, client) = server.recv_from(&mut buffer).await.unwrap();
                server.send_to(&buffer[..length], client).await.unwrap();
            }
        };
        token.run_until_cancelled(echo).await;
    });
    Forwarder::start(&config, tasks).unwrap()
}

async fn client(forwarder: &Forwarder) -> UdpSocket {
    let client = UdpSocket::bind(local()).await.unwrap();
    client.connect(forwarder.address()).await.unwrap();
    client
}

async fn receive(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 2_000];
    let length = client.recv(&mut buffer).await.unwrap();
    buffer[..length].to_vec()
}

#[tokio::test]
async fn each_client_gets_its_own_answer_after_a_round_trip() {
    let stop = Stop(Tasks::new());
    let forwarder = echo_behind(LinkProperties::round_trip(ROUND_TRIP), &stop.0).await;
    let (one, two) = (client(&forwarder).await, client(&forwarder).await);
    let start = Instant::now();

    one.send(b"one").await.unwrap();
    two.send(b"two").await.unwrap();

    assert_eq!(receive(&one).await, b"one");
    assert_eq!(receive(&two).await, b"two");
    assert!(start.elapsed() >= ROUND_TRIP - Duration::from_millis(1));
}

#[tokio::test]
async fn many_packets_are_under_way_at_once_and_keep_their_order() {
    let stop = Stop(Tasks::new());
    let forwarder = echo_behind(LinkProperties::round_trip(ROUND_TRIP), &stop.0).await;
    let client = client(&forwarder).await;

    for number in 0..200u32 {
        client.send(&number.to_be_bytes()).await.unwrap();
    }

    for number in 0..200u32 {
        assert_eq!(receive(&client).await, number.to_be_bytes());
    }
}

#[tokio::test]
async fn a_cut_link_loses_packets_until_it_is_mended() {
    let stop = Stop(Tasks::new());
    let forwarder = echo_behind(LinkProperties::default(), &stop.0).await;
    let client = client(&forwarder).await;
    client.send(b"before").await.unwrap();
    assert_eq!(receive(&client).await, b"before");

    forwarder.switch().cut();
    client.send(b"lost").await.unwrap();
    // The forwarder has to see the packet while the link is cut.
    let lost = tokio::time::timeout(Duration::from_millis(100), receive(&client)).await;
    assert!(lost.is_err());
    forwarder.switch().mend();
    client.send(b"after").await.unwrap();

    assert_eq!(receive(&client).await, b"after");
}

/// Two nodes of one process with a link on both sides.
async fn connected(properties: &LinkProperties, tasks: &Tasks) -> (quinn::Connection, Switch) {
    let authority = CertAuthority::generate(TrustDomain::new("grid.example").unwrap()).unwrap();
    let credentials = |uri: &str| authority.credentials(&uri.parse().unwrap()).unwrap();
    let relay = credentials("spiffe://grid.example/region/eu/site/fra/relay/fra-1");
    let edge = credentials("spiffe://grid.example/region/eu/edge/eu-1");
    let mut relay = NodeConfig::new(local(), relay).serve(Protocol::View, Accepts::Edges);
    let mut edge = NodeConfig::new(local(), edge);
    let (wrap, switch) = socket::wrap(properties, 1, tasks).unwrap();
    relay.wrap_socket = Some(wrap.clone());
    edge.wrap_socket = Some(wrap);
    let relay = Node::bind(relay, tasks).unwrap();
    let edge = Node::bind(edge, tasks).unwrap();

    let address = relay.local_addr();
    let accepting = relay.clone();
    tasks.spawn("echo", async move {
        while let Some(peer) = accepting.accept().await {
            while let Ok((mut send, mut receive)) = peer.connection.accept_bi().await {
                let data = receive.read_to_end(1 << 20).await.unwrap();
                send.write_all(&data).await.unwrap();
                send.finish().unwrap();
            }
        }
    });
    let expected = Expected::Relay(RelayId::new("fra-1").unwrap());
    let peer = edge
        .connect(address, Protocol::View, &expected)
        .await
        .unwrap();
    (peer.connection, switch)
}

async fn echo(connection: &quinn::Connection, data: &[u8]) -> Vec<u8> {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(data).await.unwrap();
    send.finish().unwrap();
    receive.read_to_end(1 << 20).await.unwrap()
}

#[tokio::test]
async fn a_wrapped_socket_delays_quic_by_a_round_trip() {
    let stop = Stop(Tasks::new());
    let (connection, _) = connected(&LinkProperties::round_trip(ROUND_TRIP), &stop.0).await;
    let start = Instant::now();

    assert_eq!(echo(&connection, b"hello").await, b"hello");

    let took = start.elapsed();
    assert!(took >= ROUND_TRIP - Duration::from_millis(2), "{took:?}");
    assert!(connection.rtt() >= ROUND_TRIP - Duration::from_millis(2));
}

#[tokio::test]
async fn quic_gets_through_a_link_that_loses_and_reorders() {
    let stop = Stop(Tasks::new());
    let properties = LinkProperties {
        loss: 0.02,
        reorder: 0.05,
        ..LinkProperties::round_trip(Duration::from_millis(4))
    };
    let (connection, _) = connected(&properties, &stop.0).await;
    let data: Vec<u8> = (0..500_000u32).map(|n| n.to_le_bytes()[0]).collect();

    assert!(echo(&connection, &data).await == data);
    assert!(connection.stats().path.lost_packets > 0);
}

/// Loses every other full packet of the first thousands, as a full queue does.
#[derive(Debug)]
struct EveryOther {
    inner: Arc<dyn AsyncUdpSocket>,
    full: AtomicUsize,
}

/// Packets after which none is lost any more.
const LOSSY: usize = 12_000;

impl AsyncUdpSocket for EveryOther {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if transmit.contents.len() >= 1_000 {
            let nth = self.full.fetch_add(1, Ordering::Relaxed);
            if nth < LOSSY && nth % 2 == 1 {
                return Ok(());
            }
        }
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[tokio::test]
async fn a_stream_with_as_many_holes_as_fit_does_not_cost_its_connection() {
    let stop = Stop(Tasks::new());
    let tasks = &stop.0;
    let authority = CertAuthority::generate(TrustDomain::new("grid.example").unwrap()).unwrap();
    let credentials = |uri: &str| authority.credentials(&uri.parse().unwrap()).unwrap();
    let relay = credentials("spiffe://grid.example/region/eu/site/fra/relay/fra-1");
    let relay = NodeConfig::new(local(), relay).serve(Protocol::Request, Accepts::Edges);
    let relay = Node::bind(relay, tasks).unwrap();
    // All of it is sent at once, in packets as small as they get.
    let transport = TransportConfig {
        gso: false,
        mtu_discovery: false,
        start_rate_mbit: 1_000,
        ..TransportConfig::default()
    };
    let edge = credentials("spiffe://grid.example/region/eu/edge/eu-1");
    let mut edge = NodeConfig::new(local(), edge).transport(transport);
    let (link, _) = socket::wrap(&LinkProperties::round_trip(ROUND_TRIP), 1, tasks).unwrap();
    edge.wrap_socket = Some(Arc::new(move |inner| {
        Arc::new(EveryOther {
            inner: link(inner),
            full: AtomicUsize::default(),
        })
    }));
    let edge = Node::bind(edge, tasks).unwrap();
    let address = relay.local_addr();
    let receiving = async {
        let peer = relay.accept().await.unwrap();
        let (_, mut stream) = peer.connection.accept_bi().await.unwrap();
        stream.read_to_end(1 << 24).await.unwrap().len()
    };
    let sending = async {
        let expected = Expected::Relay(RelayId::new("fra-1").unwrap());
        let peer = edge.connect(address, Protocol::Request, &expected).await;
        let connection = peer.unwrap().connection;
        let (mut stream, _) = connection.open_bi().await.unwrap();
        stream.write_all(&vec![7; 8 << 20]).await.unwrap();
        stream.finish().unwrap();
        connection
    };
    let (received, connection) = tokio::join!(receiving, sending);

    assert_eq!(received, 8 << 20);
    assert!(connection.stats().path.lost_packets > 500);
}
