//! Whether pools match.

use super::*;

/// Sends requests whose beginnings are held by no pool, one a second.
fn unmatched(parity: &mut Parity, usage: Usage, requests: u64) -> Vec<Change> {
    let cold = Forecast {
        overlap_tokens: 0,
        pools: vec![(PoolId(1), 0), (PoolId(2), 0)],
        ..forecast(Kind::PLAIN)
    };
    let note = |second| parity.noted(&cold, usage, at(second));
    (0..requests).flat_map(note).collect()
}

fn is_unmatched(parity: &Parity, pool: u64) -> bool {
    let pool = parity.pool(&site("fra"), ModelId(1), PoolId(pool));
    pool.is_some_and(Matching::is_unmatched)
}

#[test]
fn pools_that_miss_what_the_site_has_cached_are_told_until_they_match() {
    let mut parity = Parity::new(CONFIG);

    let changes = unmatched(&mut parity, usage(100, 64), 25);
    let both = [1, 2].map(|pool| Change::Unmatched(PoolId(pool), 20));
    let told: Vec<_> = changes
        .iter()
        .filter(|change| matches!(change, Change::Unmatched(..)))
        .cloned()
        .collect();
    assert_eq!(told, both);

    let warm = Forecast {
        pools: vec![(PoolId(1), 64), (PoolId(2), 0)],
        ..forecast(Kind::PLAIN)
    };
    let changes = parity.noted(&warm, usage(100, 64), at(30));
    assert!(changes.contains(&Change::Matched(PoolId(1))), "{changes:?}");
    assert!(!is_unmatched(&parity, 1));
    assert!(is_unmatched(&parity, 2));
}

#[test]
fn a_pool_is_not_blamed_for_what_is_cold_nor_for_another_prompt_nor_for_a_burst() {
    let mut parity = Parity::new(CONFIG);

    unmatched(&mut parity, usage(100, 0), 50);
    unmatched(&mut parity, usage(107, 64), 50);
    let cold = Forecast {
        pools: vec![(PoolId(1), 0)],
        ..forecast(Kind::PLAIN)
    };
    for _ in 0..50 {
        parity.noted(&cold, usage(100, 64), at(60));
    }

    assert!(!is_unmatched(&parity, 1));
}

#[test]
fn where_a_site_tells_nothing_repeats_should_match() {
    let mut parity = Parity::new(CONFIG);

    unmatched(&mut parity, Usage::default(), 29);
    assert!(!is_unmatched(&parity, 1));
    unmatched(&mut parity, Usage::default(), 50);

    assert!(is_unmatched(&parity, 1));
}

#[test]
fn a_pool_that_is_gone_is_forgotten() {
    let mut parity = Parity::new(CONFIG);
    unmatched(&mut parity, usage(100, 64), 2);

    parity.noted(&forecast(Kind::PLAIN), usage(100, 64), at(9));

    let of = |pool| parity.pool(&site("fra"), ModelId(1), PoolId(pool));
    assert!(of(1).is_some());
    assert!(of(2).is_none());
}
