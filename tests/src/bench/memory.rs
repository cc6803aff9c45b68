//! What an edge's view of thirteen sites takes of memory, as the kernel counts it.

use kvgrid_core::replication::ReplicaState;

use crate::bench::figure::Figure;
use crate::bench::machine::{BLOCKS, memory_bytes};
use crate::bench::transfer::{self, Follower};

const BENCH: &str = "memory";
const SITES: u64 = 13;

pub(super) fn run(quick: bool) -> anyhow::Result<()> {
    let blocks = if quick { BLOCKS / 5 } else { BLOCKS };
    let mut publisher = transfer::publisher(blocks, 0, 1);
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
    let mut next = transfer::publisher(blocks, 0, 2);
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
    Figure::less(BENCH, "replica", view / of_all, "bytes a block")
        .within(2.5)
        .print()?;
    Figure::less(BENCH, "view_of_13_sites", view * scale / MIB, "MiB")
        .within(400.0)
        .print()?;
    Figure::less(
        BENCH,
        "view_while_one_is_rebuilt",
        rebuilding * scale / MIB,
        "MiB",
    )
    .within(500.0)
    .print()
}

const MIB: f64 = (1 << 20) as f64;
