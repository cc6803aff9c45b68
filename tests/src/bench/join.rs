//! How soon a new edge has a whole view, from the start of its process on.

use std::path::Path;
use std::time::Instant;

use crate::bench::figure::{Figure, median};
use crate::harness::{Conversation, Grid, GridPlan};

const SITES: [&str; 8] = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"];
const EDGE: &str = "new";
/// Tokens cached at each site.
const TOKENS: usize = 5_000;

/// Round trip in milliseconds, what to call it, and seconds that it may take.
const PATHS: [(u64, &str, f64); 2] = [
    (4, "whole_view_8_sites_4_ms", 2.0),
    (239, "whole_view_8_sites_239_ms", 4.0),
];

#[tokio::main]
pub(super) async fn run(quick: bool, program: &Path) -> anyhow::Result<()> {
    for (round_trip, metric, bound) in PATHS {
        let mut seconds = measure(round_trip, if quick { 1 } else { 5 }, program).await?;
        Figure::less("join", metric, median(&mut seconds), "s")
            .within(bound)
            .print()?;
    }
    Ok(())
}

async fn measure(round_trip: u64, rounds: usize, program: &Path) -> anyhow::Result<Vec<f64>> {
    let mut plan = GridPlan::default().mesh();
    for site in SITES {
        plan = plan.site(site, site);
    }
    let links = SITES.map(|site| (site, round_trip));
    let plan = plan.late_edge(EDGE, "eu", &links);
    let mut grid = Grid::start_alone(plan, program).await?;
    for (seed, site) in SITES.into_iter().enumerate() {
        let mut talk = Conversation::new(seed as u64, TOKENS)?;
        grid.ask_site(site, &mut talk).await?;
    }
    let mut seconds = Vec::new();
    for round in 0..rounds {
        let started = Instant::now();
        if round == 0 {
            grid.start_edge(EDGE).await?;
        } else {
            grid.launch_edge_again(EDGE).await?;
        }
        grid.until_complete().await?;
        seconds.push(started.elapsed().as_secs_f64());
        grid.kill_edge(EDGE)?;
    }
    grid.stop().await?;
    Ok(seconds)
}
