//! Bulk that gives way, beside small messages.

use super::*;

const REGION: Duration = Duration::from_millis(120);
/// What bulk may make a small message wait.
const MOST: Duration = Duration::from_millis(10);

/// A flow of single packets, one in 20 ms.
struct Messages(usize);

impl Messages {
    fn add(world: &mut World) -> Self {
        let cut = world.at();
        world.add(Box::new(Halving {
            window: 100_000.0,
            cut,
        }));
        let index = world.flows.len() - 1;
        world.flows[index].left = Some(0);
        Self(index)
    }

    /// The round trip that no more than one in a hundred exceeded in the time to come.
    fn slow(&self, world: &mut World, time: Duration) -> Duration {
        let end = world.now + time;
        let mut waits = Vec::new();
        while world.now < end {
            world.flows[self.0].left = Some(PACKET);
            world.flows[self.0].longest = Duration::ZERO;
            world.run(Duration::from_millis(20));
            waits.push(world.flows[self.0].longest);
        }
        waits.sort_unstable();
        waits[waits.len() * 99 / 100]
    }
}

#[test]
fn bulk_in_the_background_makes_no_message_wait() {
    for round_trip in [NEAR, REGION, FAR] {
        let mut world = World::new(200, round_trip, 4 << 20, 0.0);
        let messages = Messages::add(&mut world);
        world.run(Duration::from_secs(1));
        world.rated(LIMITS);
        world.flows[1].control.give_way(true);

        let begun = messages.slow(&mut world, Duration::from_secs(2));
        let later = messages.slow(&mut world, Duration::from_secs(20));
        let rate = world.rates(Duration::from_secs(5))[1];

        assert!(begun < round_trip + MOST, "{begun:?} of {round_trip:?}");
        assert!(later < round_trip + MOST, "{later:?} of {round_trip:?}");
        assert!(rate > 140.0, "{rate} of 200 Mbit/s at {round_trip:?}");
    }
}

#[test]
fn bulk_that_goes_into_the_background_leaves_the_queue() {
    for round_trip in [NEAR, REGION, FAR] {
        let mut world = World::new(200, round_trip, 4 << 20, 0.0);
        world.rated(LIMITS);
        let messages = Messages::add(&mut world);
        world.run(Duration::from_secs(5));

        world.flows[0].control.give_way(true);
        world.run(round_trip * 4);

        let slow = messages.slow(&mut world, Duration::from_secs(5));
        assert!(slow < round_trip + MOST, "{slow:?} of {round_trip:?}");
    }
}

#[test]
fn bulk_fills_the_path_once_nothing_is_urgent() {
    let mut world = World::new(200, FAR, 4 << 20, 0.0);
    world.rated(LIMITS);
    world.flows[0].control.give_way(true);
    world.run(Duration::from_secs(1));
    let slow = world.rates(FAR * 2)[0];

    world.flows[0].control.give_way(false);
    world.run(Duration::from_secs(2));
    let rate = world.rates(Duration::from_secs(5))[0];

    assert!(slow < 120.0, "{slow} Mbit/s in the background");
    assert!(rate > 170.0, "{rate} of 200 Mbit/s");
}

#[test]
fn anothers_long_queue_leaves_bulk_half_the_start_rate() {
    let mut world = World::new(200, FAR, 4 << 20, 0.0);
    world.rated(LIMITS);
    world.flows[0].control.give_way(true);
    let cut = world.at();
    world.add(Box::new(Halving {
        window: 6_000_000.0,
        cut,
    }));
    world.run(Duration::from_secs(5));

    let rate = world.rates(Duration::from_secs(10))[0];

    assert!(rate > 20.0, "{rate} Mbit/s");
}

#[test]
fn a_path_that_has_become_slower_is_followed_in_the_background() {
    let mut world = World::new(200, REGION, 2 << 20, 0.0);
    world.rated(LIMITS);
    world.flows[0].control.give_way(true);
    world.run(Duration::from_secs(10));
    let config = LinkConfig {
        delay: REGION / 2,
        rate: NonZeroU64::new(20_000_000),
        buffer: 1 << 20,
        ..LinkConfig::default()
    };
    world.link = Link::new(config, 6).unwrap();
    world.run(Duration::from_secs(10));
    world.flows[0].lost = 0;

    let rate = world.rates(Duration::from_secs(10))[0];

    assert!(rate > 14.0, "{rate} of 20 Mbit/s");
    let lost = world.flows[0].lost as f64 * 8.0 / 1e6 / 10.0;
    assert!(lost < 1.0, "{lost} Mbit/s lost");
}
