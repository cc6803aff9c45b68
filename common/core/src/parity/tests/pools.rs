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
    let missed = Missed {
        requests: 20,
        told: 20,
    };
    let both = [1, 2].map(|pool| Change::Unmatched(PoolId(pool), missed));
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

    let cold = Forecast {
        pools: vec![(PoolId(1), 0)],
        ..forecast(Kind::PLAIN)
    };
    for _ in 0..50 {
        parity.noted(&cold, usage(100, 64), at(0));
    }
    unmatched(&mut parity, usage(100, 0), 50);
    unmatched(&mut parity, usage(107, 64), 50);

    assert!(!is_unmatched(&parity, 1));
}

#[test]
fn where_a_site_tells_nothing_repeats_should_match() {
    let mut parity = Parity::new(CONFIG);

    unmatched(&mut parity, Usage::default(), 29);
    assert!(!is_unmatched(&parity, 1));
    let changes = unmatched(&mut parity, Usage::default(), 50);

    assert!(is_unmatched(&parity, 1));
    let is_silent =
        |change: &Change| matches!(change, Change::Unmatched(PoolId(1), Missed { told: 0, .. }));
    assert!(changes.iter().any(is_silent), "{changes:?}");
}

#[test]
fn a_kind_that_is_set_aside_or_has_other_ids_blames_no_pool() {
    let length_only = Usage {
        cached_tokens: None,
        ..usage(100, 0)
    };
    let other_ids = Usage {
        same_ids: Some(false),
        ..usage(100, 0)
    };
    for (before, times) in [(usage(107, 0), 3), (other_ids, 1), (other_ids, 3)] {
        for after in [usage(100, 64), length_only, Usage::default()] {
            let mut parity = Parity::new(ParityConfig {
                tokens: AgreementConfig {
                    back: 1000,
                    ..CONFIG.tokens
                },
                ..CONFIG
            });
            unmatched(&mut parity, before, times);

            unmatched(&mut parity, after, 100);

            assert!(!is_unmatched(&parity, 1), "{before:?} {after:?}");
        }
    }
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

#[test]
fn a_forecast_that_is_older_than_a_pool_says_nothing_of_it() {
    let mut parity = Parity::new(CONFIG);
    unmatched(&mut parity, usage(100, 64), 15);
    let now = Forecast {
        pools: vec![(PoolId(1), 0), (PoolId(2), 0)],
        ..forecast(Kind::PLAIN)
    };
    let old = Forecast {
        pools: vec![(PoolId(1), 0), (PoolId(3), 0)],
        ..now.clone()
    };

    parity.note(&old, usage(100, 64), &view_of(&now), at(15));

    let missed = |pool| {
        let of = parity.pool(&site("fra"), ModelId(1), PoolId(pool));
        of.map(|matching| matching.missed().requests)
    };
    assert_eq!(
        (missed(1), missed(2), missed(3)),
        (Some(16), Some(15), None)
    );
}
