//! The hub and real connections on loopback, with replicas at the other end.

mod edge;

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kvgrid_certs::{Accepts, CertAuthority, TrustDomain};
use kvgrid_core::block::{ChainHash, HashFormat};
use kvgrid_core::ckf::{Format, Naming};
use kvgrid_core::event::Tier;
use kvgrid_core::filter::{Form, MixKey};
use kvgrid_core::replication::{Completeness, ReplicaState};
use kvgrid_core::residency::PoolOp;
use kvgrid_core::view::{CardDigest, ModelView};
use kvgrid_core::{EdgeId, ModelId, ModelName};
use kvgrid_proto::frame::CONTROL_LIMIT;
use kvgrid_proto::v1;
use kvgrid_runtime::frames::write_frame;
use kvgrid_runtime::{CloseReason, Node, NodeConfig, PeerConnection, Protocol, Tasks};

use super::*;
use crate::load::Prompt;
use edge::{TestEdge, within};

const SOURCE: u64 = 5;
const RELAY: &str = "spiffe://grid.example/site/fra/relay/fra-1";

fn key() -> Arc<MixKey> {
    Arc::new(MixKey::from_bytes(&[9; 32]))
}

fn spec() -> PoolSpec {
    PoolSpec {
        model: ModelName::new("org/model").unwrap(),
        source: "engines".into(),
        shape: PoolShape {
            block_size: NonZeroU32::new(16).unwrap(),
            format: HashFormat::Standard,
        },
        part: None,
        cohort: None,
        naming: Naming::Chain,
        tier: Tier::Device,
        closed: true,
        capacity_blocks: None,
        generation: 0,
    }
}

/// A relay that serves its view, and what it takes to make edges of its grid.
struct Relay {
    authority: Arc<CertAuthority>,
    tasks: Tasks,
    node: Node,
    hub: Hub,
    gateway: Gateway,
    clock: Clock,
    accepted: Arc<Mutex<Vec<PeerConnection>>>,
}

impl Relay {
    fn start() -> Self {
        let authority = CertAuthority::generate(TrustDomain::new("grid.example").unwrap()).unwrap();
        Self::start_with(Arc::new(authority), 1)
    }

    fn start_with(authority: Arc<CertAuthority>, incarnation: u64) -> Self {
        let tasks = Tasks::new();
        let credentials = authority.credentials(&RELAY.parse().unwrap()).unwrap();
        let config = NodeConfig::new("127.0.0.1:0".parse().unwrap(), credentials)
            .serve(Protocol::View, Accepts::Edges);
        let node = Node::bind(config, &tasks).unwrap();
        let clock = Clock::start();
        let gateway = Gateway::default();
        let hub = Hub::new(HubConfig {
            key: key(),
            incarnation,
            publisher: PublisherConfig::default(),
            gateway: gateway.clone(),
            clock,
        });
        let accepted = Arc::new(Mutex::new(Vec::new()));
        let (accepting, serving, sessions) = (node.clone(), hub.clone(), tasks.clone());
        let taken = Arc::clone(&accepted);
        tasks.spawn("accept", async move {
            while let Some(connection) = accepting.accept().await {
                taken.lock().unwrap().push(connection.clone());
                sessions.spawn("session", serve(serving.clone(), connection));
            }
        });
        Self {
            authority,
            tasks,
            node,
            hub,
            gateway,
            clock,
            accepted,
        }
    }

    /// The relay stops at once and a new one comes up.
    async fn restart(self) -> Self {
        self.node.close(CloseReason::Stopping).await;
        self.tasks.stop();
        Self::start_with(Arc::clone(&self.authority), 2)
    }

    async fn edge(&self, name: &str) -> TestEdge {
        self.edge_that_wants(Form::Filter, name).await
    }

    async fn edge_that_wants(&self, form: Form, name: &str) -> TestEdge {
        let uri = format!("spiffe://grid.example/region/eu/edge/{name}");
        let credentials = self.authority.credentials(&uri.parse().unwrap()).unwrap();
        let config = NodeConfig::new("127.0.0.1:0".parse().unwrap(), credentials);
        let node = Node::bind(config, &self.tasks).unwrap();
        TestEdge::connect(node, self.node.local_addr(), (key(), form)).await
    }

    fn insert(&self, pool: &PoolPublisher, blocks: std::ops::Range<u64>) {
        let now = self.clock.now();
        pool.applied(SOURCE, blocks.end, now);
        pool.apply(blocks.map(|block| PoolOp::Insert(ChainHash(block))), now);
        pool.handle_timeout(now + Duration::from_secs(1));
        assert_eq!(pool.poll_timeout(), None);
    }

    fn whole(&self, pool: &PoolPublisher) {
        let now = self.clock.now();
        pool.set_completeness(Completeness::Whole, now);
        pool.handle_timeout(now + Duration::from_secs(1));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

#[tokio::test]
async fn an_edge_gets_the_snapshot_and_then_what_changes() {
    let relay = Relay::start();
    let pool = relay.hub.pool(&spec());
    relay.insert(&pool, 0..5_000);
    relay.whole(&pool);
    let mut edge = relay.edge("eu-1").await;

    edge.until(|edge| edge.has_all(0..5_000)).await;
    assert_eq!(edge.view().state, ReplicaState::Live);
    assert_eq!(edge.view().applied(SOURCE), Some(5_000));
    assert_eq!(edge.view().completeness, Completeness::Whole);

    relay.insert(&pool, 5_000..5_100);
    edge.until(|edge| edge.view().applied(SOURCE) == Some(5_100))
        .await;
    assert!(edge.has_all(0..5_100));
}

#[tokio::test]
async fn a_pool_that_outgrows_its_table_is_followed_into_the_larger_one() {
    let relay = Relay::start();
    let pool = relay.hub.pool(&spec());
    relay.insert(&pool, 0..100);
    let mut edge = relay.edge("eu-1").await;
    edge.until(|edge| edge.has_all(0..100)).await;
    let epoch = pool.status().epoch;

    relay.insert(&pool, 100..40_000);
    pool.grow_if_due(|| (0..40_000).map(ChainHash));

    assert_ne!(pool.status().epoch, epoch);
    relay.whole(&pool);
    edge.until(|edge| edge.has_all(0..40_000)).await;
    assert_eq!(edge.view().blocks, 40_000);
}

#[tokio::test]
async fn a_restarted_relay_is_followed_and_nothing_is_forgotten_meanwhile() {
    let relay = Relay::start();
    let pool = relay.hub.pool(&spec());
    relay.insert(&pool, 0..3_000);
    relay.whole(&pool);
    let mut edge = relay.edge("eu-1").await;
    edge.until(|edge| edge.has_all(0..3_000)).await;

    let relay = relay.restart().await;
    edge.lose().await;
    assert!(matches!(edge.view().state, ReplicaState::Stale { .. }));
    assert!(edge.has_all(0..3_000));

    let pool = relay.hub.pool(&spec());
    relay.insert(&pool, 1_000..4_000);
    edge.reconnect(relay.node.local_addr()).await;
    edge.until(|edge| edge.view().syncing.is_none()).await;
    assert!(edge.has_all(0..3_000), "a partial pool has taken over");

    relay.whole(&pool);
    edge.until(|edge| edge.view().state == ReplicaState::Live)
        .await;
    assert!(edge.has_all(1_000..4_000));
    assert_eq!(edge.view().blocks, 3_000);
}

#[tokio::test]
async fn an_edge_that_reads_nothing_costs_another_one_nothing() {
    let relay = Relay::start();
    let pool = relay.hub.pool(&PoolSpec {
        capacity_blocks: Some(500_000),
        ..spec()
    });
    relay.insert(&pool, 0..200_000);
    relay.whole(&pool);
    let mut slow = relay.edge("ap-1").await;
    slow.until(|edge| edge.is_subscribed()).await;
    let mut edge = relay.edge("eu-1").await;
    edge.until(|edge| edge.has_all(0..200_000)).await;

    for round in 0..20 {
        let from = 200_000 + round * 10_000;
        relay.insert(&pool, from..from + 10_000);
        edge.until(|edge| edge.view().applied(SOURCE) == Some(from + 10_000))
            .await;
    }

    // The slow one has only to wake up.
    slow.until(|edge| edge.view().applied(SOURCE) == Some(400_000))
        .await;
    assert!(slow.has_all(0..400_000));
}

#[tokio::test]
async fn a_lost_edge_resumes_where_it_was() {
    let relay = Relay::start();
    let pool = relay.hub.pool(&spec());
    relay.insert(&pool, 0..5_000);
    relay.whole(&pool);
    let mut edge = relay.edge("eu-1").await;
    edge.until(|edge| edge.has_all(0..5_000)).await;
    let chunks = edge.chunks_received();

    edge.lose().await;
    relay.insert(&pool, 5_000..5_010);
    edge.reconnect(relay.node.local_addr()).await;
    edge.until(|edge| edge.view().state == ReplicaState::Live)
        .await;

    assert!(edge.has_all(0..5_010));
    assert_eq!(edge.chunks_received(), chunks);
}

#[tokio::test]
async fn a_catalog_is_told_again_whenever_it_changes() {
    let relay = Relay::start();
    let name = ModelName::new("org/model").unwrap();
    let tell = |ready| {
        let model = ModelView {
            aliases: Vec::new(),
            apart: Vec::new(),
            id: name.id(),
            name: name.clone(),
            ready,
            card: None,
        };
        let models = vec![model];
        let cards = BTreeMap::new();
        relay
            .hub
            .catalog()
            .send_replace(Arc::new(Catalog { models, cards }));
    };
    tell(true);
    let mut edge = relay.edge("eu-1").await;
    edge.until(|edge| edge.is_ready("org/model") == Some(true))
        .await;

    tell(false);
    edge.until(|edge| edge.is_ready("org/model") == Some(false))
        .await;
}

#[tokio::test]
async fn a_withdrawn_pool_leaves_the_catalog_and_ends_its_stream() {
    let relay = Relay::start();
    let pool = relay.hub.pool(&spec());
    relay.insert(&pool, 0..10);
    let mut edge = relay.edge("eu-1").await;
    edge.until(|edge| edge.has_all(0..10)).await;

    drop(pool);

    edge.until(|edge| !edge.is_offered() && !edge.is_subscribed())
        .await;
    assert!(edge.has_all(0..10));
}

#[tokio::test]
async fn a_card_comes_whole_when_it_is_asked_for() {
    let relay = Relay::start();
    let digest = CardDigest([3; 32]);
    let bytes: Bytes = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let cards = BTreeMap::from([(digest, bytes.clone())]);
    let models = Vec::new();
    relay
        .hub
        .catalog()
        .send_replace(Arc::new(Catalog { models, cards }));
    let mut edge = relay.edge("eu-1").await;

    edge.ask_card(CardDigest([4; 32])).await;
    edge.ask_card(digest).await;

    edge.until(|edge| edge.card(digest).is_some()).await;
    assert_eq!(edge.card(digest), Some(&bytes));
    assert_eq!(edge.card(CardDigest([4; 32])), None);
}

#[tokio::test]
async fn load_comes_again_and_again_with_the_echo_of_the_own_requests() {
    let relay = Relay::start();
    let id = |name| EdgeId::new(name).unwrap();
    let (mine, other) = (
        relay.gateway.connect(&id("eu-1")),
        relay.gateway.connect(&id("ap-1")),
    );
    let model = ModelId(8);
    let prompt = |tokens| Prompt {
        tokens,
        uncached: tokens,
    };
    let _mine = mine.begin(3, model, prompt(100), relay.clock.now());
    let _other = other.begin(9, model, prompt(50), relay.clock.now());
    let mut edge = relay.edge("eu-1").await;

    // Nothing changes, and still it is told again.
    edge.until(|edge| edge.loads().len() >= 2).await;

    for load in edge.loads() {
        assert_eq!(load.echo, 3);
        let [gateway] = &load.gateway[..] else {
            panic!("{load:?}");
        };
        assert_eq!((gateway.in_flight, gateway.queued_tokens), (2, 150));
    }
}

#[tokio::test]
async fn a_leaving_relay_says_so() {
    let relay = Relay::start();
    let mut early = relay.edge("eu-1").await;
    early.until(|edge| !edge.loads().is_empty()).await;

    relay.hub.leave();

    early.until(TestEdge::is_told_to_leave).await;
    let mut late = relay.edge("eu-2").await;
    late.until(TestEdge::is_told_to_leave).await;
}

#[tokio::test]
async fn what_is_sent_to_an_edge_gives_way_as_long_as_that_says() {
    let relay = Relay::start();
    let mut edge = relay.edge("eu-1").await;
    edge.until(|edge| !edge.loads().is_empty()).await;
    let connection = relay.accepted.lock().unwrap()[0].clone();
    assert!(!connection.is_background());

    for on in [true, false] {
        edge.tell(v1::edge_frame::Frame::Background(v1::Background { on }))
            .await;

        edge.until(|_| connection.is_background() == on).await;
    }
}

#[tokio::test]
async fn a_connection_that_was_meant_for_another_relay_takes_nobodys_place() {
    let relay = Relay::start();
    let mut edge = relay.edge("eu-1").await;
    edge.until(|edge| !edge.loads().is_empty()).await;

    let stray = edge.dial_again(relay.node.local_addr()).await;
    stray.close(CloseReason::Unexpected);
    within(stray.connection.closed()).await;
    let loads = edge.loads().len();

    edge.until(|edge| edge.loads().len() > loads + 1).await;
    assert_eq!(relay.hub.edges(), 1);
}

#[tokio::test]
async fn the_newest_connection_of_an_edge_takes_the_place_of_the_older() {
    let relay = Relay::start();
    let older = relay.edge("eu-1").await;
    let other = relay.edge("eu-2").await;
    within(async {
        while relay.hub.edges() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let mut newer = relay.edge("eu-1").await;

    assert_eq!(within(older.closed()).await, Some(CloseReason::Replaced));
    newer.until(|edge| !edge.loads().is_empty()).await;
    assert_eq!(relay.hub.edges(), 2);
    drop(other);
}

#[tokio::test]
async fn an_edge_that_breaks_the_protocol_is_cut_off() {
    let relay = Relay::start();
    let hello = v1::edge_frame::Frame::Hello(v1::EdgeHello::default());
    let card = v1::edge_frame::Frame::CardRequest(v1::CardRequest {
        digest: Bytes::from_static(b"short"),
    });
    for frames in [vec![card.clone()], vec![hello, card]] {
        let edge = relay.edge("eu-1").await;
        let raw = edge.dial_again(relay.node.local_addr()).await;
        let (mut stream, _reader) = raw.connection.open_bi().await.unwrap();
        for frame in frames {
            let frame = v1::EdgeFrame { frame: Some(frame) };
            write_frame(&mut stream, &frame, CONTROL_LIMIT)
                .await
                .unwrap();
        }

        let closed = within(raw.connection.closed()).await;
        assert_eq!(CloseReason::of(&closed), Some(CloseReason::Protocol));
    }
}

#[tokio::test]
async fn a_relay_that_leaves_withdraws_no_pool() {
    let relay = Relay::start();
    let pool = relay.hub.pool(&spec());
    let other = relay.hub.pool(&PoolSpec {
        source: "others".into(),
        ..spec()
    });

    drop(other);
    let before = relay.hub.pools();
    relay.hub.leave();
    drop(pool);

    assert_eq!((before, relay.hub.pools()), (1, 1));
}

/// Does what the pool's owner does once whole hashes are wanted of these blocks.
async fn tell_exact(
    relay: &Relay,
    pool: &PoolPublisher,
    edge: &mut TestEdge,
    blocks: std::ops::Range<u64>,
) {
    edge.until(|_| pool.exact_is_due()).await;
    pool.tell_exact(|| blocks.map(ChainHash), relay.clock.now());
}

/// A relay with a whole pool of these blocks, and an edge that has the hashes of all.
async fn followed_by_whole_hashes(
    blocks: std::ops::Range<u64>,
) -> (Relay, PoolPublisher, TestEdge) {
    let relay = Relay::start();
    let pool = relay.hub.pool(&spec());
    relay.insert(&pool, blocks.clone());
    pool.grow_if_due(|| blocks.clone().map(ChainHash));
    relay.whole(&pool);
    let mut edge = relay.edge_that_wants(Form::Exact, "eu-1").await;
    tell_exact(&relay, &pool, &mut edge, blocks.clone()).await;
    edge.until(|edge| edge.has_all(blocks.clone())).await;
    (relay, pool, edge)
}

#[tokio::test]
async fn an_edge_that_wants_whole_hashes_gets_them_and_another_its_filter() {
    let relay = Relay::start();
    let pool = relay.hub.pool(&spec());
    relay.insert(&pool, 0..5_000);
    relay.whole(&pool);
    let mut plain = relay.edge("eu-1").await;
    plain.until(|edge| edge.has_all(0..5_000)).await;
    assert!(!pool.exact_is_due());
    let mut exact = relay.edge_that_wants(Form::Exact, "eu-2").await;

    tell_exact(&relay, &pool, &mut exact, 0..5_000).await;
    exact.until(|edge| edge.has_all(0..5_000)).await;
    relay.insert(&pool, 5_000..5_100);
    for edge in [&mut plain, &mut exact] {
        edge.until(|edge| edge.view().applied(SOURCE) == Some(5_100))
            .await;
        assert!(edge.has_all(0..5_100));
        assert_eq!(edge.view().completeness, Completeness::Whole);
    }

    assert_eq!(plain.form(), Some(Form::Filter));
    assert_eq!(exact.form(), Some(Form::Exact));
    // A filter finds some of so many by mistake.
    assert_eq!(exact.count(100_000..200_000), 0);
    let chains: Vec<_> = (0..6_000).map(ChainHash).collect();
    assert_eq!(exact.depth(&chains), 5_100);
}

#[tokio::test]
async fn an_edge_with_whole_hashes_resumes_where_it_was() {
    let (relay, pool, mut edge) = followed_by_whole_hashes(0..30_000).await;
    let chunks = edge.chunks_received();

    edge.lose().await;
    relay.insert(&pool, 30_000..30_010);
    edge.reconnect(relay.node.local_addr()).await;
    edge.until(|edge| edge.view().state == ReplicaState::Live)
        .await;

    // It is live only with the digest of its publisher.
    assert_eq!(edge.chunks_received(), chunks);
    assert_eq!(edge.count(0..40_000), 30_010);
}

#[tokio::test]
async fn whole_hashes_outgrow_their_table_as_a_filter_does() {
    let (relay, pool, mut edge) = followed_by_whole_hashes(0..100).await;

    relay.insert(&pool, 100..40_000);
    pool.grow_if_due(|| (0..40_000).map(ChainHash));

    edge.until(|edge| edge.has_all(0..40_000)).await;
    assert_eq!(edge.count(0..80_000), 40_000);
}

#[tokio::test]
async fn whole_hashes_are_published_on_for_a_while_and_then_no_more() {
    let (relay, pool, mut edge) = followed_by_whole_hashes(0..100).await;
    assert_eq!(pool.poll_timeout(), None);

    edge.lose().await;
    within(async {
        while pool.poll_timeout().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let over = pool.poll_timeout().unwrap();
    let unused = || -> std::ops::Range<u64> { panic!("nobody wants them") };
    pool.tell_exact(|| unused().map(ChainHash), relay.clock.now());
    assert_eq!(pool.poll_timeout(), Some(over));
    pool.tell_exact(|| unused().map(ChainHash), over);
    assert_eq!(pool.poll_timeout(), None);

    // Wanted again they are another life's.
    let epoch = edge.view().epoch;
    edge.reconnect(relay.node.local_addr()).await;
    tell_exact(&relay, &pool, &mut edge, 0..100).await;
    edge.until(|edge| edge.view().epoch != epoch).await;
    assert_eq!(edge.count(0..200), 100);
}

#[tokio::test]
async fn of_a_pool_of_filters_classes_an_edge_gets_a_filter_whatever_it_wants() {
    let relay = Relay::start();
    let format = Format::new(7, 1024).unwrap();
    let pool = relay.hub.pool(&PoolSpec {
        naming: Naming::Ckf(format),
        ..spec()
    });
    relay.insert(&pool, 0..100);
    let mut edge = relay.edge_that_wants(Form::Exact, "eu-1").await;

    edge.until(|edge| edge.has_all(0..100)).await;

    assert_eq!(edge.form(), Some(Form::Filter));
    assert!(!pool.exact_is_due());
}
