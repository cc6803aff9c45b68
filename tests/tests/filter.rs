//! A filter's readers beside a writer that never rests, on real threads.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicBool, Ordering};

use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::{Class, Geometry, Header, MixKey, Reader, Target, Writer, depths};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Blocks that stay throughout.
const KEPT: u64 = 2_000;

/// Lookups of blocks that stay; more by `KVGRID_LOOKUPS`.
fn lookups() -> u64 {
    let lookups = std::env::var("KVGRID_LOOKUPS").ok();
    let lookups = lookups.and_then(|count| count.parse().ok());
    lookups.unwrap_or(5_000_000)
}

/// A tiny table at its hard load, where most inserts move others.
struct Crowd {
    writer: Writer,
    key: MixKey,
    kept: Vec<ChainHash>,
    others: Vec<Class>,
    rng: SmallRng,
}

impl Crowd {
    fn new() -> Self {
        let key = MixKey::from_bytes(&[3; 32]);
        let geometry = Geometry::from_header(Header {
            chunks: 1,
            chunk_buckets: 4_096,
            slots: 4,
            fingerprint_bits: 16,
            key_id: key.id(),
        })
        .unwrap();
        let mut crowd = Self {
            writer: Writer::new(geometry),
            kept: (0..KEPT).map(ChainHash).collect(),
            key,
            others: Vec::new(),
            rng: SmallRng::seed_from_u64(1),
        };
        for chain in &crowd.kept {
            let class = geometry.class(&crowd.key, *chain);
            crowd.writer.insert(class).unwrap();
        }
        while crowd.writer.len() < geometry.hard_capacity() {
            crowd.add();
        }
        crowd
    }

    fn add(&mut self) {
        let chain = ChainHash(self.rng.random_range(KEPT..u64::MAX));
        let class = self.writer.geometry().class(&self.key, chain);
        self.writer.insert(class).unwrap();
        self.others.push(class);
    }

    /// Replaces one of the other blocks.
    fn churn(&mut self) {
        let at = self.rng.random_range(0..self.others.len());
        let class = self.others.swap_remove(at);
        assert!(self.writer.remove(class));
        self.add();
    }
}

/// Looks over and over while the crowd churns; how often blocks came and went meanwhile.
fn beside_a_churning_writer(look: impl FnOnce(&Reader, &MixKey, &[ChainHash])) -> u64 {
    let mut crowd = Crowd::new();
    let (reader, key, kept) = (crowd.writer.reader(), crowd.key.clone(), crowd.kept.clone());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut replaced = 0;
            while !stop.load(Ordering::Relaxed) {
                crowd.churn();
                replaced += 1;
            }
            replaced
        });
        // A look that fails must not leave the writer running.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let stopping = Stop(&stop);
        look(&reader, &key, &kept);
        drop(stopping);
        writer.join().unwrap()
    })
}

#[test]
fn no_block_is_missed_beside_a_writer_that_moves_everything() {
    let mut missed = 0_u64;

    let replaced = beside_a_churning_writer(|reader, key, kept| {
        let classes = kept
            .iter()
            .map(|chain| reader.geometry().class(key, *chain));
        let classes: Vec<_> = classes.collect();
        for _ in 0..lookups() / KEPT {
            let found = classes.iter().filter(|class| reader.contains(**class));
            missed += KEPT - found.count() as u64;
        }
    });

    assert_eq!(missed, 0);
    assert!(replaced > 1_000, "the writer made {replaced} changes only");
}

#[test]
fn no_depth_is_too_small_beside_a_writer_that_moves_everything() {
    let mut too_small = 0;

    let replaced = beside_a_churning_writer(|reader, key, kept| {
        let target = Target {
            reader,
            key,
            closed: true,
        };
        // A search looks at about forty blocks.
        for _ in 0..lookups() / (40 * 20) {
            let found = depths(&[target; 20], kept);
            too_small += found
                .iter()
                .filter(|depth| u64::from(**depth) < KEPT)
                .count();
        }
    });

    assert_eq!(too_small, 0);
    assert!(replaced > 1_000, "the writer made {replaced} changes only");
}
