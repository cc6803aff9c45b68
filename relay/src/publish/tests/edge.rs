//! The other end of a view connection, as small as a test needs it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kvgrid_core::PoolId;
use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::{Form, MixKey, depths};
use kvgrid_core::replication::{Replica, ReplicaConfig, ReplicaView, SubscriptionId};
use kvgrid_core::view::CardDigest;
use kvgrid_proto::frame::{BULK_LIMIT, CONTROL_LIMIT};
use kvgrid_proto::v1::stream_head::Content;
use kvgrid_proto::v1::{self, edge_frame, relay_frame};
use kvgrid_proto::{chunk_from_wire, frame_from_wire, request_to_wire};
use kvgrid_runtime::frames::{FrameReader, write_frame};
use kvgrid_runtime::{Clock, CloseReason, Expected, Node, PeerConnection, Protocol};
use quinn::{RecvStream, SendStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Fails a test that would hang.
pub(super) async fn within<T>(waiting: impl Future<Output = T>) -> T {
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, waiting)
        .await
        .expect("it takes too long")
}

/// What arrives on any stream.
enum Arrival {
    Control(relay_frame::Frame),
    Frame(SubscriptionId, v1::PoolFrame),
    PoolEnd(SubscriptionId),
    Chunk(v1::SnapshotChunk),
    Card(Bytes, Bytes),
}

/// An edge with a replica of the first pool it is offered.
pub(super) struct TestEdge {
    node: Node,
    clock: Clock,
    key: Arc<MixKey>,
    replica: Replica,
    link: Option<Link>,
    subscription: Option<SubscriptionId>,
    catalog: v1::Catalog,
    loads: Vec<v1::Load>,
    leaving: bool,
    cards: BTreeMap<CardDigest, Bytes>,
    chunks: usize,
}

struct Link {
    connection: PeerConnection,
    writer: SendStream,
    arrivals: mpsc::Receiver<Arrival>,
    _tasks: JoinSet<()>,
}

impl TestEdge {
    pub(super) async fn connect(
        node: Node,
        relay: SocketAddr,
        (key, form): (Arc<MixKey>, Form),
    ) -> Self {
        let config = ReplicaConfig {
            form,
            ..ReplicaConfig::with_keys(vec![Arc::clone(&key)])
        };
        let mut edge = Self {
            node,
            clock: Clock::start(),
            replica: Replica::new(config),
            key,
            link: None,
            subscription: None,
            catalog: v1::Catalog::default(),
            loads: Vec::new(),
            leaving: false,
            cards: BTreeMap::new(),
            chunks: 0,
        };
        edge.reconnect(relay).await;
        edge
    }

    pub(super) async fn dial_again(&self, relay: SocketAddr) -> PeerConnection {
        let dialling = self
            .node
            .connect(relay, Protocol::View, &Expected::AnyRelay);
        dialling.await.unwrap()
    }

    pub(super) async fn reconnect(&mut self, relay: SocketAddr) {
        let connection = self.dial_again(relay).await;
        let (writer, reader) = connection.connection.open_bi().await.unwrap();
        let (sender, arrivals) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        tasks.spawn(read_control(reader, sender.clone()));
        tasks.spawn(accept_streams(connection.connection.clone(), sender));
        let _tasks = tasks;
        self.link = Some(Link {
            connection,
            writer,
            arrivals,
            _tasks,
        });
        let hello = v1::EdgeHello {
            software: "test".into(),
        };
        self.tell(edge_frame::Frame::Hello(hello)).await;
    }

    /// Cuts the connection.
    pub(super) async fn lose(&mut self) {
        if let Some(link) = self.link.take() {
            link.connection.close(CloseReason::Done);
        }
        self.subscription = None;
        self.catalog = v1::Catalog::default();
        self.replica.handle_disconnect(self.clock.now());
    }

    /// Takes what arrives until the condition holds.
    pub(super) async fn until(&mut self, condition: impl Fn(&Self) -> bool) {
        within(async {
            while !condition(self) {
                self.ask().await;
                let due = self
                    .replica
                    .poll_timeout()
                    .map(|at| self.clock.deadline(at));
                let due =
                    due.unwrap_or_else(|| tokio::time::Instant::now() + Duration::from_secs(5));
                let link = self.link.as_mut().expect("an edge that waits is connected");
                let arrival = tokio::select! {
                    arrival = link.arrivals.recv() => arrival.expect("the connection is lost"),
                    () = tokio::time::sleep_until(due) => continue,
                };
                self.take(arrival);
            }
        })
        .await;
    }

    async fn ask(&mut self) {
        let Some(pool) = self.pool() else { return };
        while let Some(request) = self.replica.poll_request(self.clock.now()) {
            self.tell(request_to_wire(pool, request)).await;
        }
    }

    pub(super) async fn tell(&mut self, frame: edge_frame::Frame) {
        let frame = v1::EdgeFrame { frame: Some(frame) };
        let link = self
            .link
            .as_mut()
            .expect("an edge that speaks is connected");
        write_frame(&mut link.writer, &frame, CONTROL_LIMIT)
            .await
            .unwrap();
    }

    fn take(&mut self, arrival: Arrival) {
        let now = self.clock.now();
        match arrival {
            Arrival::Control(relay_frame::Frame::Catalog(catalog)) => {
                let was_offered = self.is_offered();
                self.catalog = catalog;
                match (was_offered, self.is_offered()) {
                    (false, true) => self.replica.handle_connect(now),
                    (true, false) => self.replica.handle_disconnect(now),
                    (true, true) | (false, false) => {}
                }
            }
            Arrival::Control(relay_frame::Frame::Load(load)) => self.loads.push(load),
            Arrival::Control(relay_frame::Frame::Leaving(_)) => self.leaving = true,
            Arrival::Control(
                relay_frame::Frame::Hello(_)
                | relay_frame::Frame::Members(_)
                | relay_frame::Frame::Facts(_),
            ) => {}
            Arrival::Frame(subscription, frame) => {
                self.subscription = Some(subscription);
                let frame = frame_from_wire(frame).unwrap().unwrap();
                self.replica.handle_frame(subscription, frame, now).unwrap();
            }
            Arrival::PoolEnd(subscription) => {
                if self.subscription == Some(subscription) {
                    self.subscription = None;
                }
            }
            Arrival::Chunk(chunk) => {
                self.chunks += 1;
                let (_, subscription, chunk) = chunk_from_wire(&chunk).unwrap();
                self.replica.handle_chunk(subscription, chunk, now).unwrap();
            }
            Arrival::Card(digest, bytes) => {
                let digest = CardDigest::from_slice(&digest).unwrap();
                self.cards.insert(digest, bytes);
            }
        }
    }

    pub(super) async fn ask_card(&mut self, digest: CardDigest) {
        let digest = Bytes::copy_from_slice(&digest.0);
        self.tell(edge_frame::Frame::CardRequest(v1::CardRequest { digest }))
            .await;
    }

    pub(super) async fn closed(&self) -> Option<CloseReason> {
        let link = self.link.as_ref()?;
        CloseReason::of(&link.connection.connection.closed().await)
    }

    fn pool(&self) -> Option<PoolId> {
        self.catalog.pools.first().map(|pool| PoolId(pool.pool_id))
    }

    pub(super) fn is_offered(&self) -> bool {
        self.pool().is_some()
    }

    /// Whether a subscription's stream has begun and not ended.
    pub(super) fn is_subscribed(&self) -> bool {
        self.subscription.is_some()
    }

    pub(super) fn is_told_to_leave(&self) -> bool {
        self.leaving
    }

    pub(super) fn is_ready(&self, model: &str) -> Option<bool> {
        let found = self.catalog.models.iter().find(|wire| wire.name == model);
        found.map(|wire| wire.ready)
    }

    pub(super) fn view(&self) -> ReplicaView {
        self.replica.snapshot()
    }

    pub(super) fn has_all(&self, blocks: std::ops::Range<u64>) -> bool {
        let all = blocks.end - blocks.start;
        self.view().filter.is_some() && self.count(blocks) == all
    }

    /// How many of these blocks are found.
    pub(super) fn count(&self, blocks: std::ops::Range<u64>) -> u64 {
        let view = self.view();
        let Some(filter) = &view.filter else {
            return 0;
        };
        let found = blocks.filter(|block| {
            let class = filter.reader.geometry().class(&self.key, ChainHash(*block));
            filter.reader.contains(class)
        });
        found.count() as u64
    }

    /// How many leading blocks of a chain are found.
    pub(super) fn depth(&self, chain: &[ChainHash]) -> u32 {
        let view = self.view();
        let target = view.filter.as_ref().map(|filter| filter.target(true));
        target.map_or(0, |target| depths(&[target], chain)[0])
    }

    pub(super) fn form(&self) -> Option<Form> {
        self.view().filter.map(|filter| filter.form())
    }

    pub(super) fn loads(&self) -> &[v1::Load] {
        &self.loads
    }

    pub(super) fn card(&self, digest: CardDigest) -> Option<&Bytes> {
        self.cards.get(&digest)
    }

    pub(super) fn chunks_received(&self) -> usize {
        self.chunks
    }
}

async fn read_control(stream: RecvStream, arrivals: mpsc::Sender<Arrival>) {
    let mut reader = FrameReader::new(stream, CONTROL_LIMIT);
    while let Ok(Some(frame)) = reader.read::<v1::RelayFrame>().await {
        if let Some(frame) = frame.frame {
            let _ = arrivals.send(Arrival::Control(frame)).await;
        }
    }
}

async fn accept_streams(connection: quinn::Connection, arrivals: mpsc::Sender<Arrival>) {
    let mut streams = JoinSet::new();
    while let Ok(stream) = connection.accept_uni().await {
        streams.spawn(read_stream(stream, arrivals.clone()));
    }
}

async fn read_stream(stream: RecvStream, arrivals: mpsc::Sender<Arrival>) {
    let mut reader = FrameReader::new(stream, BULK_LIMIT);
    let Ok(Some(head)) = reader.read::<v1::StreamHead>().await else {
        return;
    };
    match head.content {
        Some(Content::Pool(pool)) => {
            let subscription = SubscriptionId(pool.subscription);
            while let Ok(Some(frame)) = reader.read().await {
                let _ = arrivals.send(Arrival::Frame(subscription, frame)).await;
            }
            let _ = arrivals.send(Arrival::PoolEnd(subscription)).await;
        }
        Some(Content::Chunk(chunk)) => {
            let _ = arrivals.send(Arrival::Chunk(chunk)).await;
        }
        Some(Content::Card(head)) => {
            let (mut stream, rest) = reader.into_parts();
            let mut bytes = BytesMut::from(&rest[..]);
            while let Ok(Some(chunk)) = stream.read_chunk(65_536, true).await {
                bytes.extend_from_slice(&chunk.bytes);
            }
            if bytes.len() as u64 == head.length {
                let card = Arrival::Card(head.digest, bytes.freeze());
                let _ = arrivals.send(card).await;
            }
        }
        None => {}
    }
}
