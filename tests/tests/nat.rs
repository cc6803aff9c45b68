//! Sites that no edge can dial: their relays dial the edges.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use std::net::SocketAddr;
use std::path::Path;

use kvgrid_certs::{CertAuthority, TrustDomain};
use kvgrid_runtime::{ConnectError, Expected, Node, NodeConfig, Protocol, Tasks};
use kvgrid_tests::harness::{Conversation, Grid, GridPlan, Known, Turn};
use kvgrid_tests::netns::{self, Placed};

/// Tokens of a system prompt whose warmth outweighs an ocean.
const LONG: usize = 20_000;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"))
}

/// A site next door, and one far away whose relay dials.
async fn start() -> Grid {
    let plan = GridPlan::default()
        .site("fra", "eu")
        .site("home", "us")
        .dials()
        .mesh()
        .edge("eu-1", "eu", &[("fra", 4), ("home", 90)]);
    Grid::start_alone(plan, program()).await.unwrap()
}

fn conversation(seed: u64) -> Conversation {
    Conversation::new(seed, LONG).unwrap()
}

/// The edge expected exactly what the engine at home then found: most of the prompt.
fn assert_warm_at_home(turn: &Turn) {
    assert_eq!(turn.site, "home", "{turn:?}");
    assert_eq!(turn.overlap_tokens, turn.cached_tokens, "{turn:?}");
    assert!(turn.prompt_tokens - turn.cached_tokens < 100, "{turn:?}");
}

async fn until_another_epoch(grid: &Grid, before: &[Option<String>]) {
    let another = |known: &Known| known.complete("home") && known.epochs("home") != before;
    let what = "the new relay's pools are there";
    grid.until("eu-1", what, another).await.unwrap();
}

#[tokio::test]
async fn a_relay_that_dials_is_routed_to_like_any_other() {
    let grid = start().await;
    let mut talk = conversation(1);
    grid.warm("home", &mut talk).await.unwrap();

    let first = grid.turn("eu-1", &mut talk).await.unwrap();
    grid.until_applied("home").await.unwrap();
    let second = grid.turn("eu-1", &mut talk).await.unwrap();

    assert_warm_at_home(&first);
    assert_warm_at_home(&second);
    let known = grid.known("eu-1").await.unwrap();
    let relay = &known.site("home").unwrap().relays[0];
    // Packets of the emulated link are half a millisecond early at most.
    assert!(relay.rtt_ms > 88.0, "{relay:?}");
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_relay_that_dials_is_there_again_after_a_restart_of_either_end() {
    let mut grid = start().await;
    let mut talk = conversation(1);
    grid.warm("home", &mut talk).await.unwrap();

    // At once: the edge has not noticed that the old relay is gone when the new one dials.
    let before = grid.known("eu-1").await.unwrap().epochs("home");
    grid.kill_relay("home-1").unwrap();
    grid.restart_relay("home-1").await.unwrap();
    until_another_epoch(&grid, &before).await;
    grid.until_applied("home").await.unwrap();
    let after_relay = grid.turn("eu-1", &mut talk).await.unwrap();

    // Late: it has.
    let before = grid.known("eu-1").await.unwrap().epochs("home");
    grid.kill_relay("home-1").unwrap();
    let gone = |known: &Known| !known.eligible("home");
    grid.until("eu-1", "home is gone", gone).await.unwrap();
    grid.restart_relay("home-1").await.unwrap();
    until_another_epoch(&grid, &before).await;
    grid.until_applied("home").await.unwrap();
    let after_late_relay = grid.turn("eu-1", &mut talk).await.unwrap();

    grid.kill_edge("eu-1").unwrap();
    grid.restart_edge("eu-1").await.unwrap();
    grid.until_complete().await.unwrap();
    grid.until_applied("home").await.unwrap();
    let after_edge = grid.turn("eu-1", &mut talk).await.unwrap();

    for turn in [after_relay, after_late_relay, after_edge] {
        assert_warm_at_home(&turn);
    }
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_relay_that_dials_is_there_again_after_a_cut() {
    let mut grid = start().await;
    let mut talk = conversation(1);
    grid.link("eu-1", "home-1").unwrap().cut();
    let gone = |known: &Known| !known.eligible("home");
    grid.until("eu-1", "home is gone", gone).await.unwrap();
    grid.ask_site("home", &mut talk).await.unwrap();

    grid.link("eu-1", "home-1").unwrap().mend();
    grid.until_complete().await.unwrap();
    grid.until_applied("home").await.unwrap();
    let turn = grid.turn("eu-1", &mut talk).await.unwrap();

    assert_warm_at_home(&turn);
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn an_edge_whose_relays_all_dial_needs_no_seed() {
    let plan = GridPlan::default()
        .site("home", "us")
        .dials()
        .edge("eu-1", "eu", &[("home", 4)]);
    let grid = Grid::start_alone(plan, program()).await.unwrap();

    let turn = grid.turn("eu-1", &mut conversation(1)).await.unwrap();

    assert_eq!(turn.site, "home", "{turn:?}");
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_site_behind_a_nat_serves_an_edge_that_can_not_dial_it() {
    let name = "a_site_behind_a_nat_serves_an_edge_that_can_not_dial_it";
    let Placed::AtEdge { site } = netns::behind_nat(name).await.unwrap() else {
        return;
    };
    let plan = GridPlan::default()
        .at(netns::EDGE)
        .site("fra", "eu")
        .site("home", "us")
        .dials()
        .in_namespace(&site)
        .mesh()
        .edge("eu-1", "eu", &[]);
    let mut grid = Grid::start(plan, program()).await.unwrap();

    // They gossip, though only home can dial.
    grid.until_members("fra-1", 2).await.unwrap();
    assert_only_fra_can_be_dialled(&grid).await;

    grid.kill_site("fra").unwrap();
    let mut talk = conversation(1);
    let cold = grid.turn("eu-1", &mut talk).await.unwrap();
    let blocks = cold.prompt_tokens / 16;
    let known = |known: &Known| known.blocks("home") >= blocks;
    let what = "the edge knows what home has cached";
    grid.until("eu-1", what, known).await.unwrap();
    let warm = grid.turn("eu-1", &mut talk).await.unwrap();

    assert_eq!((cold.site.as_str(), cold.cached_tokens), ("home", 0));
    assert_eq!(warm.site, "home", "{warm:?}");
    assert!(warm.overlap_tokens > 19_000, "{warm:?}");
    assert!(warm.cached_tokens >= warm.overlap_tokens, "{warm:?}");

    // The others come back where they were; home finds them by itself.
    grid.kill_edge("eu-1").unwrap();
    grid.restart_site("fra").await.unwrap();
    grid.restart_edge("eu-1").await.unwrap();
    grid.until_complete().await.unwrap();
    grid.until_members("fra-1", 2).await.unwrap();
    let again = grid.turn("eu-1", &mut talk).await.unwrap();
    assert_eq!(again.site, "home", "{again:?}");
    assert!(again.overlap_tokens > 19_000, "{again:?}");
    grid.stop().await.unwrap();
}

/// A stranger hears at once from a relay that it can reach, and nothing from the one behind
/// the NAT: neither where that listens, nor where it seems to be.
async fn assert_only_fra_can_be_dialled(grid: &Grid) {
    let domain = TrustDomain::new("other.example").unwrap();
    let authority = CertAuthority::generate(domain).unwrap();
    let stranger = "spiffe://other.example/region/eu/edge/eu-1".parse();
    let credentials = authority.credentials(&stranger.unwrap()).unwrap();
    let tasks = Tasks::new();
    let config = NodeConfig::new(SocketAddr::new(netns::EDGE, 0), credentials);
    let node = Node::bind(config, &tasks).unwrap();
    let port = grid.relay_address("home-1").unwrap().port();
    let dial = async |address| {
        let dialled = node.connect(address, Protocol::View, &Expected::AnyRelay);
        dialled.await.unwrap_err()
    };

    let (fra, home, nat) = tokio::join!(
        dial(grid.relay_address("fra-1").unwrap()),
        dial(SocketAddr::new(netns::SITE, port)),
        dial(SocketAddr::new(netns::NAT, port)),
    );

    assert!(matches!(fra, ConnectError::Handshake { .. }), "{fra}");
    assert!(matches!(home, ConnectError::Timeout(_)), "{home}");
    assert!(matches!(nat, ConnectError::Timeout(_)), "{nat}");
    tasks.stop();
}
