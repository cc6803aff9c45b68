//! What the protocol's periods were chosen for: nobody dead for long, nobody dead by mistake.

use core::time::Duration;

use super::world::World;

const SIZES: [usize; 3] = [8, 32, 64];

/// Runs of each kind; more by `KVGRID_SEEDS`.
fn seeds() -> core::ops::Range<u64> {
    let seeds = std::env::var("KVGRID_SEEDS").ok();
    0..seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(4)
}

/// The longest time in seconds that a dead relay stood on a list.
fn worst_detection(count: usize, loss: f64) -> f64 {
    let mut times: Vec<f64> = seeds().map(|seed| detection(count, loss, seed)).collect();
    times.sort_unstable_by(f64::total_cmp);
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{count} relays, loss {loss}: death known to all after {median:.1} s, at most {worst:.1} s"
    );
    worst
}

fn detection(count: usize, loss: f64, seed: u64) -> f64 {
    let mut world = World::whole(count, loss, seed);
    let died_at = world.now;
    world.kill(usize::try_from(seed).unwrap() % count);
    assert!(
        world.run_until_whole(Duration::from_secs(60)),
        "seed {seed}"
    );
    world.now.saturating_since(died_at).as_secs_f64()
}

/// False deaths in ten minutes, and payload bytes a relay sends a second.
fn ten_minutes(count: usize, loss: f64) -> (usize, f64) {
    let (mut deaths, mut bytes) = (0, 0);
    for seed in seeds() {
        let mut world = World::whole(count, loss, seed);
        world.bytes = 0;
        world.run_for(Duration::from_secs(600));
        deaths += world.false_deaths();
        bytes += world.bytes;
    }
    let rate = bytes as f64 / (600 * count) as f64 / seeds().count() as f64;
    println!("{count} relays, loss {loss}: {deaths} false deaths, {rate:.0} bytes/s a relay");
    (deaths, rate)
}

#[test]
fn a_death_is_known_to_all_within_16_seconds() {
    for count in SIZES {
        let worst = worst_detection(count, 0.0);
        assert!(worst <= 16.0, "{worst} s among {count}");
    }
}

#[test]
fn a_death_is_known_to_all_within_20_seconds_when_every_fifth_datagram_is_lost() {
    for count in SIZES {
        let worst = worst_detection(count, 0.2);
        assert!(worst <= 20.0, "{worst} s among {count}");
    }
}

#[test]
fn nobody_dies_by_mistake_and_the_payload_does_not_grow_with_the_mesh() {
    let rates = SIZES.map(|count| {
        let (deaths, rate) = ten_minutes(count, 0.0);
        assert_eq!(deaths, 0, "among {count}");
        rate
    });
    let (least, most) = (rates[0].min(rates[2]), rates[0].max(rates[2]));
    assert!(most <= 1.1 * least, "{rates:?} bytes/s");
}

#[test]
fn nobody_dies_by_mistake_when_every_fifth_datagram_is_lost() {
    for count in SIZES {
        let (deaths, _) = ten_minutes(count, 0.2);
        assert_eq!(deaths, 0, "among {count}");
    }
}
