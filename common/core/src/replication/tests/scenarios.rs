//! Single stories of a publisher and its replicas.

use core::time::Duration;
use std::sync::Arc;

use super::world::{SOURCE, World, small_geometry};
use crate::filter::{Form, MixKey};
use crate::replication::{
    Announced, Begin, Completeness, Epoch, Frame, Publisher, Replacement, Replica, ReplicaConfig,
    ReplicaError, ReplicaState, Request, Resume, Seq, SubscriptionId,
};
use crate::time::Instant;

/// A world with one edge that has all of these blocks.
fn live_with(blocks: core::ops::Range<u64>) -> World {
    let mut world = World::new(1);
    blocks.for_each(|block| world.flip(block));
    world.settle();
    world.check_equal();
    world
}

/// The chunks that the frames under way to the edge announce.
fn announced(world: &World) -> Vec<Announced> {
    let begin = |frame: &Frame| match frame {
        Frame::Begin(begin) => Some(begin.chunks.clone()),
        Frame::Delta(_) | Frame::Status(_) | Frame::Digests(_) | Frame::End(_) => None,
    };
    world.edges[0]
        .frames_under_way()
        .filter_map(begin)
        .collect()
}

fn deltas(world: &World) -> usize {
    let is_delta = |frame: &&Frame| matches!(frame, Frame::Delta(_));
    world.edges[0].frames_under_way().filter(is_delta).count()
}

#[test]
fn opposing_changes_within_a_batch_make_no_delta_but_are_applied() {
    let mut world = live_with(0..5);
    let seq = world.publisher.seq();

    world.flip(9);
    world.flip(9);
    world.pass(Duration::from_millis(20));
    world.settle();

    assert_eq!(world.publisher.seq(), seq);
    let view = world.edges[0].replica.snapshot();
    assert_eq!(view.applied(SOURCE), Some(7));
    world.check_equal();
}

#[test]
fn a_batch_is_closed_by_time_and_not_before() {
    let mut world = live_with(0..5);
    let seq = world.publisher.seq();

    world.flip(9);
    world.pass(Duration::from_millis(19));
    assert_eq!(world.publisher.seq(), seq);

    world.pass(Duration::from_millis(1));
    assert_eq!(world.publisher.seq(), seq.next());
    assert_eq!(world.publisher.poll_timeout(), None);
}

#[test]
fn a_batch_is_closed_by_size() {
    let mut world = live_with(0..5);
    let seq = world.publisher.seq();

    (100..110).for_each(|block| world.flip(block));

    assert_eq!(world.publisher.seq(), seq.next());
}

#[test]
fn a_replica_that_lost_its_link_stays_searchable_and_resumes_from_the_ring() {
    let mut world = live_with(0..30);

    world.disconnect(0);
    assert_eq!(
        world.edges[0].state(),
        ReplicaState::Stale { since: world.now }
    );
    world.flip(99);
    world.publisher.close();
    world.check_readers();
    world.connect(0);
    world.ask(0);
    world.write_frames(0, usize::MAX);

    assert_eq!(announced(&world), []);
    assert_eq!(deltas(&world), 1);
    world.deliver_frames(0, usize::MAX);
    world.check_equal();
}

#[test]
fn a_stream_that_ends_while_the_relay_stays_is_asked_for_again() {
    let mut world = live_with(0..30);

    world.end_stream(0, 0);
    assert_eq!(
        world.edges[0].state(),
        ReplicaState::Stale { since: world.now }
    );
    world.flip(99);
    world.publisher.close();
    world.settle();

    world.check_equal();
}

#[test]
fn a_chunk_of_an_older_subscription_is_not_taken_for_one_that_is_to_come() {
    let mut world = World::new(1);
    world.ask(0);
    world.write_frames(0, 1);
    world.write_chunks(0, 1);
    world.end_stream(0, 0);
    world.ask(0);
    world.write_frames(0, 1);
    world.deliver_frames(0, 1);
    // More changes than the ring holds, so that the subscription is moved past them.
    for _ in 0..41 {
        (0..8).for_each(|block| world.flip(block));
        world.publisher.close();
    }

    world.deliver_chunk(0, 0, false);
    world.settle();

    world.check_readers();
    world.check_equal();
    assert_eq!(world.edges[0].drifts(), 0);
}

#[test]
fn a_chunk_that_overtook_its_second_announcement_is_not_asked_for_again() {
    let mut world = World::new(1);
    world.ask(0);
    world.write_frames(0, 1);
    world.end_stream(0, 1);
    world.ask(0);
    world.write_frames(0, 1);
    world.write_chunks(0, 1);

    world.deliver_chunk(0, 0, false);
    world.settle();

    world.check_equal();
}

#[test]
fn a_chunk_that_overtook_two_announcements_is_not_forgotten() {
    let mut world = World::new(1);
    (0..120).for_each(|block| world.flip(block));
    world.publisher.close();
    world.ask(0);
    world.write_frames(0, 1);
    world.grow_if_due();
    world.write_frames(0, 1);
    world.write_chunks(0, 1);

    world.deliver_chunk(0, 0, false);
    world.settle();

    world.check_equal();
}

#[test]
fn the_end_of_an_older_stream_changes_nothing() {
    let mut world = live_with(0..30);

    world.edges[0]
        .replica
        .handle_stream_end(SubscriptionId(0), world.now);

    assert_eq!(world.edges[0].state(), ReplicaState::Live);
}

#[test]
fn a_subscriber_that_fell_off_the_ring_gets_the_touched_chunks_only() {
    let mut world = live_with(0..30);
    let touched = {
        let geometry = *world.publisher.geometry();
        let key = MixKey::from_bytes(&[5; 32]);
        geometry.chunk(geometry.class(&key, crate::block::ChainHash(500)))
    };

    for _ in 0..20 {
        world.flip(500);
        world.publisher.close();
    }
    world.write_frames(0, usize::MAX);

    assert_eq!(announced(&world), [Announced::Only(vec![touched])]);
    world.settle();
    world.check_equal();
}

#[test]
fn a_slow_transfer_ends_although_the_ring_is_shorter() {
    let mut world = World::new(1);
    (0..60).for_each(|block| world.flip(block));
    world.publisher.close();
    world.ask(0);

    // Between any two steps of the transfer more happens than the ring holds.
    let mut rounds = 0;
    while world.edges[0].state() != ReplicaState::Live {
        rounds += 1;
        assert!(rounds < 60, "the transfer does not end");
        for _ in 0..20 {
            world.flip(500);
            world.publisher.close();
        }
        world.write_frames(0, 1);
        world.write_chunks(0, 2);
        world.write_frames(0, 2);
        world.deliver_frames(0, usize::MAX);
        while world.deliver_chunk(0, 0, false) {}
        world.check_readers();
    }
}

#[test]
fn drift_is_repaired_chunk_by_chunk_while_readers_go_on() {
    let mut world = live_with(0..60);

    world.edges[0]
        .replica
        .corrupt(crate::block::ChainHash(7_000));
    world.flip(99);
    world.publisher.close();
    world.write_frames(0, usize::MAX);
    world.deliver_frames(0, usize::MAX);
    assert!(matches!(world.edges[0].state(), ReplicaState::Stale { .. }));
    world.ask(0);
    world.write_frames(0, usize::MAX);
    world.deliver_frames(0, usize::MAX);
    world.ask(0);
    world.write_frames(0, usize::MAX);

    let [Announced::Only(chunks)] = &announced(&world)[..] else {
        panic!("no repair");
    };
    assert_eq!(chunks.len(), 1);
    world.settle();
    world.check_equal();
}

#[test]
fn a_new_epoch_takes_over_in_one_swap() {
    let mut world = live_with(0..60);
    let before = world.publisher.epoch();

    world.restart(Completeness::Whole);
    world.connect(0);
    world.ask(0);
    world.write_frames(0, usize::MAX);
    world.write_chunks(0, usize::MAX);
    world.deliver_frames(0, usize::MAX);
    world.deliver_chunk(0, 1, false);
    assert_eq!(world.edges[0].replica.snapshot().epoch, Some(before));
    world.check_readers();

    while world.deliver_chunk(0, 0, false) {}
    world.write_frames(0, usize::MAX);
    world.deliver_frames(0, usize::MAX);
    world.check_equal();
}

#[test]
fn a_partial_epoch_waits_until_it_knows_more() {
    let mut world = live_with(0..60);
    let before = world.publisher.epoch();
    let deliver = |world: &mut World| {
        world.publisher.close();
        world.connect(0);
        world.ask(0);
        world.write_frames(0, usize::MAX);
        world.write_chunks(0, usize::MAX);
        world.write_frames(0, usize::MAX);
        world.deliver_frames(0, usize::MAX);
        while world.deliver_chunk(0, 0, false) {}
    };

    world.restart(Completeness::Partial);
    deliver(&mut world);
    let view = world.edges[0].replica.snapshot();
    assert_eq!(view.epoch, Some(before));
    assert!(matches!(view.state, ReplicaState::Stale { .. }));

    world
        .publisher
        .set_completeness(Completeness::Whole, world.now);
    deliver(&mut world);
    world.check_equal();
}

#[test]
fn a_crowded_table_is_replaced_by_a_larger_one() {
    let mut world = live_with(0..60);
    let (before, chunks) = (world.publisher.epoch(), world.publisher.geometry().chunks());

    (100..400).for_each(|block| world.flip(block));
    world.publisher.close();
    assert!(world.publisher.growth().is_some());
    world.check_readers();
    world.settle();

    assert_eq!(world.publisher.epoch(), before.next());
    assert!(world.publisher.geometry().chunks() > chunks);
    assert_eq!(world.publisher.growth(), None);
    world.check_equal();
}

#[test]
fn a_batch_that_does_not_fit_is_not_published() {
    let mut world = live_with(0..60);
    let seq = world.publisher.seq();

    // The table of 128 slots is full somewhere on the way.
    (100..400).for_each(|block| world.flip(block));
    world.write_frames(0, usize::MAX);
    world.deliver_frames(0, usize::MAX);

    assert!(world.publisher.seq() > seq);
    assert!(world.publisher.growth().is_some());
    assert!(!world.write_chunks(0, usize::MAX));
    let applied = world.edges[0].replica.snapshot().applied(SOURCE);
    assert!(applied < Some(360), "{applied:?}");
    world.check_readers();
}

#[test]
fn a_transfer_in_which_nothing_arrives_is_begun_again() {
    let key = Arc::new(MixKey::from_bytes(&[5; 32]));
    let mut replica = Replica::new(ReplicaConfig::with_keys(vec![key]));
    let start = Instant::ZERO;
    replica.handle_connect(start);
    assert!(matches!(
        replica.poll_request(start),
        Some(Request::Subscribe { .. })
    ));

    let at = replica.poll_timeout().unwrap();
    replica.handle_timeout(at);

    let again = Request::Subscribe {
        form: Form::Filter,
        subscription: SubscriptionId(2),
        resume: None,
    };
    assert_eq!(replica.poll_request(at), Some(again));
}

#[test]
fn a_transfer_goes_on_where_a_lost_link_left_it() {
    let mut world = World::new(1);
    (0..60).for_each(|block| world.flip(block));
    world.publisher.close();
    world.ask(0);
    world.write_frames(0, usize::MAX);
    world.write_chunks(0, 3);
    world.deliver_frames(0, usize::MAX);
    while world.deliver_chunk(0, 0, false) {}

    world.disconnect(0);
    world.connect(0);
    world.ask(0);
    world.write_frames(0, usize::MAX);

    assert_eq!(announced(&world), [Announced::Only(vec![3])]);
}

#[test]
fn an_epoch_that_the_publisher_does_not_know_is_answered_with_everything() {
    let world = live_with(0..30);
    let resume = |epoch, seq| {
        let missing = vec![0, 99];
        let resume = Resume {
            epoch,
            seq,
            missing,
        };
        let mut subscription = world.publisher.subscribe(Some(resume));
        match world.publisher.poll_frame(&mut subscription) {
            Some(Frame::Begin(begin)) => begin.chunks,
            other => panic!("{other:?}"),
        }
    };

    let (epoch, seq) = (world.publisher.epoch(), world.publisher.seq());
    assert_eq!(resume(Epoch::new(9, 0), seq), Announced::All);
    assert_eq!(resume(epoch, seq.next()), Announced::All);
    assert_eq!(resume(epoch, seq), Announced::Only(vec![0]));
}

#[test]
fn tables_that_cannot_be_searched_or_held_are_refused() {
    let key = Arc::new(MixKey::from_bytes(&[5; 32]));
    let other = MixKey::from_bytes(&[6; 32]);
    let config = ReplicaConfig {
        max_chunks: 10,
        ..ReplicaConfig::with_keys(vec![Arc::clone(&key)])
    };
    let begin = |geometry| {
        let mut replica = Replica::new(config.clone());
        replica.handle_connect(Instant::ZERO);
        replica.poll_request(Instant::ZERO);
        let frame = Frame::Begin(Begin {
            epoch: Epoch::new(1, 0),
            seq: Seq(0),
            geometry,
            chunks: Announced::All,
        });
        replica.handle_frame(SubscriptionId(1), frame, Instant::ZERO)
    };

    assert_eq!(
        begin(small_geometry(11, &key)),
        Err(ReplicaError::TooLarge {
            chunks: 11,
            limit: 10
        })
    );
    assert_eq!(
        begin(small_geometry(1, &other)),
        Err(ReplicaError::UnknownKey { key_id: other.id() })
    );
    assert_eq!(begin(small_geometry(10, &key)), Ok(()));
}

/// Lets a replica that is due to subscribe take all that a publisher has.
fn follow(replica: &mut Replica, publisher: &mut Publisher) {
    let now = Instant::ZERO;
    let request = replica.poll_request(now);
    let Some(Request::Subscribe {
        subscription,
        resume,
        ..
    }) = request
    else {
        panic!("{request:?}");
    };
    let mut session = publisher.subscribe(resume);
    for _ in 0..2 {
        while let Some(frame) = publisher.poll_frame(&mut session) {
            replica.handle_frame(subscription, frame, now).unwrap();
        }
        while let Some(chunk) = publisher.poll_chunk(&mut session) {
            replica.handle_chunk(subscription, chunk, now).unwrap();
        }
    }
}

fn wants_whole_hashes(key: &Arc<MixKey>) -> Replica {
    let mut replica = Replica::new(ReplicaConfig {
        form: Form::Exact,
        ..ReplicaConfig::with_keys(vec![Arc::clone(key)])
    });
    replica.handle_connect(Instant::ZERO);
    replica
}

/// A publisher of whole hashes beside the world's.
fn exact_beside(world: &World, key: &Arc<MixKey>) -> Publisher {
    let geometry = world.publisher.geometry().with_form(Form::Exact);
    let table = Replacement::build(Arc::clone(key), geometry, world.live());
    world.publisher.beside(table, Epoch::new(2, 0))
}

fn form(replica: &Replica) -> Option<Form> {
    replica.snapshot().filter.map(|filter| filter.form())
}

#[test]
fn a_publisher_beside_another_has_its_blocks_and_positions_in_another_form() {
    let mut world = live_with(0..50);
    // In the open batch of the one, and in the table of the other.
    world.flip(99);
    let key = Arc::new(MixKey::from_bytes(&[5; 32]));
    let mut exact = exact_beside(&world, &key);
    let mut replica = wants_whole_hashes(&key);

    follow(&mut replica, &mut exact);

    let view = replica.snapshot();
    assert_eq!((view.state, view.blocks), (ReplicaState::Live, 51));
    assert_eq!(view.completeness, Completeness::Whole);
    assert_eq!(view.applied(SOURCE), Some(51));
    assert_eq!(form(&replica), Some(Form::Exact));
}

#[test]
fn a_replica_that_wants_whole_hashes_takes_a_filter_until_there_are_some() {
    let mut world = live_with(0..50);
    let key = Arc::new(MixKey::from_bytes(&[5; 32]));
    let mut replica = wants_whole_hashes(&key);
    follow(&mut replica, &mut world.publisher);
    assert_eq!(form(&replica), Some(Form::Filter));

    replica.handle_disconnect(Instant::ZERO);
    replica.handle_connect(Instant::ZERO);
    follow(&mut replica, &mut exact_beside(&world, &key));

    assert_eq!(form(&replica), Some(Form::Exact));
    assert_eq!(replica.snapshot().state, ReplicaState::Live);
}

#[test]
fn whole_hashes_are_refused_where_a_filter_was_asked_for() {
    let key = Arc::new(MixKey::from_bytes(&[5; 32]));
    let mut replica = Replica::new(ReplicaConfig::with_keys(vec![Arc::clone(&key)]));
    replica.handle_connect(Instant::ZERO);
    replica.poll_request(Instant::ZERO);

    let begun = replica.handle_frame(
        SubscriptionId(1),
        Frame::Begin(Begin {
            epoch: Epoch::new(1, 0),
            seq: Seq(0),
            geometry: small_geometry(1, &key).with_form(Form::Exact),
            chunks: Announced::All,
        }),
        Instant::ZERO,
    );

    assert_eq!(begun, Err(ReplicaError::Form));
}
