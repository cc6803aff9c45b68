//! How fast an edge far away learns what a site has cached: blocks a second from a site's
//! events to the edge's replica, and how late one block is.
//!
//! Relay and edge are real processes with a link between them, and share this machine with
//! who publishes. So the rate is told twice: by the wall clock, and for each second of CPU
//! time of the relay, decoding and its transport included.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::bench::cpu::process_time;
use crate::bench::fed::FedSite;
use crate::bench::figure::{Figure, median};
use crate::bench::ground::Ground;
use crate::bench::prompts::Prompts;
use crate::link::LinkProperties;

const BENCH: &str = "replicate";
const SITE: &str = "fra";
const WORKERS: usize = 4;
const RATE: f64 = 1_000_000.0;
const LATE_MS: f64 = 50.0;
/// Of the rate at the shortest round trip.
const FAR_SHARE: f64 = 0.95;

/// Round trips in milliseconds.
const PATHS: [u64; 2] = [4, 239];

/// How much is measured.
struct Size {
    blocks: u64,
    rounds: usize,
    samples: usize,
}

#[tokio::main]
pub(super) async fn run(quick: bool, program: &Path) -> Result<()> {
    let size = match quick {
        true => Size {
            blocks: 500_000,
            rounds: 1,
            samples: 20,
        },
        false => Size {
            blocks: 4_000_000,
            rounds: 3,
            samples: 200,
        },
    };
    let mut rates = Vec::new();
    for round_trip in PATHS {
        rates.push(measure(&size, round_trip, program).await?);
    }
    if let [near, far] = rates[..] {
        let share = far / near;
        Figure::more(BENCH, "rate_239_ms_by_4_ms", share, "")
            .within(FAR_SHARE)
            .print()?;
    }
    Ok(())
}

/// Prints the figures of a path, and gives its rate.
async fn measure(size: &Size, round_trip: u64, program: &Path) -> Result<f64> {
    let ground = Ground::new(program)?;
    let rounds = size.rounds as u64 + 1;
    let worker_blocks = size.blocks * rounds / WORKERS as u64;
    let mut site = FedSite::start(&ground, SITE, WORKERS, worker_blocks).await?;
    let link = LinkProperties::round_trip(Duration::from_millis(round_trip));
    let (_links, entrances) = ground.links("links", &[site.quic], &link, false).await?;
    let edge = ground.edge("eu-1", &entrances).await?;
    edge.until("the pool is live", |known| known.states(SITE) == ["live"])
        .await?;

    let mut prompts = Prompts::of(WORKERS as u64, 1);
    let (mut by_clock, mut by_relay, mut by_edge) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        let (relay, at_edge) = (site.process()?, edge.id()?);
        let before = (process_time(relay)?, process_time(at_edge)?);
        let begun = Instant::now();
        site.publish_prompts(&mut prompts, size.blocks).await?;
        edge.until_applied([(SITE, &site)]).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let blocks = size.blocks as f64;
        let spent = |process, before: Duration| -> Result<f64> {
            Ok((process_time(process)? - before).as_secs_f64())
        };
        by_clock.push(blocks / seconds);
        by_relay.push(blocks / spent(relay, before.0)?);
        by_edge.push(blocks / spent(at_edge, before.1)?);
    }
    let name = |what: &str| format!("{what}_{round_trip}_ms");
    let rate = median(&mut by_clock);
    for (what, value, unit) in [
        ("rate", rate, "blocks/s"),
        ("rate_relay", median(&mut by_relay), "blocks/CPU s"),
        ("rate_edge", median(&mut by_edge), "blocks/CPU s"),
    ] {
        Figure::more(BENCH, &name(what), value, unit)
            .within(RATE)
            .print()?;
    }

    let one_way = round_trip as f64 / 2.0;
    let mut late = Vec::new();
    for sample in 0..size.samples {
        let begun = Instant::now();
        site.publish_block(sample % WORKERS).await?;
        edge.until_applied([(SITE, &site)]).await?;
        late.push(begun.elapsed().as_secs_f64() * 1_000.0 - one_way);
    }
    let p50 = median(&mut late);
    let p99 = late[(late.len() * 99).div_ceil(100) - 1];
    for (what, value) in [
        ("event_to_searchable_p50", p50),
        ("event_to_searchable_p99", p99),
    ] {
        Figure::less(BENCH, &name(what), value, "ms")
            .within(LATE_MS)
            .print()?;
    }
    Ok(rate)
}
