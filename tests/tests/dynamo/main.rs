//! Tests with real Dynamo sites; they take turns, one at a time on the machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use kvgrid_tests::dynamo::{Dynamo, Grid, SiteOptions};

mod alone;
mod client;
mod death;
mod overlap;
mod prompts;
mod traffic;

/// Two sites and an edge that knows both.
async fn two_sites(dynamo: &Dynamo) -> Grid {
    let sites = ["fra", "iad"].map(SiteOptions::named);
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    Grid::start(dynamo, sites.into(), program).await.unwrap()
}
