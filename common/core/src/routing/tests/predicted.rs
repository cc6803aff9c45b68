//! What was sent somewhere counts as cached there.

use super::*;
use crate::filter::MixKey;
use crate::prediction::{PredictionConfig, Predictions};

/// The prompt of the case was sent to a site before.
fn sent(case: &mut Case, site: &str) -> Predictions {
    let key = MixKey::from_bytes(&[3; 32]);
    let mut all = Predictions::new(PredictionConfig::default(), key);
    let model = ModelName::new(MODEL).unwrap().id();
    case.chains.hash_for(&case.view, model);
    let site = case.view.site(&SiteId::new(site).unwrap()).unwrap();
    let tokens = case.score(site.site.as_str()).overlap.tokens;
    let blocks = sent_beyond(site, model, &case.chains, tokens);
    let place = all.predicted().place(&site.site, model);
    all.note(&place, blocks, NOW + Duration::from_secs(1));
    case.predicted = Some(all.predicted());
    all
}

#[test]
fn a_twin_of_a_request_meets_it() {
    let sites = vec![Site::new("fra", 4), Site::new("iad", 40)];
    let mut case = Case::new(20_000, sites);
    assert_eq!(case.chosen(), "fra");

    let mut all = sent(&mut case, "iad");

    assert_eq!(case.chosen(), "iad");
    let score = case.score("iad");
    // What a pool has shown is told apart from what is only expected.
    assert_eq!((score.overlap.tokens, score.overlap.predicted), (0, 19_984));
    assert_eq!(score.uncached_tokens, 16);
    all.handle_timeout(NOW + Duration::from_secs(1));
    assert_eq!(case.chosen(), "fra");
}

#[test]
fn what_was_sent_extends_what_is_known() {
    let sites = vec![Site::new("fra", 4), Site::new("iad", 20).warm(100)];
    let mut case = Case::new(20_000, sites);

    let all = sent(&mut case, "iad");

    assert_eq!(all.blocks(), 20_000 / 16 - 100);
    let overlap = case.score("iad").overlap;
    assert_eq!((overlap.tokens, overlap.predicted), (1_600, 19_984));
    assert_eq!(overlap.expected_tokens, 19_984);
}

#[test]
fn of_a_site_without_events_what_was_sent_is_all_that_is_known() {
    let sites = vec![Site::new("fra", 4), Site::new("iad", 20).eventless()];
    let mut case = Case::new(20_000, sites);

    let all = sent(&mut case, "iad");

    assert_eq!(all.blocks(), 20_000 / 16);
    let choice = case.decide(1).outcome.unwrap();
    assert_eq!(choice.site.as_str(), "iad");
    assert_eq!(choice.overlap_tokens, 19_984);
    // Sent again, all of it is remembered anew.
    let model = ModelName::new(MODEL).unwrap().id();
    let site = case.view.site(&choice.site).unwrap();
    let again = sent_beyond(site, model, &case.chains, choice.overlap_tokens);
    assert_eq!(again.len(), 20_000 / 16);
}

#[test]
fn a_pool_that_has_nothing_is_believed_against_what_was_sent() {
    let mut case = Case::new(2000, vec![Site::new("fra", 4)]);
    let _sent = sent(&mut case, "fra");

    let choice = case.decide(1).outcome.unwrap();

    assert_eq!(choice.overlap_tokens, 0);
    assert!(choice.uncached_tokens < 100, "{choice:?}");
}

#[test]
fn what_was_just_sent_is_not_evicted_while_the_next_request_waits() {
    let site = Site::new("fra", 0).warm(50).queued(25_000);
    let mut case = Case::new(2000, vec![site.evicting_at(1)]);
    let alone = case.score("fra").overlap;
    let _sent = sent(&mut case, "fra");

    let beside = case.score("fra").overlap;

    assert_eq!((alone.tokens, alone.expected_tokens), (800, 400));
    assert_eq!(beside.expected_tokens, 1984);
}
