#![allow(clippy::unwrap_used, reason = "a test may panic")]

use proptest::prelude::*;

use super::*;

const fn at(millis: u64) -> Instant {
    Instant::from_micros(millis * 1000)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Stores so many blocks, one a millisecond, each evicted when it is so old.
fn churn(blocks: usize, age: u64) -> (EvictionAges, Instant) {
    let mut ages = EvictionAges::default();
    let mut held = VecDeque::new();
    for now in 0..u64::try_from(blocks).unwrap() {
        if held.front().is_some_and(|(_, stored)| stored + age == now) {
            let (block, _) = held.pop_front().unwrap();
            ages.handle_evicted(block, at(now));
        }
        let block = ChainHash(now.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        ages.handle_stored(block, at(now));
        held.push_back((block, now));
    }
    (ages, at(u64::try_from(blocks).unwrap()))
}

#[test]
fn nothing_is_said_before_enough_was_evicted() {
    let (early, now) = churn(1_015, 1_000);
    let (later, then) = churn(1_030, 1_000);

    assert_eq!(early.age(now), None);
    assert_eq!(later.age(then), Some(ms(1_000)));
}

#[test]
fn blocks_that_are_used_again_do_not_make_the_rest_older() {
    let mut ages = EvictionAges::default();
    for block in 0..100 {
        let now = 10_000 + block;
        // Two thirds were used again, and got old.
        let age = if block % 3 == 0 { 500 } else { 9_000 + block };
        ages.handle_stored(ChainHash(block), at(now - age));
        ages.handle_evicted(ChainHash(block), at(now));
    }

    assert_eq!(ages.age(at(10_100)), Some(ms(500)));
}

#[test]
fn what_went_for_another_reason_was_not_evicted() {
    let (mut ages, now) = churn(3_000, 1_000);
    for block in 0..1_000 {
        ages.handle_stored(ChainHash(block), now);
        ages.handle_gone(ChainHash(block));
        ages.handle_evicted(ChainHash(block), now);
    }

    assert_eq!(ages.age(now), Some(ms(1_000)));
}

#[test]
fn a_workers_end_that_is_taken_for_evictions_counts_little() {
    let (mut ages, now) = churn(3_000, 1_000);
    let before = ages.age(now);
    for block in 0..4_000 {
        ages.handle_stored(ChainHash(block), now);
    }
    for block in 0..4_000 {
        ages.handle_evicted(ChainHash(block), now + ms(1));
    }

    assert_eq!(before, Some(ms(1_000)));
    assert_eq!(ages.age(now + ms(1)), before);
}

#[test]
fn blocks_of_a_pool_that_evicts_no_more_get_older() {
    let (ages, now) = churn(3_000, 1_000);

    assert_eq!(ages.age(now + ms(5_000)), Some(ms(5_001)));
}

#[test]
fn the_age_of_a_pool_of_any_size_is_measured_on_a_bounded_sample() {
    let (ages, now) = churn(300_000, 200_000);

    assert!(ages.stored.len() <= SAMPLED, "{}", ages.stored.len());
    assert_eq!(ages.age(now), Some(ms(200_000)));
}

#[test]
fn nothing_survives_the_age_at_which_it_is_evicted() {
    assert_eq!(survival(ms(1_000), ms(0)), 1.0);
    assert_eq!(survival(ms(1_000), ms(250)), 0.75);
    assert_eq!(survival(ms(1_000), ms(1_000)), 0.0);
    assert_eq!(survival(ms(1_000), ms(9_000)), 0.0);
    assert_eq!(survival(ms(0), ms(0)), 0.0);
}

proptest! {
    #[test]
    fn whatever_happens_the_age_is_one_that_was_seen_or_the_time_since(
        steps in prop::collection::vec((0u64..50, 0u8..3, 1u64..20), 1..400),
    ) {
        let mut ages = EvictionAges::default();
        let mut stored = BTreeMap::new();
        let mut seen = Vec::new();
        let (mut now, mut last) = (0, 0);
        for (block, what, passed) in steps {
            now += passed;
            let block = ChainHash(block << 20);
            match what {
                0 => {
                    ages.handle_stored(block, at(now));
                    stored.insert(block, now);
                }
                1 => {
                    ages.handle_evicted(block, at(now));
                    if let Some(stored) = stored.remove(&block) {
                        seen.push(ms(now - stored));
                        last = now;
                    }
                }
                _ => {
                    ages.handle_gone(block);
                    stored.remove(&block);
                }
            }
        }

        match ages.age(at(now)) {
            // No two of these are at one moment.
            None => prop_assert!(seen.len() < ENOUGH),
            Some(age) => prop_assert!(seen.contains(&age) || age == ms(now - last)),
        }
    }
}
