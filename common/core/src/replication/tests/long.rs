//! One long life, in which links break and publishers are replaced all the time.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::model::{EDGES, Op, op, play};
use super::world::World;
use crate::filter::Form;
use crate::replication::Completeness;

/// Changes of blocks between two times at which all is compared.
const COMPARED: u64 = 5_000;

/// Changes of blocks; more by `KVGRID_OPERATIONS`.
fn changes() -> u64 {
    let changes = std::env::var("KVGRID_OPERATIONS").ok();
    changes
        .and_then(|count| count.parse().ok())
        .unwrap_or(20_000)
}

#[test]
fn replicas_equal_their_publisher_however_long_links_break_and_relays_change() {
    live_long(Form::Filter);
}

#[test]
fn exact_replicas_equal_their_publisher_just_as_long() {
    live_long(Form::Exact);
}

fn live_long(form: Form) {
    let mut runner = TestRunner::deterministic();
    let operation = op();
    let mut world = World::of_form(form, EDGES);
    let (mut flipped, mut compared_at) = (0, 0);

    while flipped < changes() {
        let op = operation.new_tree(&mut runner).unwrap().current();
        if let Op::Flip(blocks) = &op {
            flipped += blocks.len() as u64;
        }
        play(&mut world, &op);
        if flipped >= compared_at + COMPARED {
            compared_at = flipped;
            world.check_readers();
            world
                .publisher
                .set_completeness(Completeness::Whole, world.now);
            world.settle();
            world.check_equal();
        }
    }

    world
        .publisher
        .set_completeness(Completeness::Whole, world.now);
    world.settle();
    world.check_readers();
    world.check_equal();
    for edge in &world.edges {
        assert_eq!(edge.drifts(), 0);
    }
}
