//! The filter's readers on real threads beside a writer that never rests.
//!
//! The models in the crate prove the protocol on a tiny table; this shows it on the machine's
//! own memory, at a load where most inserts move others.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::{Class, Form, Geometry, Header, MixKey, Reader, Writer};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Classes that are never removed.
const KEPT: u64 = 2_000;
/// Removals, each followed by an insert.
const CHURN: u32 = 2_000_000;

/// A short chunk, so that nearly all entries move often.
fn geometry(chunk_buckets: u32) -> Geometry {
    Geometry::from_header(Header {
        chunks: 1,
        chunk_buckets,
        slots: 4,
        fingerprint_bits: 16,
        key_id: 0,
    })
    .unwrap()
}

fn class(geometry: &Geometry, hash: u64) -> Class {
    geometry.class(&MixKey::from_bytes(&[5; 32]), ChainHash(hash))
}

/// Counts lookups, and those that miss a class that is there, until told to stop.
fn look(reader: &Reader, kept: &[Class], stop: &AtomicBool) -> (u64, u64) {
    let (mut lookups, mut missed) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        for class in kept {
            missed += u64::from(!reader.contains(*class));
        }
        lookups += kept.len() as u64;
    }
    (lookups, missed)
}

/// Replaces random ones of the others.
fn churn(writer: &mut Writer, geometry: &Geometry, mut others: Vec<Class>) {
    let mut rng = SmallRng::seed_from_u64(1);
    for round in 0..CHURN {
        let at = rng.random_range(0..others.len());
        let new = class(geometry, u64::from(round) + (1 << 32));
        let old = std::mem::replace(&mut others[at], new);
        assert!(writer.remove(old));
        writer.insert(new).unwrap();
    }
}

#[test]
fn a_class_that_stays_is_never_missed() {
    look_beside_churn(geometry(1_024));
}

#[test]
fn a_whole_hash_that_stays_is_never_missed() {
    look_beside_churn(geometry(1_024).with_form(Form::Exact));
}

fn look_beside_churn(geometry: Geometry) {
    let mut writer = Writer::new(geometry);
    let classes: Vec<_> = (0..geometry.hard_capacity())
        .map(|hash| class(&geometry, hash))
        .collect();
    for class in &classes {
        writer.insert(*class).unwrap();
    }
    let (kept, others) = classes.split_at(usize::try_from(KEPT).unwrap());
    let stop = AtomicBool::new(false);

    let results = thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            let (reader, stop) = (writer.reader(), &stop);
            scope.spawn(move || look(&reader, kept, stop))
        });
        churn(&mut writer, &geometry, others.to_vec());
        stop.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap())
    });

    for (lookups, missed) in results {
        assert!(lookups >= KEPT, "a reader did not run");
        assert_eq!(missed, 0, "of {lookups}");
    }
    assert_eq!(writer.len(), geometry.hard_capacity());
}
