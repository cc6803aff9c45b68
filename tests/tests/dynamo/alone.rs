//! The harness itself: one site, without kvgrid.

use http::StatusCode;
use kvgrid_tests::dynamo::{Answer, Dynamo, Site, SiteOptions};
use serde_json::{Value, json};

use crate::prompts::{Tokens, depth, overlap};
use crate::traffic::Traffic;

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
    assert_eq!(depth(site.engine().held().await.unwrap(), &prompt), 4);
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
    site.kill_workers();
    site.start_workers().unwrap();
    site.until_serving().await.unwrap();
    let depth_after_worker = depth(site.engine().held().await.unwrap(), &prompt);
    let after_worker = site
        .until_answered("/v1/chat/completions", &question())
        .await
        .unwrap();

    assert_eq!(after_frontend.cached_tokens(), Some(64));
    assert_eq!(depth_after_worker, 0);
    assert_eq!(after_worker.cached_tokens(), Some(0));
}

#[tokio::test]
async fn dynamo_engine_has_cached_what_it_announced() {
    let Some(dynamo) = Dynamo::for_test("dynamo_engine_has_cached_what_it_announced") else {
        return;
    };
    // So few that most of what is asked is evicted again.
    let few_blocks = SiteOptions {
        blocks: 512,
        ..SiteOptions::named("alone")
    };
    let mut site = Site::start(&dynamo, few_blocks).await.unwrap();
    let tokens = Tokens::new();
    let mut traffic = Traffic::new(1, &tokens);

    for number in 0..200 {
        let question = traffic.next();
        let held = site.engine().held().await.unwrap().clone();
        let answer = site.post(question.path, &question.body).await.unwrap();

        let prompt = answer.prompt_token_ids().unwrap();
        let announced = overlap(depth(&held, &prompt), prompt.len());
        assert_eq!(
            prompt,
            tokens.of(&question),
            "request {number}: {:?}",
            question.kind
        );
        assert_eq!(
            answer.cached_tokens(),
            Some(announced),
            "request {number}: {:?}",
            question.kind
        );
    }
}

async fn ask(site: &Site) -> Answer {
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
