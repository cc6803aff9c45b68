//! How soon a new edge has the whole view of large sites: from the start of its process until
//! every block of every site can be found.
//!
//! Relays have encoded their snapshots for an edge before, which is measured as well. All nodes
//! and links share this machine, so that beside it stand what decoding and rebuilding alone
//! takes on all its cores, and what the bytes alone take on the link.

use std::num::NonZeroU64;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::{Geometry, MixKey, Writer, decode_chunk, encode_classes};
use tokio::time::Instant;

use crate::bench::cpu::resident_bytes;
use crate::bench::fed::FedSite;
use crate::bench::figure::Figure;
use crate::bench::ground::Ground;
use crate::bench::prompts::Prompts;
use crate::harness::Known;
use crate::link::LinkProperties;

const BENCH: &str = "resync";
const SITES: usize = 13;
const WORKERS: usize = 2;
const LINK_BITS: u64 = 1_000_000_000;
/// Of a shared link: what it holds for 32 ms.
const LINK_BUFFER: usize = 4 << 20;
const LOSS: f64 = 0.001;
/// MiB of an edge with thirteen sites of ten million blocks.
const MEMORY: f64 = 400.0;

/// A path to all sites.
struct Path13 {
    round_trip: u64,
    shared: bool,
    loss: f64,
}

const PATHS: [Path13; 7] = [
    Path13::free(4),
    Path13::free(120),
    Path13::free(239),
    Path13::shared(4, 0.0),
    Path13::shared(120, 0.0),
    Path13::shared(239, 0.0),
    Path13::shared(239, LOSS),
];

impl Path13 {
    const fn free(round_trip: u64) -> Self {
        Self {
            round_trip,
            shared: false,
            loss: 0.0,
        }
    }

    const fn shared(round_trip: u64, loss: f64) -> Self {
        Self {
            round_trip,
            shared: true,
            loss,
        }
    }

    fn properties(&self) -> LinkProperties {
        LinkProperties {
            rate: NonZeroU64::new(LINK_BITS).filter(|_| self.shared),
            buffer: LINK_BUFFER,
            loss: self.loss,
            ..LinkProperties::round_trip(Duration::from_millis(self.round_trip))
        }
    }

    fn name(&self) -> String {
        let shared = if self.shared { "_1_gbit" } else { "" };
        let lossy = if self.loss > 0.0 { "_loss" } else { "" };
        format!("whole_view_{}_ms{shared}{lossy}", self.round_trip)
    }

    /// Seconds that it may take, by what the machine and the link could do at best.
    fn bound(&self, floor: &Floor) -> f64 {
        let promised = (4.3 + 0.030 * self.round_trip as f64) / 3.0;
        let link = if self.shared { floor.link_seconds } else { 0.0 };
        promised.max(1.2 * floor.cpu_seconds).max(1.5 * link)
    }
}

#[tokio::main]
pub(super) async fn run(quick: bool, program: &Path) -> Result<()> {
    let blocks = if quick { 200_000 } else { 10_000_000 };
    let floor = Floor::measure(blocks)?;
    Figure::less(BENCH, "cpu_floor", floor.cpu_seconds, "s").print()?;
    Figure::less(BENCH, "link_time_1_gbit", floor.link_seconds, "s").print()?;

    let ground = Ground::new(program)?;
    let mut sites = Vec::new();
    for number in 0..SITES {
        let name = format!("s{number}");
        let mut site = FedSite::start(&ground, &name, WORKERS, blocks / WORKERS as u64).await?;
        let mut prompts = Prompts::of(WORKERS as u64, number as u64 + 1);
        site.publish_prompts(&mut prompts, blocks).await?;
        site.until_held().await?;
        sites.push((name, site));
    }
    let (first, _) = resync(&ground, &sites, "first", &PATHS[0]).await?;
    Figure::less(BENCH, "whole_view_4_ms_first", first, "s").print()?;
    let mut most = 0.0_f64;
    for path in &PATHS {
        let name = path.name();
        let (seconds, memory) = resync(&ground, &sites, &name.replace('_', "-"), path).await?;
        Figure::less(BENCH, &name, seconds, "s")
            .within(path.bound(&floor))
            .print()?;
        most = most.max(memory);
    }
    Figure::less(BENCH, "edge_memory", most, "MiB")
        .within(MEMORY)
        .print()
}

/// Seconds until a new edge has everything, and the MiB that it takes.
async fn resync(
    ground: &Ground,
    sites: &[(String, FedSite)],
    edge: &str,
    path: &Path13,
) -> Result<(f64, f64)> {
    let relays: Vec<_> = sites.iter().map(|(_, site)| site.quic).collect();
    let links = format!("{edge}-links");
    let properties = path.properties();
    let links = ground.links(&links, &relays, &properties, path.shared);
    let (_links, entrances) = links.await?;
    let begun = Instant::now();
    let edge = ground.edge(edge, &entrances).await?;
    let whole = |known: &Known, (name, site): &(String, FedSite)| {
        known.states(name) == ["live"] && known.blocks(name) == site.published()
    };
    edge.until("all sites are known", |known| {
        sites.iter().all(|site| whole(known, site))
    })
    .await?;
    let seconds = begun.elapsed().as_secs_f64();
    let memory = resident_bytes(edge.id()?)? as f64 / f64::from(1 << 20);
    edge.kill();
    Ok((seconds, memory))
}

/// What can't be done without.
struct Floor {
    /// To decode and rebuild all sites' filters on all cores.
    cpu_seconds: f64,
    /// For the snapshots' bytes on the shared link.
    link_seconds: f64,
}

impl Floor {
    fn measure(blocks: u64) -> Result<Self> {
        let key = MixKey::from_bytes(&[7; 32]);
        let geometry = Geometry::for_capacity(blocks, key.id());
        let mut writer: Writer = Writer::new(geometry);
        for block in 0..blocks {
            // The key mixes them.
            writer.insert(geometry.class(&key, ChainHash(block)))?;
        }
        let chunks: Vec<Vec<u8>> = (0..geometry.chunks())
            .map(|chunk| encode_classes(&geometry, &writer.chunk_classes(chunk)))
            .collect();
        drop(writer);
        let bytes: usize = chunks.iter().map(Vec::len).sum();
        let cores = thread::available_parallelism()?.get();
        let begun = Instant::now();
        thread::scope(|scope| {
            let threads: Vec<_> = (0..cores)
                .map(|core| {
                    let chunks = &chunks;
                    scope.spawn(move || {
                        let mut sites = (core..SITES).step_by(cores);
                        sites.try_for_each(|_| rebuild(geometry, chunks))
                    })
                })
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().ok());
            let joined: Option<Result<()>> = joined.collect();
            joined.context("a thread panicked")?
        })?;
        Ok(Self {
            cpu_seconds: begun.elapsed().as_secs_f64(),
            link_seconds: (bytes * SITES * 8) as f64 / LINK_BITS as f64,
        })
    }
}

fn rebuild(geometry: Geometry, chunks: &[Vec<u8>]) -> Result<()> {
    let mut writer: Writer = Writer::new(geometry);
    for (index, chunk) in (0..).zip(chunks) {
        let classes = decode_chunk(&geometry, index, chunk)?;
        writer.replace_chunk(index, &classes)?;
    }
    Ok(())
}
