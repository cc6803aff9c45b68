//! Tests with real Dynamo sites; they take turns, one at a time on the machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use http::StatusCode;
use kvgrid_tests::dynamo::{Answer, Dynamo, Grid, KvSource, SiteOptions};

use crate::traffic::Question;

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

/// Asks what the edge should know all about; now and then someone past it has asked the same.
async fn ask_settled(grid: &mut Grid, number: usize, question: &Question) -> Answer {
    if number % 10 == 9 {
        let names = grid.site_names();
        let site = grid.site(&names[number / 10 % 2]);
        let answer = site.post(question.path, &question.body).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK);
    }
    grid.until_applied().await.unwrap();
    grid.post(question.path, &question.body).await.unwrap()
}

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
