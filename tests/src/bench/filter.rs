//! What changes and lookups of one filter cost, against what memory allows: each touches two
//! lines, so 2 R is the least for those that don't wait for each other.

use std::hint::black_box;

use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::{Class, Geometry, MixKey, Reader, Writer};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::bench::cpu::{median_ns, timed};
use crate::bench::figure::{Figure, median};
use crate::bench::machine::{BLOCKS, latency_and_line};

const BENCH: &str = "filter";
/// Changes of a batch.
const BATCH: usize = 10_000;
/// Lookups of a round.
const LOOKUPS: usize = 100_000;

pub(super) fn run(quick: bool) -> anyhow::Result<()> {
    let geometry = Geometry::for_capacity(BLOCKS, key().id());
    let (_, line) = latency_and_line(geometry.bytes(), quick);
    let mut bench = Bench {
        writer: Writer::new(geometry),
        rng: SmallRng::seed_from_u64(1),
        held: Vec::new(),
        least: 2.0 * line,
        rounds: if quick { 15 } else { 101 },
    };
    Figure::less(BENCH, "line", line, "ns").print()?;
    bench.half_full()?;
    bench.full()?;
    bench.lookups()?;
    bench.errors(if quick { 4_000_000 } else { 40_000_000 })?;
    bench.churn()
}

fn key() -> MixKey {
    MixKey::from_bytes(&[1; 32])
}

struct Bench {
    writer: Writer,
    rng: SmallRng,
    /// Classes in the table.
    held: Vec<Class>,
    /// What memory allows, in ns.
    least: f64,
    rounds: usize,
}

impl Bench {
    /// Fills the table to a load of 0.6, then empties some of it.
    fn half_full(&mut self) -> anyhow::Result<()> {
        let (insert, _) = self.fill(self.writer.geometry().slots() * 6 / 10)?;
        self.print("insert_up_to_0.6", insert, 1.8)?;
        let mut each = Vec::new();
        for _ in 0..self.rounds {
            let some = self.take(BATCH);
            let (ns, removed) = timed(|| self.writer.remove_all(&some));
            anyhow::ensure!(removed == some.len(), "{removed} were there");
            each.push(ns / BATCH as f64);
        }
        self.print("delete_at_0.6", median(&mut each), 1.8)
    }

    /// Fills the table from nothing to the load at which a larger one takes over.
    fn full(&mut self) -> anyhow::Result<()> {
        self.writer.clear();
        self.held.clear();
        let (_, mean) = self.fill(self.writer.geometry().soft_capacity())?;
        self.print("insert_up_to_0.85", mean, 2.5)
    }

    /// Inserts until there are so many; the middle and the mean of what one took.
    fn fill(&mut self, blocks: u64) -> anyhow::Result<(f64, f64)> {
        let (mut each, mut sum) = (Vec::new(), 0.0);
        while self.writer.len() < blocks {
            let left = usize::try_from(blocks - self.writer.len())?;
            let some = self.classes(BATCH.min(left));
            let (ns, inserted) = timed(|| self.writer.insert_all(&some));
            inserted?;
            each.push(ns / some.len() as f64);
            sum += ns;
            self.held.extend(some);
        }
        Ok((median(&mut each), sum / blocks as f64))
    }

    fn lookups(&mut self) -> anyhow::Result<()> {
        let mut found = vec![self.held[0]; LOOKUPS];
        found.fill_with(|| self.held[self.rng.random_range(0..self.held.len())]);
        let absent = self.classes(LOOKUPS);
        for (metric, classes) in [("lookup_hit", found), ("lookup_miss", absent)] {
            let reader = self.writer.reader();
            let ns = median_ns(self.rounds, LOOKUPS, || {
                black_box(count(&reader, &classes));
            });
            self.print(metric, ns, 1.5)?;
        }
        Ok(())
    }

    /// How many of absent hashes are taken for present, against the theory.
    fn errors(&mut self, hashes: usize) -> anyhow::Result<()> {
        let reader = self.writer.reader();
        let mut wrong = 0;
        for _ in 0..hashes / LOOKUPS {
            wrong += count(&reader, &self.classes(LOOKUPS));
        }
        let geometry = self.writer.geometry();
        let load = self.writer.len() as f64 / geometry.slots() as f64;
        let rate = wrong as f64 / hashes as f64;
        let theory = 8.0 * load / 65_536.0;
        Figure::less(BENCH, "false_positives", rate * 1e6, "of 1,000,000")
            .within(1.15 * theory * 1e6)
            .print()
    }

    /// Removals and inserts at the load at which a larger table takes over.
    fn churn(&mut self) -> anyhow::Result<()> {
        let mut each = Vec::new();
        for _ in 0..self.rounds {
            let (old, new) = (self.take(BATCH), self.classes(BATCH));
            let (ns, done) = timed(|| {
                self.writer.remove_all(&old);
                self.writer.insert_all(&new)
            });
            done?;
            self.held.extend(new);
            each.push(ns / BATCH as f64);
        }
        self.print("churn_at_0.85", median(&mut each), 8.0)
    }

    fn classes(&mut self, count: usize) -> Vec<Class> {
        let key = key();
        let geometry = *self.writer.geometry();
        let class = |_| geometry.class(&key, ChainHash(self.rng.random()));
        (0..count).map(class).collect()
    }

    /// Forgets some classes at random.
    fn take(&mut self, count: usize) -> Vec<Class> {
        let one = |_| {
            let at = self.rng.random_range(0..self.held.len());
            self.held.swap_remove(at)
        };
        (0..count).map(one).collect()
    }

    fn print(&self, metric: &str, ns: f64, bound: f64) -> anyhow::Result<()> {
        let bound = bound * self.least;
        Figure::less(BENCH, metric, ns, "ns").within(bound).print()
    }
}

fn count(reader: &Reader, classes: &[Class]) -> usize {
    let found = classes.iter().filter(|class| reader.contains(**class));
    found.count()
}
