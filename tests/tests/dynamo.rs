//! Tests with real Dynamo sites; they take turns, one at a time on the machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use http::StatusCode;
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

    let first = site
        .post("/v1/chat/completions", &question())
        .await
        .unwrap();
    let published = site.engine().last_sequence().await.unwrap();
    let again = site
        .post("/v1/chat/completions", &question())
        .await
        .unwrap();

    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(first.prompt_tokens(), Some(65));
    assert_eq!(first.prompt_token_ids().map(|ids| ids.len()), Some(65));
    assert_eq!(first.cached_tokens(), Some(0));
    assert_eq!(again.cached_tokens(), Some(64));
    assert!(published.is_some());
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
