//! What a relay's state costs: time a block from a decoded event to the filter, memory an
//! entry, and the longest time for which nothing else could be done.
//!
//! All blocks are distinct, which is the most that a number of entries can cost. Times are the
//! thread's CPU time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kvgrid_core::Instant;
use kvgrid_core::event::{Tier, WorkerKey};
use kvgrid_core::filter::{Geometry, MixKey};
use kvgrid_core::replication::{Epoch, Publisher, PublisherConfig, Replacement};
use kvgrid_core::residency::{Copies, PoolOp, Residency, ResidencyConfig};

use crate::bench::cpu::{resident_bytes, thread_time};
use crate::bench::figure::Figure;
use crate::bench::prompts::Prompts;

const BENCH: &str = "relay";
const WORKERS: u64 = 8;
/// Entries worked on in one go, as the relay does; between two goes it does what else is due.
const STEP: usize = 1024;
/// Blocks of the first batches.
const FIRST: usize = 32 * STEP;
/// How often memory is looked at.
const LOOK: usize = 250_000;

const RATE: f64 = 1_000_000.0;
const ENTRY_BYTES: f64 = 64.0;
const STALL_MS: f64 = 5.0;

pub(super) fn run(quick: bool) -> Result<()> {
    let blocks = if quick { 1_000_000 } else { 10_000_000 };
    // Memory first: nothing that was freed is used again then.
    let mut state = State::new(blocks, None);
    let memory = state.fill(blocks)?;
    bytes("bytes_an_entry", memory.at_end)?;
    bytes("bytes_an_entry_at_worst", memory.at_worst)?;
    rate("ingest", &state.take_spent())?;
    state.churn(blocks / 2)?;
    rate("churn", &state.take_spent())?;
    drop(state);

    let mut state = State::new(blocks, Some(publisher(blocks)));
    state.fill(blocks)?;
    let spent = state.take_spent();
    rate("ingest_to_deltas", &spent)?;
    stall("longest_stall_growing", &spent)?;
    state.churn(blocks / 2)?;
    let spent = state.take_spent();
    rate("churn_to_deltas", &spent)?;
    stall("longest_stall_churning", &spent)?;
    state.lose_worker()?;
    let spent = state.take_spent();
    rate("worker_leaving_to_deltas", &spent)?;
    stall("longest_stall_worker_leaving", &spent)
}

fn publisher(blocks: usize) -> Publisher {
    let key = MixKey::from_bytes(&[7; 32]);
    let geometry = Geometry::for_capacity(blocks as u64, key.id());
    let table = Replacement::empty(key.into(), geometry);
    Publisher::new(PublisherConfig::default(), table, Epoch::new(1, 0))
}

/// Bytes an entry.
struct Memory {
    at_end: f64,
    at_worst: f64,
}

#[derive(Default)]
struct Spent {
    blocks: usize,
    time: Duration,
    /// On one step.
    longest: Duration,
}

/// A relay's state, and what was spent on it.
struct State {
    residency: Residency,
    publisher: Option<Publisher>,
    prompts: Prompts,
    spent: Spent,
}

impl State {
    fn new(blocks: usize, publisher: Option<Publisher>) -> Self {
        Self {
            residency: Residency::new(ResidencyConfig {
                tier: Tier::Device,
                copies: Copies::Counted,
                max_entries: blocks * 2,
                max_workers: 64,
            }),
            publisher,
            prompts: Prompts::of(WORKERS, 0),
            spent: Spent::default(),
        }
    }

    fn take_spent(&mut self) -> Spent {
        std::mem::take(&mut self.spent)
    }

    fn fill(&mut self, blocks: usize) -> Result<Memory> {
        let before = resident_bytes(std::process::id())?;
        let mut memory = Memory {
            at_end: 0.0,
            at_worst: 0.0,
        };
        // The system gives the filter's table its memory when the first batch comes; that once
        // is not what this is about.
        self.store(FIRST)?;
        self.take_spent();
        let mut next_look = blocks / 4;
        while self.residency.stats().held < blocks {
            self.store(STEP)?;
            let held = self.residency.stats().held;
            if held >= next_look {
                let bytes = resident_bytes(std::process::id())?.saturating_sub(before);
                memory.at_end = bytes as f64 / held as f64;
                memory.at_worst = memory.at_worst.max(memory.at_end);
                next_look = held + LOOK.min(blocks / 20);
            }
        }
        Ok(memory)
    }

    /// Evicts the oldest blocks for new ones.
    fn churn(&mut self, blocks: usize) -> Result<()> {
        for _ in 0..blocks / STEP {
            for (worker, event) in self.prompts.removed(STEP / 2) {
                self.residency.apply(worker, event);
            }
            self.store(STEP / 2)?;
        }
        Ok(())
    }

    fn lose_worker(&mut self) -> Result<()> {
        let held = self.residency.stats().held;
        self.residency.drop_worker(WorkerKey {
            publisher: 0,
            rank: 0,
        });
        self.work()?;
        self.spent.blocks += held - self.residency.stats().held;
        Ok(())
    }

    fn store(&mut self, blocks: usize) -> Result<()> {
        for (worker, event) in self.prompts.stored(blocks) {
            self.residency.apply(worker, event);
        }
        self.spent.blocks += blocks;
        self.work()
    }

    fn work(&mut self) -> Result<()> {
        let mut more = true;
        while more {
            let begun = thread_time();
            more = self.residency.step(STEP);
            let changes = self.residency.drain_ops();
            match &mut self.publisher {
                Some(publisher) => changes.for_each(|change| tell(publisher, change)),
                None => changes.for_each(drop),
            }
            let spent = thread_time().checked_sub(begun);
            let spent = spent.context("CPU time went back")?;
            self.spent.time += spent;
            self.spent.longest = self.spent.longest.max(spent);
        }
        Ok(())
    }
}

/// Batches close by their size here, for no time passes.
fn tell(publisher: &mut Publisher, change: PoolOp) {
    match change {
        PoolOp::Insert(chain) => publisher.insert(chain, Instant::ZERO),
        PoolOp::Remove(chain) => publisher.remove(chain, Instant::ZERO),
    }
}

fn rate(metric: &str, spent: &Spent) -> Result<()> {
    let value = spent.blocks as f64 / spent.time.as_secs_f64();
    Figure::more(BENCH, metric, value, "blocks/s")
        .within(RATE)
        .print()
}

fn stall(metric: &str, spent: &Spent) -> Result<()> {
    let value = spent.longest.as_secs_f64() * 1_000.0;
    Figure::less(BENCH, metric, value, "ms")
        .within(STALL_MS)
        .print()
}

fn bytes(metric: &str, value: f64) -> Result<()> {
    Figure::less(BENCH, metric, value, "bytes")
        .within(ENTRY_BYTES)
        .print()
}
