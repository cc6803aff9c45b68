//! What an edge spends on following sites that change all the time.
//!
//! Its CPU time is measured while all sites together store and evict a hundred thousand blocks
//! a second, in events of 32.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use crate::bench::cpu::{process_time, resident_bytes};
use crate::bench::fed::FedSite;
use crate::bench::figure::Figure;
use crate::bench::ground::Ground;
use crate::bench::prompts::Prompts;
use crate::link::LinkProperties;

const BENCH: &str = "steady";
const WORKERS: usize = 2;
/// Blocks stored and removed in a second, at all sites together.
const CHANGES: f64 = 100_000.0;
const CORES: f64 = 0.5;
const ROUND_TRIP: Duration = Duration::from_millis(120);
/// How often it is looked what is to be published.
const TICK: Duration = Duration::from_millis(5);

/// How many sites of how many blocks.
struct Size {
    sites: usize,
    blocks: u64,
    seconds: u64,
}

#[tokio::main]
pub(super) async fn run(quick: bool, program: &Path) -> Result<()> {
    let size = |sites, blocks, seconds| Size {
        sites,
        blocks,
        seconds,
    };
    let sizes = match quick {
        true => vec![size(3, 100_000, 5)],
        false => vec![size(13, 10_000_000, 30), size(100, 1_000_000, 30)],
    };
    for size in sizes {
        measure(&size, program).await?;
    }
    Ok(())
}

struct Site {
    name: String,
    fed: FedSite,
    prompts: Prompts,
}

/// All sites by their names.
fn all(sites: &[Site]) -> impl Iterator<Item = (&str, &FedSite)> + Clone {
    sites.iter().map(|site| (site.name.as_str(), &site.fed))
}

async fn measure(size: &Size, program: &Path) -> Result<()> {
    let ground = Ground::new(program)?;
    let mut sites = Vec::new();
    for number in 0..size.sites {
        let name = format!("s{number}");
        // Room for what comes before what goes.
        let blocks = size.blocks / WORKERS as u64 + 1_000;
        let mut fed = FedSite::start(&ground, &name, WORKERS, blocks).await?;
        let mut prompts = Prompts::of(WORKERS as u64, number as u64 + 1);
        fed.publish_prompts(&mut prompts, size.blocks).await?;
        sites.push(Site { name, fed, prompts });
    }
    for site in &sites {
        site.fed.until_held().await?;
    }
    let relays: Vec<_> = sites.iter().map(|site| site.fed.quic).collect();
    let link = LinkProperties::round_trip(ROUND_TRIP);
    let (_links, entrances) = ground.links("links", &relays, &link, false).await?;
    let edge = ground.edge("eu-1", &entrances).await?;
    edge.until_applied(all(&sites)).await?;

    let process = edge.id()?;
    let before = process_time(process)?;
    let begun = Instant::now();
    let changes = churn(&mut sites, Duration::from_secs(size.seconds)).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let spent = (process_time(process)? - before).as_secs_f64();
    let memory = resident_bytes(process)? as f64 / f64::from(1 << 20);
    edge.until_applied(all(&sites)).await?;

    let name = |what: &str| format!("{what}_{}_sites", size.sites);
    let cores = spent / seconds;
    Figure::less(BENCH, &name("edge_cores"), cores, "cores")
        .within(CORES)
        .print()?;
    let rate = changes as f64 / seconds;
    Figure::more(BENCH, &name("changes"), rate, "blocks/s")
        .within(CHANGES * 0.99)
        .print()?;
    Figure::less(BENCH, &name("edge_memory"), memory, "MiB").print()
}

/// Lets the sites store and evict for so long; gives how many blocks that were.
async fn churn(sites: &mut [Site], time: Duration) -> Result<u64> {
    let begun = Instant::now();
    let mut changes = 0;
    let mut turn = 0;
    while begun.elapsed() < time {
        let due = begun.elapsed().as_secs_f64() * CHANGES;
        while (changes as f64) < due {
            let Site { fed, prompts, .. } = &mut sites[turn];
            changes += fed.publish_change(prompts).await?;
            turn = (turn + 1) % sites.len();
        }
        sleep(TICK).await;
    }
    Ok(changes)
}
