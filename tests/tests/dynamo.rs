//! Tests with real Dynamo sites; they take turns, one at a time on the machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::num::NonZeroU32;

use http::StatusCode;
use kvgrid_core::block::{HashFormat, HashSeed, chain_hashes};
use kvgrid_tests::dynamo::{Dynamo, Site, SiteOptions};
use serde_json::{Value, json};

#[tokio::test]
async fn dynamo_site_serves_and_publishes_events() {
    let Some(dynamo) = Dynamo::for_test("dynamo_site_serves_and_publishes_events") else {
        return;
    };
    let mut site = Site::start(&dynamo, SiteOptions::named("alone"))
        .await
        .unwrap();
    assert_eq!(site.engine().last_sequence().await.unwrap(), None);

    let first = ask(&site).await;
    let published = site.engine().last_sequence().await.unwrap();
    let again = ask(&site).await;

    let prompt = first.prompt_token_ids().unwrap();
    assert_eq!(first.prompt_tokens(), Some(65));
    assert_eq!(prompt.len(), 65);
    assert_eq!(first.cached_tokens(), Some(0));
    assert_eq!(again.cached_tokens(), Some(64));
    assert!(published.is_some());
    assert!(site.engine().holds(&chain(&prompt)).await.unwrap());
}

#[tokio::test]
async fn dynamo_site_keeps_its_cache_without_frontend_and_loses_it_with_the_worker() {
    let Some(dynamo) = Dynamo::for_test(
        "dynamo_site_keeps_its_cache_without_frontend_and_loses_it_with_the_worker",
    ) else {
        return;
    };
    let mut site = Site::start(&dynamo, SiteOptions::named("alone"))
        .await
        .unwrap();
    let prompt = ask(&site).await.prompt_token_ids().unwrap();

    site.kill_frontend();
    assert!(
        site.post("/v1/chat/completions", &question())
            .await
            .is_err()
    );
    site.start_frontend().unwrap();
    site.until_serving().await.unwrap();
    let after_frontend = ask(&site).await;
    site.kill_worker();
    site.start_worker().unwrap();
    site.until_serving().await.unwrap();
    let held_after_worker = site.engine().holds(&chain(&prompt)).await.unwrap();
    let after_worker = site
        .until_answered("/v1/chat/completions", &question())
        .await
        .unwrap();

    assert_eq!(after_frontend.cached_tokens(), Some(64));
    assert!(!held_after_worker);
    assert_eq!(after_worker.cached_tokens(), Some(0));
}

async fn ask(site: &Site) -> kvgrid_tests::dynamo::Answer {
    let answer = site
        .post("/v1/chat/completions", &question())
        .await
        .unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    answer
}

fn question() -> Value {
    let words =
        "the quick brown fox number 1 jumps over the lazy dog again and again and again and again";
    json!({
        "model": "tiny-chat",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": words}],
        "nvext": {"extra_fields": ["prompt_token_ids"]},
    })
}

/// The mocker's names of a prompt's blocks.
fn chain(prompt: &[u32]) -> Vec<u64> {
    let block_size = NonZeroU32::new(16).unwrap();
    chain_hashes(
        prompt,
        block_size,
        HashFormat::Standard,
        HashSeed::default(),
    )
    .into_iter()
    .map(|hash| hash.0)
    .collect()
}
