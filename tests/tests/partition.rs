//! Grids whose network is cut in two, or nearly so.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use std::path::Path;

use kvgrid_tests::harness::{Conversation, Grid, GridPlan, Known, Turn};

const SITES: [&str; 4] = ["fra", "iad", "icn", "syd"];
const EDGES: [&str; 4] = ["eu-1", "us-1", "ap-1", "au-1"];
/// Tokens of a system prompt that is worth any detour.
const LONG: usize = 20_000;

/// Eight relays, two at each site, and four edges; `round_trips` are their links, if any.
async fn start(round_trips: &[(&str, u64)]) -> Grid {
    let mut plan = GridPlan::default().mesh();
    for site in SITES {
        plan = plan.site(site, site).relays(2);
    }
    for edge in EDGES {
        plan = plan.edge(edge, &edge[..2], round_trips);
    }
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    Grid::start_alone(plan, program).await.unwrap()
}

fn relays() -> impl Iterator<Item = String> {
    let of = |site| [1, 2].map(|number| format!("{site}-{number}"));
    SITES.into_iter().flat_map(of)
}

async fn until_all_know(grid: &Grid, members: usize) {
    for relay in relays() {
        grid.until_members(&relay, members).await.unwrap();
    }
}

/// A new conversation's first turn.
async fn ask(grid: &Grid, edge: &str, seed: u64) -> Turn {
    let mut talk = Conversation::new(seed, 100).unwrap();
    grid.turn(edge, &mut talk).await.unwrap()
}

/// What a site has just cached draws a request there from any edge.
async fn all_follow(grid: &Grid, site: &str, seed: u64) {
    let mut talk = Conversation::new(seed, LONG).unwrap();
    grid.warm(site, &mut talk).await.unwrap();
    for edge in EDGES {
        let turn = grid.turn(edge, &mut talk.clone()).await.unwrap();
        assert_eq!(turn.site, site, "{turn:?}");
        assert!(turn.overlap_tokens > 0, "{turn:?}");
    }
}

#[tokio::test]
async fn relays_that_are_parted_harm_no_edge_and_find_each_other_again() {
    let mut grid = start(&[]).await;
    grid.split_relays(&SITES[..2]).await.unwrap();
    until_all_know(&grid, 8).await;

    grid.part_relays();
    until_all_know(&grid, 4).await;
    // Every edge still sends to every relay, and knows all that is cached.
    grid.until_complete().await.unwrap();
    for (seed, site) in SITES.into_iter().enumerate() {
        all_follow(&grid, site, seed as u64).await;
    }
    // One that starts now finds the half that it is told of, and works with that.
    grid.kill_edge("us-1").unwrap();
    grid.launch_edge_again("us-1").await.unwrap();
    let half = |known: &Known| known.complete("fra") && known.complete("iad");
    grid.until("us-1", "a half is complete", half)
        .await
        .unwrap();
    let turn = ask(&grid, "us-1", 10).await;
    assert!(SITES[..2].contains(&turn.site.as_str()), "{turn:?}");

    grid.join_relays();
    until_all_know(&grid, 8).await;
    grid.until_complete().await.unwrap();
    all_follow(&grid, "syd", 11).await;
    grid.stop().await.unwrap();
}

#[tokio::test]
async fn an_edge_that_is_cut_off_from_some_relays_goes_on_with_the_others() {
    let mut grid = start(&SITES.map(|site| (site, 4))).await;
    // All of one site, and half of another.
    let cut = ["fra-1", "fra-2", "iad-1"];

    for relay in cut {
        grid.link("eu-1", relay).unwrap().cut();
    }
    // Asked at once, while nobody has noticed yet: no request may fail.
    for seed in 0..4 {
        for edge in EDGES {
            ask(&grid, edge, seed).await;
        }
    }
    let rest = |known: &Known| {
        let cut_off = cut.iter().all(|relay| !known.serves(relay));
        let rest = ["iad", "icn", "syd"]
            .iter()
            .all(|site| known.complete(site));
        cut_off && !known.eligible("fra") && rest
    };
    grid.until("eu-1", "what is left is complete", rest)
        .await
        .unwrap();
    // Relays on both sides of the cut tell each other: nobody is given up.
    until_all_know(&grid, 8).await;
    all_follow(&grid, "iad", 20).await;
    let others = EDGES.into_iter().filter(|edge| *edge != "eu-1");
    for edge in others {
        let all = |known: &Known| SITES.iter().all(|site| known.complete(site));
        grid.until(edge, "all is complete", all).await.unwrap();
    }

    for relay in cut {
        grid.link("eu-1", relay).unwrap().mend();
    }
    grid.until_complete().await.unwrap();
    all_follow(&grid, "fra", 30).await;
    grid.stop().await.unwrap();
}
