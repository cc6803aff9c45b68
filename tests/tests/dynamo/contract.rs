//! What Dynamo's frontends and their clients say to each other in headers and statuses passes
//! the grid, but for what another site can do better.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use kvgrid_tests::client::Client;
use kvgrid_tests::dynamo::{Answer, Dynamo, Grid, KvSource};
use kvgrid_tests::harness::MODEL;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::{header, two_sites, two_sites_with};

const PATIENCE: Duration = Duration::from_secs(30);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// Dynamo's frontends take it for the request's own name.
const NAME: &str = "11111111-2222-4333-8444-555555555555";

#[tokio::test]
async fn dynamo_headers_pass_both_ways() {
    let test = "dynamo_headers_pass_both_ways";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites(&dynamo, KvSource::EngineZmq).await;
    let trace = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [
        ("x-request-id", "the-clients-own"),
        ("traceparent", trace.as_str()),
        ("x-dynamo-request-id", NAME),
    ];
    let url = format!("{}/v1/chat/completions", grid.url());

    let answer = grid
        .client()
        .call(http::Method::POST, &url, &headers, &question("hi", 2))
        .await
        .unwrap();

    let told = |headers: &HeaderMap, name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(told(&answer.headers, "x-request-id"), "the-clients-own");
    assert_eq!(answer.json().unwrap()["id"], format!("chatcmpl-{NAME}"));
    let site = told(&answer.headers, "x-kvgrid-site");
    let site = grid.site(&site);
    for said in [
        format!("trace_id=\"{TRACE}\""),
        "x_request_id=\"the-clients-own\"".to_owned(),
    ] {
        site.until_frontend_says(&said).await.unwrap();
    }
}

#[tokio::test]
async fn dynamo_busy_site_is_passed_over_and_a_grid_of_busy_ones_says_so() {
    busy_site_is_passed_over_and_a_grid_of_busy_ones_says_so(
        "dynamo_busy_site_is_passed_over_and_a_grid_of_busy_ones_says_so",
        KvSource::EngineZmq,
    )
    .await;
}

#[tokio::test]
async fn dynamo_busy_site_is_passed_over_and_a_grid_of_busy_ones_says_so_by_dynamos_events() {
    busy_site_is_passed_over_and_a_grid_of_busy_ones_says_so(
        "dynamo_busy_site_is_passed_over_and_a_grid_of_busy_ones_says_so_by_dynamos_events",
        KvSource::DynamoEvents,
    )
    .await;
}

async fn busy_site_is_passed_over_and_a_grid_of_busy_ones_says_so(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites_with(&dynamo, |options| {
        options.source = source;
        options.speedup = 1;
    })
    .await;
    let client = grid.client();
    let chat = format!("{}/v1/chat/completions", grid.url());
    // It makes one site the better one by far.
    let known = question(&"the quick brown fox jumps over ".repeat(400), 2);
    let first: Answer = client.post(&chat, &known).await.unwrap().into();
    let home = header(&first, "x-kvgrid-site");
    let names = grid.site_names();
    let other = names.iter().find(|name| **name != home).unwrap();
    grid.until_applied().await.unwrap();

    let busy = make_busy(&mut grid, &home).await;
    let moved: Answer = client.post(&chat, &known).await.unwrap().into();
    let mut streamed = known.clone();
    streamed["stream"] = true.into();
    let events = client.stream(&chat, &streamed).await.unwrap();
    let passed_over = grid.edge_metrics().await.unwrap();

    assert_eq!(moved.status, StatusCode::OK, "{moved:?}");
    assert_eq!(header(&moved, "x-kvgrid-site"), *other);
    assert_eq!(events.status, StatusCode::OK);
    assert_eq!(events.headers["x-kvgrid-site"], other.as_str());
    let counted = format!("passed_over_total{{site=\"{home}\",reason=\"overloaded\"}} ");
    assert!(passed_over.contains(&counted), "{passed_over}");

    let both = (busy, make_busy(&mut grid, other).await);
    let refused = client.post(&chat, &known).await.unwrap();
    let own = words_of(&client, &grid.site(&home).frontend_url()).await;

    assert_eq!(refused.status.as_u16(), 529, "{refused:?}");
    assert_eq!(refused.json().unwrap(), own);
    drop(both);
    let deadline = Instant::now() + PATIENCE;
    while client.post(&chat, &known).await.unwrap().status != StatusCode::OK {
        assert!(Instant::now() < deadline, "the sites stay busy");
        sleep(Duration::from_millis(50)).await;
    }
}

fn question(content: &str, max_tokens: u32) -> Value {
    json!({"model": MODEL, "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": content}]})
}

/// Gives a site so much to do that its frontend says so, until this is dropped.
async fn make_busy(grid: &mut Grid, site: &str) -> JoinSet<()> {
    let (client, url) = (grid.client(), grid.site(site).frontend_url());
    let threshold = json!({"model": MODEL, "active_decode_blocks_threshold": 0.01});
    let set = format!("{url}/busy_threshold");
    let set = client.post(&set, &threshold).await.unwrap();
    assert_eq!(set.status, StatusCode::OK);
    let mut work = JoinSet::new();
    let (worker, long) = (client.clone(), format!("{url}/v1/chat/completions"));
    work.spawn(async move {
        let long_answer = question(&"a b c d e f g h ".repeat(100), 2000);
        // Whatever becomes of it: the next one comes when there is room again.
        while worker.post(&long, &long_answer).await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    let deadline = Instant::now() + PATIENCE;
    while words_of(&client, &url).await["code"] != 529 {
        assert!(Instant::now() < deadline, "{site} takes everything");
        sleep(Duration::from_millis(50)).await;
    }
    work
}

/// What a frontend says to a short question.
async fn words_of(client: &Client, url: &str) -> Value {
    let url = format!("{url}/v1/chat/completions");
    let answer = client.post(&url, &question("hi", 1)).await.unwrap();
    answer.json().unwrap()
}
