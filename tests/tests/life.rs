//! A grid's whole life: it comes up in any order, and every process of it may die.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use std::path::Path;

use kvgrid_tests::harness::{Conversation, Grid, GridPlan};

const SITES: [&str; 4] = ["fra", "iad", "icn", "syd"];
const EDGES: [&str; 4] = ["eu-1", "us-1", "ap-1", "au-1"];

/// Eight relays, two at each site, and four edges that are told of one relay.
async fn start() -> Grid {
    let mut plan = GridPlan::default().mesh();
    for site in SITES {
        plan = plan.site(site, site).relays(2);
    }
    for edge in EDGES {
        plan = plan.edge(edge, &edge[..2], &[]);
    }
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    Grid::start_alone(plan, program).await.unwrap()
}

fn relays() -> impl DoubleEndedIterator<Item = String> {
    let of = |site| [1, 2].map(|number| format!("{site}-{number}"));
    SITES.into_iter().flat_map(of)
}

/// Every edge but this one decides where a new conversation goes, and it is answered.
async fn all_decide(grid: &Grid, but: &str, seed: u64) {
    for edge in EDGES.into_iter().filter(|edge| *edge != but) {
        let mut talk = Conversation::new(seed, 100).unwrap();
        let turn = grid.turn(edge, &mut talk).await.unwrap();
        assert!(SITES.contains(&turn.site.as_str()), "{turn:?}");
    }
}

#[tokio::test]
async fn a_grid_comes_up_in_any_order_and_goes_on_whichever_process_dies() {
    let mut grid = start().await;

    // All are gone; edges come back first, then relays from the last to the first.
    for relay in relays() {
        grid.kill_relay(&relay).unwrap();
    }
    for edge in EDGES {
        grid.kill_edge(edge).unwrap();
        grid.launch_edge_again(edge).await.unwrap();
    }
    for relay in relays().rev() {
        grid.restart_relay(&relay).await.unwrap();
    }
    grid.until_complete().await.unwrap();

    for (seed, relay) in relays().enumerate() {
        grid.kill_relay(&relay).unwrap();
        all_decide(&grid, "", seed as u64).await;
        grid.restart_relay(&relay).await.unwrap();
        grid.until_complete().await.unwrap();
    }
    for (seed, site) in SITES.into_iter().enumerate() {
        grid.kill_site(site).unwrap();
        all_decide(&grid, "", 100 + seed as u64).await;
        grid.restart_site(site).await.unwrap();
        grid.until_complete().await.unwrap();
    }
    for (seed, edge) in EDGES.into_iter().enumerate() {
        grid.kill_edge(edge).unwrap();
        all_decide(&grid, edge, 200 + seed as u64).await;
        grid.launch_edge_again(edge).await.unwrap();
        grid.until_complete().await.unwrap();
    }
    grid.stop().await.unwrap();
}
