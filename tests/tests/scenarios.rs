//! Whole grids of real processes: what a client sees when things go well and when they don't.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use std::path::Path;

use kvgrid_tests::harness::{Conversation, Grid, GridPlan, Known, Turn};

/// Tokens of a system prompt whose warmth outweighs an ocean.
const LONG: usize = 20_000;
/// Tokens of a prompt that is not worth a detour.
const SHORT: usize = 200;

async fn start(plan: GridPlan) -> Grid {
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    Grid::start_alone(plan, program).await.unwrap()
}

/// A site next door and one across the ocean.
fn near_and_far() -> GridPlan {
    GridPlan::default()
        .site("fra", "eu")
        .site("iad", "us")
        .edge("eu-1", "eu", &[("fra", 4), ("iad", 90)])
}

fn conversation(seed: u64, system_tokens: usize) -> Conversation {
    Conversation::new(seed, system_tokens).unwrap()
}

/// The edge expected exactly what the engine then found, and that was most of the prompt.
fn assert_warm(turn: &Turn) {
    assert_exact(turn);
    let cold = turn.prompt_tokens - turn.cached_tokens;
    assert!(cold < 100, "{cold} tokens were computed: {turn:?}");
}

fn assert_exact(turn: &Turn) {
    assert_eq!(turn.overlap_tokens, turn.cached_tokens, "{turn:?}");
}

fn assert_cold(turn: &Turn) {
    assert_exact(turn);
    assert_eq!(turn.cached_tokens, 0, "{turn:?}");
}

#[tokio::test]
async fn a_warm_prefix_wins_over_a_near_site() {
    let grid = start(near_and_far()).await;
    let mut talk = conversation(1, LONG);
    grid.warm("iad", &mut talk).await.unwrap();

    let turn = grid.turn("eu-1", &mut talk).await.unwrap();

    assert_eq!(turn.site, "iad", "{turn:?}");
    assert_warm(&turn);
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn the_near_site_wins_when_nothing_is_warm_or_too_little() {
    let grid = start(near_and_far()).await;
    let cold = grid.turn("eu-1", &mut conversation(1, LONG)).await.unwrap();
    let mut talk = conversation(2, SHORT);
    grid.warm("iad", &mut talk).await.unwrap();

    let little = grid.turn("eu-1", &mut talk).await.unwrap();

    assert_eq!(cold.site, "fra", "{cold:?}");
    assert_cold(&cold);
    assert_eq!(little.site, "fra", "{little:?}");
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_conversation_stays_at_a_site_that_says_nothing_of_its_cache() {
    let plan = GridPlan::default()
        .site("fra", "eu")
        .without_events()
        .site("iad", "us")
        .without_events()
        .edge("eu-1", "eu", &[("fra", 4), ("iad", 90)]);
    let mut grid = start(plan).await;
    let mut talk = conversation(1, LONG);
    grid.link("eu-1", "fra-1").unwrap().cut();
    let gone = |known: &Known| !known.eligible("fra");
    grid.until("eu-1", "fra is not eligible", gone)
        .await
        .unwrap();
    let first = grid.turn("eu-1", &mut talk).await.unwrap();
    assert_eq!(first.site, "iad", "{first:?}");
    assert_cold(&first);
    grid.link("eu-1", "fra-1").unwrap().mend();
    grid.until_complete().await.unwrap();

    let second = grid.turn("eu-1", &mut talk).await.unwrap();
    let other = grid.turn("eu-1", &mut conversation(2, LONG)).await.unwrap();

    assert_eq!(second.site, "iad", "{second:?}");
    // All of the first prompt; the engine has the answer to it as well.
    assert!(second.overlap_tokens > 19_000, "{second:?}");
    assert!(second.overlap_tokens <= second.cached_tokens, "{second:?}");
    assert_eq!(other.site, "fra", "{other:?}");
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_conversation_goes_on_elsewhere_when_its_site_is_killed() {
    let mut grid = start(near_and_far()).await;
    let mut talk = conversation(1, LONG);
    let before = grid.turn("eu-1", &mut talk).await.unwrap();
    assert_eq!(before.site, "fra", "{before:?}");

    grid.kill_site("fra").unwrap();
    let after = grid.turn("eu-1", &mut talk).await.unwrap();

    assert_eq!(after.site, "iad", "{after:?}");
    assert_cold(&after);
    let gone = |known: &Known| !known.eligible("fra");
    grid.until("eu-1", "fra is not eligible", gone)
        .await
        .unwrap();
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_site_that_comes_back_is_cold_and_used_again() {
    let mut grid = start(near_and_far()).await;
    let mut talk = conversation(1, SHORT);
    grid.turn("eu-1", &mut talk).await.unwrap();
    grid.kill_site("fra").unwrap();
    grid.turn("eu-1", &mut talk).await.unwrap();

    grid.restart_site("fra").await.unwrap();
    grid.until_complete().await.unwrap();
    let turn = grid
        .turn("eu-1", &mut conversation(2, SHORT))
        .await
        .unwrap();

    assert_eq!(turn.site, "fra", "{turn:?}");
    assert_cold(&turn);
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_late_edge_knows_what_is_warm() {
    let plan = near_and_far().late_edge("ap-1", "ap", &[("fra", 239), ("iad", 90)]);
    let mut grid = start(plan).await;
    let mut talk = conversation(1, LONG);
    grid.turn("eu-1", &mut talk).await.unwrap();

    grid.start_edge("ap-1").await.unwrap();
    grid.until_complete().await.unwrap();
    let turn = grid.turn("ap-1", &mut talk).await.unwrap();

    assert_eq!(turn.site, "fra", "{turn:?}");
    assert_warm(&turn);
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn an_edge_learns_after_a_cut_what_it_missed() {
    let mut grid = start(near_and_far()).await;
    grid.link("eu-1", "fra-1").unwrap().cut();
    let gone = |known: &Known| !known.eligible("fra");
    grid.until("eu-1", "fra is not eligible", gone)
        .await
        .unwrap();
    let elsewhere = grid
        .turn("eu-1", &mut conversation(1, SHORT))
        .await
        .unwrap();
    assert_eq!(elsewhere.site, "iad", "{elsewhere:?}");
    let mut talk = conversation(2, LONG);
    grid.ask_site("fra", &mut talk).await.unwrap();

    grid.link("eu-1", "fra-1").unwrap().mend();
    grid.until_complete().await.unwrap();
    grid.until_applied("fra").await.unwrap();
    let turn = grid.turn("eu-1", &mut talk).await.unwrap();

    assert_eq!(turn.site, "fra", "{turn:?}");
    assert_warm(&turn);
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_restarted_relay_tells_again_what_is_warm() {
    let mut grid = start(near_and_far()).await;
    let mut talk = conversation(1, LONG);
    grid.warm("iad", &mut talk).await.unwrap();

    let before = grid.known("eu-1").await.unwrap().epochs("iad");

    grid.kill_relay("iad-1").unwrap();
    grid.restart_relay("iad-1").await.unwrap();
    let another = |known: &Known| known.complete("iad") && known.epochs("iad") != before;
    grid.until("eu-1", "the new relay's pools are there", another)
        .await
        .unwrap();
    grid.until_complete().await.unwrap();
    grid.until_applied("iad").await.unwrap();
    let turn = grid.turn("eu-1", &mut talk).await.unwrap();

    assert_eq!(turn.site, "iad", "{turn:?}");
    assert_warm(&turn);
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_full_cache_evicts_and_the_edge_knows_what_is_left() {
    let plan = GridPlan::default()
        .site_with("fra", "eu", |engine| engine.capacity_blocks = 2_000)
        .edge("eu-1", "eu", &[("fra", 4)]);
    let grid = start(plan).await;
    let mut first = conversation(1, LONG);
    grid.turn("eu-1", &mut first).await.unwrap();
    grid.until_applied("fra").await.unwrap();

    let mut second = conversation(2, LONG);
    assert_cold(&grid.turn("eu-1", &mut second).await.unwrap());
    grid.until_applied("fra").await.unwrap();
    let left = grid.turn("eu-1", &mut first).await.unwrap();

    assert_exact(&left);
    assert!((1..15_000).contains(&left.cached_tokens), "{left:?}");
    grid.until_applied("fra").await.unwrap();
    assert!(grid.known("eu-1").await.unwrap().blocks("fra") <= 2_000);
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn an_edge_finds_all_sites_by_one_relay() {
    let plan = GridPlan::default()
        .site("fra", "eu")
        .site("iad", "us")
        .site("icn", "ap")
        .mesh()
        .edge("eu-1", "eu", &[]);

    let mut grid = start(plan).await;

    grid.until_complete().await.unwrap();
    let known = grid.known("eu-1").await.unwrap();
    let sites: Vec<&str> = known.sites.iter().map(|site| site.site.as_str()).collect();
    assert_eq!(sites, ["fra", "iad", "icn"]);
    grid.stop().await.unwrap();
}

/// A site with two relays, and one across the ocean.
fn two_relays() -> GridPlan {
    GridPlan::default()
        .site("fra", "eu")
        .relays(2)
        .site("iad", "us")
        .mesh()
        .edge("eu-1", "eu", &[("fra", 4), ("iad", 90)])
}

/// The relay by which the edge knows what the site has cached.
async fn known_by(grid: &Grid, site: &str) -> String {
    let known = grid.known("eu-1").await.unwrap();
    known.site(site).unwrap().known_by.clone().unwrap()
}

#[tokio::test]
async fn another_relay_takes_over_without_a_moment_of_no_view() {
    let mut grid = start(two_relays()).await;
    let mut talk = conversation(1, LONG);
    grid.warm("fra", &mut talk).await.unwrap();
    let blocks = grid.known("eu-1").await.unwrap().blocks("fra");
    let first = known_by(&grid, "fra").await;

    grid.kill_relay(&first).unwrap();
    let mut least = blocks;
    loop {
        let known = grid.known("eu-1").await.unwrap();
        least = least.min(known.blocks("fra"));
        if known.complete("fra") && known_by(&grid, "fra").await != first {
            break;
        }
        let turn = grid.turn("eu-1", &mut talk).await.unwrap();
        assert_eq!(turn.site, "fra", "{turn:?}");
        assert!(turn.cached_tokens > 19_000, "{turn:?}");
    }

    assert_eq!(least, blocks, "what was known was never forgotten");
    grid.until_applied("fra").await.unwrap();
    let turn = grid.turn("eu-1", &mut talk).await.unwrap();
    assert_eq!(turn.site, "fra", "{turn:?}");
    assert_warm(&turn);
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn a_relay_is_added_and_another_leaves_while_requests_go_on() {
    let mut grid = start(two_relays()).await;
    let mut talk = conversation(1, LONG);
    grid.warm("fra", &mut talk).await.unwrap();

    for relay in ["fra-1", "fra-2", "fra-1"] {
        grid.stop_relay(relay).await.unwrap();
        let turn = grid.turn("eu-1", &mut talk).await.unwrap();
        assert_eq!(turn.site, "fra", "{turn:?}");
        grid.restart_relay(relay).await.unwrap();
        grid.until_complete().await.unwrap();
        grid.until_applied("fra").await.unwrap();
        let turn = grid.turn("eu-1", &mut talk).await.unwrap();
        assert_eq!(turn.site, "fra", "{turn:?}");
        assert_warm(&turn);
    }
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn an_edge_with_whole_hashes_knows_what_one_with_filters_does() {
    let plan = near_and_far()
        .exact()
        .edge("eu-2", "eu", &[("fra", 4), ("iad", 90)]);
    let mut grid = start(plan).await;
    let mut talk = conversation(1, LONG);
    grid.warm("iad", &mut talk).await.unwrap();
    let first = grid.turn("eu-1", &mut talk).await.unwrap();

    grid.link("eu-1", "iad-1").unwrap().cut();
    let gone = |known: &Known| !known.eligible("iad");
    grid.until("eu-1", "iad is not eligible", gone)
        .await
        .unwrap();
    let meanwhile = grid.turn("eu-2", &mut talk).await.unwrap();
    grid.link("eu-1", "iad-1").unwrap().mend();
    grid.until_complete().await.unwrap();
    let again = grid.turn("eu-1", &mut talk).await.unwrap();

    for turn in [first, meanwhile, again] {
        assert_eq!(turn.site, "iad", "{turn:?}");
        assert_warm(&turn);
    }
    for (edge, form) in [("eu-1", "exact"), ("eu-2", "filter")] {
        let known = grid.known(edge).await.unwrap();
        for site in known.sites {
            let forms: Vec<_> = site.pools.iter().map(|pool| pool.form.as_deref()).collect();
            assert_eq!(forms, [Some(form)], "{edge} of {}", site.site);
        }
    }
    grid.stop().await.unwrap();
}
