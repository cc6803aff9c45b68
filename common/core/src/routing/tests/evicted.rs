//! What is cached when a request is decided, and not when it is needed.

use super::*;

#[test]
fn a_stale_replica_counts_less_the_older_it_is() {
    let score = |stale_s| {
        let site = Site::new("fra", 4).warm(100).stale(stale_s);
        Case::new(2000, vec![site]).score("fra")
    };

    assert_eq!(score(60).overlap.tokens, 1600);
    assert_eq!(score(60).overlap.expected_tokens, 800);
    assert!(score(600).total_ms > score(60).total_ms);
}

#[test]
fn a_stale_replica_counts_by_what_its_site_has_evicted_since() {
    let expected = |stale_s| {
        let site = Site::new("fra", 0).warm(100).stale(stale_s);
        let case = Case::new(2000, vec![site.evicting_at(600)]);
        case.score("fra").overlap.expected_tokens
    };

    assert_eq!(expected(0), 1600);
    assert_eq!(expected(60), 1440);
    assert_eq!(expected(600), 0);
}

#[test]
fn what_is_evicted_while_a_request_waits_does_not_count() {
    let overlap = |queued| {
        let site = Site::new("fra", 0).warm(100).queued(queued);
        Case::new(2000, vec![site.evicting_at(1)])
            .score("fra")
            .overlap
    };

    // 0.02 ms a token.
    assert_eq!(overlap(0).expected_tokens, 1600);
    assert_eq!(overlap(25_000).expected_tokens, 800);
    assert_eq!(overlap(50_000).expected_tokens, 0);
    assert_eq!(overlap(50_000).tokens, 1600);
}

#[test]
fn a_pool_that_keeps_its_blocks_longer_is_better_after_a_wait() {
    let overlap = |queued| {
        let site = Site::new("fra", 0).warm(100).evicting_at(1);
        let site = site.warm_on_disk(100).queued(queued);
        Case::new(2000, vec![site]).score("fra").overlap
    };

    assert_eq!(overlap(0).pool, Some(PoolId(1)));
    assert_eq!(overlap(50_000).pool, Some(PoolId(2)));
    assert_eq!(overlap(50_000).expected_tokens, 400);
}
