//! What a pool's content takes on the wire, in bytes and in time, as its relay sends it and an
//! edge takes it in.

use std::sync::Arc;

use kvgrid_core::PoolId;
use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::{Class, Form, Geometry, MixKey, encode_classes};
use kvgrid_core::replication::{Delta, Epoch, Frame, ReplicaState, Seq, SubscriptionId};
use kvgrid_proto::{chunk_to_wire, frame, frame_to_wire};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::bench::cpu::timed;
use crate::bench::figure::{Figure, median};
use crate::bench::machine::BLOCKS;
use crate::bench::transfer::{self, Follower, name_of};

const BENCH: &str = "codec";
/// More bytes than any message has.
const LIMIT: usize = 16 << 20;
/// Operations of a delta, what to call it, and bytes that each may take.
const DELTAS: [(usize, &str, Option<f64>); 3] = [
    (1_000, "delta_of_1000", None),
    (10_000, "delta_of_10000", Some(3.3)),
    (100_000, "delta_of_100000", None),
];

pub(super) fn run(quick: bool) -> anyhow::Result<()> {
    for form in [Form::Filter, Form::Exact] {
        snapshot(form, if quick { BLOCKS / 5 } else { BLOCKS })?;
        deltas(form)?;
    }
    Ok(())
}

/// Batches of changes of a large table.
fn deltas(form: Form) -> anyhow::Result<()> {
    let key = transfer::key();
    let mut rng = SmallRng::seed_from_u64(1);
    // Deltas depend on the table's size, not on its content.
    let geometry = Geometry::for_capacity(BLOCKS, key.id()).with_form(form);
    for (operations, metric, bound) in DELTAS {
        let half = operations as u64 / 2;
        let mut sorted = || {
            let mut classes = classes(&geometry, &key, &mut rng, half);
            classes.sort_unstable();
            Arc::from(encode_classes(&geometry, &classes))
        };
        let delta = Frame::Delta(Arc::new(Delta {
            epoch: Epoch::new(1, 0),
            base: Seq(1 << 20),
            seq: Seq((1 << 20) + 1),
            adds: sorted(),
            removes: sorted(),
            digest: u64::MAX / 3,
        }));
        let bytes = frame::encode(&frame_to_wire(delta), LIMIT)?.len();
        let name = name_of(form, metric);
        let each = Figure::less(
            BENCH,
            &name,
            bytes as f64 / operations as f64,
            "bytes an operation",
        );
        let bound = bound.filter(|_| form == Form::Filter);
        Figure { bound, ..each }.print()?;
    }
    Ok(())
}

fn classes(geometry: &Geometry, key: &MixKey, rng: &mut SmallRng, count: u64) -> Vec<Class> {
    let class = |_| geometry.class(key, ChainHash(rng.random()));
    (0..count).map(class).collect()
}

/// A pool, coded chunk by chunk and taken in by a replica.
fn snapshot(form: Form, blocks: u64) -> anyhow::Result<()> {
    let mut publisher = transfer::publisher(form, blocks, 0, 1);
    let mut follower = Follower::new(&publisher)?;
    follower.take_frames(&publisher)?;
    let (mut bytes, mut encode, mut rebuild) = (0, Vec::new(), Vec::new());
    let each = blocks as f64 / f64::from(publisher.geometry().chunks());
    loop {
        let (ns, chunk) = timed(|| follower.poll_chunk(&mut publisher));
        let Some(chunk) = chunk else {
            break;
        };
        encode.push(ns / each);
        let wire = chunk_to_wire(PoolId(u64::MAX / 3), SubscriptionId(9), &chunk);
        bytes += frame::encode(&wire, LIMIT)?.len();
        let (ns, taken) = timed(|| follower.take_chunk(chunk));
        taken?;
        rebuild.push(ns / each);
    }
    follower.take_frames(&publisher)?;
    let state = follower.replica.snapshot().state;
    anyhow::ensure!(state == ReplicaState::Live, "the replica is {state:?}");
    let figures = [
        (
            "snapshot",
            bytes as f64 / blocks as f64,
            "bytes a block",
            2.0,
        ),
        ("encode", median(&mut encode), "ns a block", 25.0),
        ("rebuild", median(&mut rebuild), "ns a block", 25.0),
    ];
    for (metric, value, unit, bound) in figures {
        let name = name_of(form, metric);
        let bound = Some(bound).filter(|_| form == Form::Filter);
        let figure = Figure::less(BENCH, &name, value, unit);
        Figure { bound, ..figure }.print()?;
    }
    Ok(())
}
