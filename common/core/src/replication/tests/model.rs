//! Random histories: whatever happens, no panic, no missed block, and equality in the end.

use core::time::Duration;

use proptest::prelude::*;

use super::world::World;
use crate::block::ChainHash;
use crate::filter::Form;
use crate::replication::Completeness;

pub(super) const EDGES: usize = 2;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Flip(Vec<u64>),
    Close,
    Pass(u64),
    Ask(usize),
    WriteFrames(usize, usize),
    WriteChunks(usize, usize),
    DeliverFrames(usize, usize),
    DeliverChunk(usize, usize, bool),
    Connect(usize),
    Disconnect(usize),
    LoseChunks(usize),
    EndStream(usize, usize),
    Restart(bool),
    Grow,
    Corrupt(usize, u64),
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let edge = || 0..EDGES;
    prop_oneof![
        12 => prop::collection::vec(block(), 1..12).prop_map(Op::Flip),
        8 => Just(Op::Close),
        4 => (0_u64..3_000).prop_map(Op::Pass),
        8 => edge().prop_map(Op::Ask),
        10 => (edge(), 1_usize..8).prop_map(|(edge, most)| Op::WriteFrames(edge, most)),
        10 => (edge(), 1_usize..6).prop_map(|(edge, most)| Op::WriteChunks(edge, most)),
        12 => (edge(), 1_usize..8).prop_map(|(edge, most)| Op::DeliverFrames(edge, most)),
        20 => (edge(), any::<usize>(), prop::bool::weighted(0.2))
            .prop_map(|(edge, which, doubled)| Op::DeliverChunk(edge, which, doubled)),
        4 => edge().prop_map(Op::Connect),
        1 => edge().prop_map(Op::Disconnect),
        1 => edge().prop_map(Op::LoseChunks),
        1 => (edge(), 0_usize..8).prop_map(|(edge, after)| Op::EndStream(edge, after)),
        1 => any::<bool>().prop_map(Op::Restart),
        3 => Just(Op::Grow),
    ]
}

fn corrupting_op() -> impl Strategy<Value = Op> {
    let corrupt = (0..EDGES, block()).prop_map(|(edge, block)| Op::Corrupt(edge, block));
    prop_oneof![20 => op(), 1 => corrupt]
}

fn forms() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Filter), Just(Form::Exact)]
}

fn block() -> impl Strategy<Value = u64> {
    0_u64..300
}

pub(super) fn play(world: &mut World, op: &Op) {
    match op {
        Op::Flip(blocks) => blocks.iter().for_each(|block| world.flip(*block)),
        Op::Close => world.publisher.close(),
        Op::Pass(millis) => world.pass(Duration::from_millis(*millis)),
        Op::Ask(edge) => {
            world.ask(*edge);
        }
        Op::WriteFrames(edge, most) => {
            world.write_frames(*edge, *most);
        }
        Op::WriteChunks(edge, most) => {
            world.write_chunks(*edge, *most);
        }
        Op::DeliverFrames(edge, most) => {
            world.deliver_frames(*edge, *most);
        }
        Op::DeliverChunk(edge, which, doubled) => {
            world.deliver_chunk(*edge, *which, *doubled);
        }
        Op::Connect(edge) => world.connect(*edge),
        Op::Disconnect(edge) => world.disconnect(*edge),
        Op::LoseChunks(edge) => {
            // A stream breaks only with its connection.
            world.disconnect(*edge);
            world.edges[*edge].lose_chunks();
        }
        Op::EndStream(edge, after) => world.end_stream(*edge, *after),
        Op::Restart(whole) => world.restart(if *whole {
            Completeness::Whole
        } else {
            Completeness::Partial
        }),
        Op::Grow => world.grow_if_due(),
        Op::Corrupt(edge, block) => {
            world.edges[*edge].replica.corrupt(ChainHash(*block));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn replicas_end_up_as_the_plain_set_whatever_the_links_do(
        form in forms(),
        ops in prop::collection::vec(op(), 1..250),
    ) {
        let mut world = World::of_form(form, EDGES);
        for op in &ops {
            play(&mut world, op);
            world.check_readers();
            world.check_bounds();
        }

        world.publisher.set_completeness(Completeness::Whole, world.now);
        world.settle();
        world.check_readers();
        world.check_equal();
        for edge in &world.edges {
            prop_assert_eq!(edge.drifts(), 0);
        }
    }

    #[test]
    fn drifted_replicas_are_found_and_repaired(
        form in forms(),
        ops in prop::collection::vec(corrupting_op(), 1..250),
    ) {
        let mut world = World::of_form(form, EDGES);
        for op in &ops {
            play(&mut world, op);
        }

        world.publisher.set_completeness(Completeness::Whole, world.now);
        // Drift is found with the next delta.
        world.flip(1_000);
        world.settle();
        world.check_readers();
        world.check_equal();
    }
}
