//! What an edge's view of thirteen sites takes of memory, as the kernel counts it, in each form.

use kvgrid_core::filter::Form;
use kvgrid_core::replication::ReplicaState;

use crate::bench::figure::Figure;
use crate::bench::machine::{BLOCKS, memory_bytes};
use crate::bench::transfer::{self, Follower};

const BENCH: &str = "memory";
const SITES: u64 = 13;

pub(super) fn run(quick: bool) -> anyhow::Result<()> {
    let blocks = if quick { BLOCKS / 5 } else { BLOCKS };
    measure(Form::Filter, blocks, [2.5, 400.0, 500.0].map(Some))?;
    measure(Form::Exact, blocks, [None; 3])
}

/// Measures a replica, a view, and a view of which a part is built anew, against their bounds.
fn measure(form: Form, blocks: u64, bounds: [Option<f64>; 3]) -> anyhow::Result<()> {
    let mut publisher = transfer::publisher(form, blocks, 0, 1);
    // So that what is coded once for all replicas is there before counting.
    Follower::new(&publisher)?.take_all(&mut publisher)?;
    let before = memory_bytes("Rss:")?;
    let mut followers = Vec::new();
    for _ in 0..SITES {
        let mut follower = Follower::new(&publisher)?;
        follower.take_all(&mut publisher)?;
        let state = follower.replica.snapshot().state;
        anyhow::ensure!(state == ReplicaState::Live, "a replica is {state:?}");
        followers.push(follower);
    }
    let view = memory_bytes("Rss:")? - before;
    let of_all = (SITES * blocks) as f64;
    // A replica of another life is built beside the one that is searched meanwhile.
    let mut next = transfer::publisher(form, blocks, 0, 2);
    Follower::new(&next)?.take_all(&mut next)?;
    let before = memory_bytes("Rss:")?;
    let first = followers.swap_remove(0);
    let mut moved = first.moved_to(&next)?;
    moved.take_frames(&next)?;
    while let Some(chunk) = moved.poll_chunk(&mut next) {
        moved.take_chunk(chunk)?;
    }
    let rebuilding = view + memory_bytes("Rss:")? - before;
    let state = moved.replica.snapshot().state;
    anyhow::ensure!(
        matches!(state, ReplicaState::Stale { .. }),
        "it is {state:?}"
    );
    let scale = BLOCKS as f64 / blocks as f64;
    let (view, rebuilding) = (view * scale / MIB, rebuilding * scale / MIB);
    let figures = [
        ("replica", view * MIB / scale / of_all, "bytes a block"),
        ("view_of_13_sites", view, "MiB"),
        ("view_while_one_is_rebuilt", rebuilding, "MiB"),
    ];
    for ((metric, value, unit), bound) in figures.into_iter().zip(bounds) {
        let figure = Figure::less(BENCH, metric, value, unit);
        Figure {
            metric: &transfer::name_of(form, metric),
            bound,
            ..figure
        }
        .print()?;
    }
    Ok(())
}

const MIB: f64 = (1 << 20) as f64;
