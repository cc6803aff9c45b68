//! What two thousand publishers of one site cost its relay: descriptors, memory, and how late
//! their events are. They publish on Dynamo's event plane, a ZMQ socket each, and register in
//! files.

use std::fs;
use std::path::Path;

use anyhow::Result;
use tokio::time::Instant;

use crate::bench::cpu::resident_bytes;
use crate::bench::fed::FedSite;
use crate::bench::figure::{Figure, median};
use crate::bench::ground::Ground;

const BENCH: &str = "publishers";
const PUBLISHERS: usize = 2_000;
/// Blocks that a worker has.
const BLOCKS: u64 = 500;

#[tokio::main]
pub(super) async fn run(quick: bool, program: &Path) -> Result<()> {
    let (rounds, samples) = if quick { (5, 50) } else { (50, 500) };
    let ground = Ground::new(program)?;
    let mut site = FedSite::start(&ground, "fra", PUBLISHERS, BLOCKS).await?;

    let started = Instant::now();
    for _ in 0..rounds {
        site.publish_all().await?;
    }
    site.until_held().await?;
    let seconds = started.elapsed().as_secs_f64();
    let mut late = Vec::new();
    for sample in 0..samples {
        late.push(lateness(&mut site, sample * 7 % PUBLISHERS).await?);
    }
    let lost = site.count("source_gaps").await?;
    let (descriptors, memory) = relay_uses(&site)?;

    let events = (rounds * PUBLISHERS) as f64;
    let p50 = median(&mut late);
    let p99 = late.get(late.len() * 99 / 100).copied();
    let less = |metric, value, unit| Figure::less(BENCH, metric, value, unit);
    for figure in [
        less("descriptors", descriptors, "files"),
        less("memory", memory, "MiB"),
        less("events_lost", lost as f64, "events").within(0.0),
        Figure::more(BENCH, "events", events / seconds, "events/s"),
        less("event_to_filter_p50", p50, "ms"),
        less("event_to_filter_p99", p99.unwrap_or(f64::NAN), "ms"),
    ] {
        figure.print()?;
    }
    Ok(())
}

/// Milliseconds from an event to its block in the filter that edges get.
async fn lateness(site: &mut FedSite, publisher: usize) -> Result<f64> {
    let begun = Instant::now();
    site.publish_block(publisher).await?;
    site.until_held().await?;
    Ok(begun.elapsed().as_secs_f64() * 1_000.0)
}

/// Descriptors, and MiB of memory.
fn relay_uses(site: &FedSite) -> Result<(f64, f64)> {
    let process = site.process()?;
    let descriptors = fs::read_dir(format!("/proc/{process}/fd"))?.count();
    let bytes = resident_bytes(process)?;
    Ok((descriptors as f64, bytes as f64 / f64::from(1 << 20)))
}
