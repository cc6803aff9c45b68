//! Tests with real Dynamo sites; they take turns, one at a time on the machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use kvgrid_tests::dynamo::{Answer, Dynamo, Grid, KvSource, SiteOptions};

mod alone;
mod cards;
mod client;
mod contract;
mod death;
mod kinds;
mod late;
mod load;
mod outage;
mod overlap;
mod parity;
mod prompts;
mod roles;
mod takeover;
mod together;
mod traffic;

/// Two sites and an edge that knows both, by these events.
async fn two_sites(dynamo: &Dynamo, source: KvSource) -> Grid {
    two_sites_with(dynamo, |options| options.source = source).await
}

/// Two sites that differ from the usual ones in this.
async fn two_sites_with(dynamo: &Dynamo, change: impl Fn(&mut SiteOptions)) -> Grid {
    let sites = ["fra", "iad"].map(|name| {
        let mut options = SiteOptions::named(name);
        change(&mut options);
        options
    });
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    Grid::start(dynamo, sites.into(), program).await.unwrap()
}

fn header(answer: &Answer, name: &str) -> String {
    let value = answer
        .headers
        .get(name)
        .and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}
