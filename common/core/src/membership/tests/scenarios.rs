//! Single stories: joins, restarts, departures and partitions.

use core::time::Duration;

use super::world::{World, member, relay};
use crate::membership::{Membership, MembershipConfig, MembershipEvent};
use crate::time::Instant;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn relays_that_join_in_any_order_from_one_seed_all_meet() {
    for seed in 0..20 {
        let mut world = World::begun(12, 0.0, seed);

        assert!(world.run_until_whole(seconds(20)), "seed {seed}");
    }
}

#[test]
fn every_join_succeeds_when_every_fifth_datagram_is_lost() {
    for count in [8, 32, 64] {
        for seed in 0..4 {
            let mut world = World::begun(count, 0.2, seed);

            assert!(world.run_until_whole(seconds(60)), "{count} of seed {seed}");
        }
    }
}

#[test]
fn relays_wait_for_a_seed_that_begins_last() {
    let mut world = World::new(8, 0.0, 1);
    for number in 1..8 {
        world.start(number, 1);
        world.join(number, 0);
    }
    world.run_for(seconds(60));
    assert!((1..8).all(|number| world.seen_by(number).is_empty()));

    world.start(0, 1);

    assert!(world.run_until_whole(seconds(15)));
}

#[test]
fn an_announcement_is_repeated_ever_more_slowly_until_it_is_answered() {
    let mut lonely = Membership::new(member(0, 1), MembershipConfig::default(), 7);
    let mut now = Instant::ZERO;
    let mut sent = Vec::new();
    lonely.announce(member(1, 0), now);
    while now < Instant::ZERO + seconds(60) {
        while let Some(transmit) = lonely.poll_transmit() {
            assert_eq!(transmit.to, member(1, 0));
            sent.push(now);
        }
        now = lonely.poll_timeout().unwrap();
        lonely.handle_timeout(now);
    }

    let gaps: Vec<f64> = sent
        .windows(2)
        .map(|pair| pair[1].saturating_since(pair[0]).as_secs_f64())
        .collect();
    assert!((0.5..=1.0).contains(&gaps[0]), "{gaps:?}");
    assert!(gaps.len() >= 8, "{gaps:?}");
    assert!(
        gaps[4..].iter().all(|gap| (5.0..=10.0).contains(gap)),
        "{gaps:?}"
    );
}

#[test]
fn a_restart_with_a_higher_generation_replaces_the_old_one_at_once() {
    let mut world = World::whole(16, 0.0, 3);
    world.kill(5);
    world.start(5, 2);
    world.join(5, 0);

    world.run_for(seconds(3));

    let others = || (0..16).filter(|number| *number != 5);
    for number in others() {
        let seen = world.relays[number].as_ref().unwrap().member(&relay(5));
        assert_eq!(seen, Some(&member(5, 2)), "at {number}");
    }
    let went = |event: &MembershipEvent| matches!(event, MembershipEvent::Down(_));
    assert!(!world.told.iter().any(|told| went(&told.event)));
    assert!(world.run_until_whole(seconds(30)));
}

#[test]
fn a_relay_that_forgot_its_generation_finds_one_that_the_others_accept() {
    for forgotten in [1, 2, 7, 1_000_000] {
        let mut world = World::new(8, 0.0, forgotten);
        for number in 0..8 {
            world.start(number, if number == 3 { forgotten } else { 1 });
        }
        (1..8).for_each(|number| world.join(number, 0));
        assert!(world.run_until_whole(seconds(30)));

        world.kill(3);
        world.run_for(seconds(20));
        world.start(3, 1);
        world.join(3, 0);

        assert!(world.run_until_whole(seconds(20)), "after {forgotten}");
        let generation = world.get(3).own().generation;
        assert!(generation > forgotten);
        let told = |event: &MembershipEvent| *event == MembershipEvent::OwnGeneration(generation);
        assert!(world.told.iter().any(|t| t.to == 3 && told(&t.event)));
    }
}

#[test]
fn a_departure_is_known_to_all_within_three_seconds() {
    for count in [8, 32, 64] {
        let mut world = World::whole(count, 0.0, 5);
        let left_at = world.now;
        world.leave(2);
        world.kill(2);

        assert!(world.run_until_whole(seconds(3)), "of {count}");

        let took = world.now.saturating_since(left_at);
        println!("{count} relays: a departure is known to all after {took:?}");
    }
}

#[test]
fn a_departure_is_known_to_all_soon_when_every_fifth_datagram_is_lost() {
    let mut world = World::whole(64, 0.2, 5);
    world.leave(2);
    world.kill(2);

    assert!(world.run_until_whole(seconds(6)));
}

#[test]
fn who_left_says_and_hears_nothing_more() {
    let mut world = World::whole(8, 0.0, 6);
    world.leave(2);
    let before = world.bytes;

    let gone = world.get(2);
    assert_eq!(gone.poll_timeout(), None);
    gone.announce(member(1, 1), Instant::ZERO);
    assert_eq!(gone.poll_transmit(), None);
    world.run_for(seconds(1));

    let gone = world.get(2);
    assert_eq!(gone.own().generation, 1);
    assert_eq!(gone.members().len(), 7);
    assert!(world.bytes > before);
    assert!((0..8).all(|number| number == 2 || !world.seen_by(number).contains(&2)));
}

/// A mesh parted for five minutes, its only seed dead; how long it takes to be whole again.
fn parted(count: usize, loss: f64, seed: u64, part: fn(usize) -> usize) -> Duration {
    let mut world = World::whole(count, loss, seed);
    world.kill(0);
    world.parts = (0..count).map(part).collect();
    world.run_for(seconds(300));
    for number in 1..count {
        let seen = world.seen_by(number);
        let same = |other: &usize| part(*other) == part(number);
        assert!(seen.iter().all(same), "{number} sees {seen:?}");
    }

    world.parts = vec![0; count];
    let healed_at = world.now;

    assert!(world.run_until_whole(seconds(120)), "seed {seed}");
    world.now.saturating_since(healed_at)
}

#[test]
fn halves_that_lost_each_other_for_five_minutes_meet_again() {
    for seed in 0..3 {
        let took = parted(16, 0.0, seed, |number| number % 2);
        println!("whole {took:?} after the partition");
        parted(16, 0.2, seed, |number| number % 2);
    }
}

#[test]
fn a_relay_that_was_cut_off_for_five_minutes_comes_back() {
    for seed in 0..3 {
        let took = parted(16, 0.0, seed, |number| usize::from(number == 4));
        println!("whole {took:?} after the partition");
    }
}

#[test]
fn a_mesh_that_fell_into_single_relays_meets_again() {
    let took = parted(8, 0.0, 1, |number| number);
    println!("whole {took:?} after the partition");
}
