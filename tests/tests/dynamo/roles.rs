//! Sites where some workers compute prompts and others answer.

use std::time::Duration;

use http::StatusCode;
use kvgrid_tests::dynamo::{Dynamo, Grid, Held, KvSource};
use kvgrid_tests::harness::{Conversation, Known};

use crate::prompts::{Tokens, depth, overlap};
use crate::traffic::{Traffic, requests};
use crate::{ask_settled, header, two_sites_with};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn dynamo_overlap_of_a_disaggregated_site_is_what_was_cached() {
    let test = "dynamo_overlap_of_a_disaggregated_site_is_what_was_cached";
    overlap_is_what_was_cached(test, KvSource::EngineZmq).await;
}

#[tokio::test]
async fn dynamo_overlap_of_a_disaggregated_site_is_what_was_cached_by_dynamos_events() {
    let test = "dynamo_overlap_of_a_disaggregated_site_is_what_was_cached_by_dynamos_events";
    overlap_is_what_was_cached(test, KvSource::DynamoEvents).await;
}

/// The mocker says what the worker that answers had cached. That one is given the same prompts
/// as the one that computes them, and neither evicts any: so both have the same.
async fn overlap_is_what_was_cached(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites_with(&dynamo, |options| {
        (options.source, options.prefill_workers) = (source, 1);
        options.blocks = 16_384;
    })
    .await;
    let tokens = Tokens::new();
    let mut traffic = Traffic::new(6, &tokens);
    let mut reused = 0;

    for number in 0..requests() {
        let question = traffic.next();
        let answer = ask_settled(&mut grid, number, &question).await;

        let said = format!("request {number}: {:?} {:?}", question.kind, answer.headers);
        let told: Option<u64> = header(&answer, "x-kvgrid-overlap-tokens").parse().ok();
        assert_eq!(answer.status, StatusCode::OK, "{said}");
        assert_eq!(told, answer.cached_tokens(), "{said}");
        reused += told.unwrap_or(0);
    }

    assert!(reused > 0);
}

/// What a site's workers say they hold, of all that was heard of them.
fn held(grid: &mut Grid, site: &str) -> Held {
    let mut held = Held::default();
    for heard in grid.site(site).heard().unwrap() {
        held.apply(heard);
    }
    held
}

#[tokio::test]
async fn dynamo_overlap_of_a_disaggregated_site_is_what_its_prefill_workers_hold() {
    let test = "dynamo_overlap_of_a_disaggregated_site_is_what_its_prefill_workers_hold";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites_with(&dynamo, |options| {
        options.source = KvSource::DynamoEvents;
        (options.workers, options.prefill_workers) = (2, 2);
        // So few that much of what is asked is evicted again, here and there something else.
        options.blocks = 160;
    })
    .await;
    for name in grid.site_names() {
        grid.site(&name).listen().await.unwrap();
    }
    let tokens = Tokens::new();
    let mut traffic = Traffic::new(7, &tokens);
    let (mut reused, mut differ) = (0, 0);

    for number in 0..requests() {
        let question = traffic.next();
        grid.until_applied().await.unwrap();
        let names = grid.site_names();
        let holds = names
            .iter()
            .map(|name| (name.clone(), held(&mut grid, name)));
        let holds: Vec<_> = holds.collect();
        let answer = grid.post(question.path, &question.body).await.unwrap();

        let site = header(&answer, "x-kvgrid-site");
        let (_, held) = holds.iter().find(|(name, _)| *name == site).unwrap();
        let prompt = tokens.of(&question);
        let best = held.all().map(|held| depth(held, &prompt)).max();
        let expected = overlap(best.unwrap_or(0), prompt.len());
        let told: u64 = header(&answer, "x-kvgrid-overlap-tokens").parse().unwrap();
        let said = format!("request {number}: {:?} {:?}", question.kind, answer.headers);
        assert_eq!(told, expected, "{said}");
        reused += told;
        differ += usize::from(answer.cached_tokens() != Some(told));
    }

    assert!(reused > 0);
    // Else it would not show whose blocks count.
    assert!(differ > 0);
}

#[tokio::test]
async fn dynamo_blocks_of_workers_that_only_decode_count_for_nothing() {
    let test = "dynamo_blocks_of_workers_that_only_decode_count_for_nothing";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites_with(&dynamo, |options| {
        (options.source, options.prefill_workers) = (KvSource::DynamoEvents, 1);
    })
    .await;
    let mut conversation = Conversation::new(9, 4000).unwrap();
    let home = grid.turn(&mut conversation).await.unwrap().site;
    grid.until_applied().await.unwrap();
    let before = grid.known().await.unwrap();

    let site = grid.site(&home);
    site.restart_prefill_workers().await.unwrap();
    site.until_serving().await.unwrap();
    let cold = |known: &Known| known.complete(&home) && known.blocks(&home) < 10;
    grid.until("nothing is cached", PATIENCE, cold)
        .await
        .unwrap();
    let turn = grid.ask_site(&home, &mut conversation).await.unwrap();
    grid.until_applied().await.unwrap();
    let after = grid.known().await.unwrap();

    assert!(before.blocks(&home) >= 250);
    assert!(turn.cached_tokens >= 4000, "by who answers: {turn:?}");
    // The prompt was computed anew.
    assert!((250..300).contains(&after.blocks(&home)), "{after:#?}");
}
