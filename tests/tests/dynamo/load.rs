//! How busy a site is, as an edge knows it, is what the site's own engines say.

use std::path::Path;
use std::time::Duration;

use kvgrid_tests::dynamo::{Dynamo, EngineRequests, Grid, KvSource, SiteOptions};
use kvgrid_tests::harness::{KnownModelLoad, MODEL};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(30);
/// Tokens of each prompt, none of which is cached.
const PROMPT: u64 = 640;
/// Each of the site's two ranks computes so many requests at once.
const PLACES: u32 = 4;
/// Requests that come by the edge, and past it.
const ASKED: [u64; 2] = [10, 3];

#[tokio::test]
async fn dynamo_load_is_what_the_engines_say() {
    let test = "dynamo_load_is_what_the_engines_say";
    load_is_what_the_engines_say(test, KvSource::EngineZmq).await;
}

#[tokio::test]
async fn dynamo_load_is_what_the_engines_say_by_dynamos_events() {
    let test = "dynamo_load_is_what_the_engines_say_by_dynamos_events";
    load_is_what_the_engines_say(test, KvSource::DynamoEvents).await;
}

#[tokio::test]
async fn dynamo_load_is_what_the_engines_say_by_nats_and_etcd() {
    let test = "dynamo_load_is_what_the_engines_say_by_nats_and_etcd";
    load_is_what_the_engines_say(test, KvSource::DynamoNats).await;
}

#[tokio::test]
async fn dynamo_load_is_what_the_engines_say_by_dynamos_relay() {
    let test = "dynamo_load_is_what_the_engines_say_by_dynamos_relay";
    load_is_what_the_engines_say(test, KvSource::DynamoRelay).await;
}

async fn load_is_what_the_engines_say(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let options = SiteOptions {
        source,
        speedup: 1,
        ranks: 2,
        max_requests: Some(PLACES),
        ..SiteOptions::named("fra")
    };
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    let mut grid = Grid::start(&dynamo, vec![options], program).await.unwrap();
    let all = ASKED.iter().sum();

    let asked = ask(&mut grid);
    let (busy, truth) = until(&mut grid, "all are there", |load, truth| {
        let there = truth.running + truth.waiting == all && truth.waiting > 0;
        there && agrees(load, truth) && kv_use(load) > Some(0.05)
    })
    .await;
    drop(asked);
    let (idle, _) = until(&mut grid, "none is there any more", |load, truth| {
        let gone = truth == EngineRequests::default() && load.requests == Some(0);
        gone && agrees(load, truth) && kv_use(load) < Some(0.01)
    })
    .await;

    let engines = busy.engines.clone().unwrap();
    assert_eq!(busy.requests, Some(all), "{busy:?}");
    assert_eq!(engines.foreign.requests, ASKED[1], "{busy:?}");
    let is_told = told(source);
    let waiting = is_told.tokens.then_some(truth.waiting * PROMPT);
    assert_eq!(engines.waiting_tokens, waiting, "{busy:?}");
    assert_eq!(busy.backlog_tokens, waiting, "{busy:?}");
    assert_eq!(idle.backlog_tokens, is_told.tokens.then_some(0), "{idle:?}");
    let places = is_told.places.then_some(2 * u64::from(PLACES));
    assert_eq!(engines.max_requests, places, "{busy:?}");
    let room = is_told.room.then_some(2 * 2048 * 16);
    assert_eq!(engines.kv_tokens, room, "{busy:?}");
    assert_eq!(engines.ranks, Some(2), "{busy:?}");
    let engines = idle.engines.unwrap();
    // All that was computed of the prompts stays for reuse: of those eight at least.
    let least = 8.0 * 640.0 / (2.0 * 2048.0 * 16.0);
    let cached = engines.kv_cached.map(|share| share >= least);
    assert_eq!(cached, is_told.cached.then_some(true), "{engines:?}");

    let site = grid.site("fra");
    site.kill_workers();
    site.kill_frontend();
    grid.until("nothing is known of the dead", PATIENCE, |known| {
        let load = known.load("fra");
        load.engines.is_none() && load.requests.is_none() && load.backlog_tokens.is_none()
    })
    .await
    .unwrap();
}

/// What a site's kind tells beside how many requests there are.
struct Told {
    /// What waits, in tokens.
    tokens: bool,
    /// How many requests are computed at once.
    places: bool,
    /// How large the cache is.
    room: bool,
    /// What of it is kept for reuse.
    cached: bool,
}

fn told(source: KvSource) -> Told {
    match source {
        // vLLM's page, as the mocker has it, tells no size at all.
        KvSource::EngineZmq => Told {
            tokens: false,
            places: false,
            room: false,
            cached: false,
        },
        KvSource::DynamoEvents | KvSource::DynamoNats | KvSource::DynamoKubernetes => Told {
            tokens: true,
            places: true,
            room: true,
            cached: true,
        },
        // The frontend's page, and a filter that doesn't say who has how much.
        KvSource::DynamoRelay => Told {
            tokens: false,
            places: true,
            room: true,
            cached: false,
        },
    }
}

/// Whether the edge says of running and waiting requests what the engines say.
fn agrees(load: &KnownModelLoad, truth: EngineRequests) -> bool {
    let engines = load.engines.as_ref();
    engines.is_some_and(|engines| {
        engines.running == truth.running && engines.waiting == Some(truth.waiting)
    })
}

/// The share of the cache that requests hold, as the edge knows it.
fn kv_use(load: &KnownModelLoad) -> Option<f64> {
    load.engines.as_ref()?.kv_use
}

/// Waits for what the edge and the engines say at the same time.
async fn until(
    grid: &mut Grid,
    what: &str,
    is: impl Fn(&KnownModelLoad, EngineRequests) -> bool,
) -> (KnownModelLoad, EngineRequests) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = grid.site("fra").engine_requests().await.unwrap();
        let load = grid.known().await.unwrap().load("fra");
        let after = grid.site("fra").engine_requests().await.unwrap();
        if before == after && is(&load, after) {
            return (load, after);
        }
        assert!(Instant::now() < deadline, "not {what}: {load:?}, {after:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Asks for long answers, until this is dropped.
fn ask(grid: &mut Grid) -> JoinSet<()> {
    let ways = [grid.url().to_owned(), grid.site("fra").frontend_url()];
    let mut asked = JoinSet::new();
    let mut number = 0;
    for (way, count) in ways.iter().zip(ASKED) {
        for _ in 0..count {
            number += 1;
            let (url, body) = (format!("{way}/v1/completions"), question(number));
            let client = grid.client();
            asked.spawn(async move {
                // It is given up when it has been looked at.
                let _ = client.post(&url, &body).await;
            });
        }
    }
    asked
}

/// A prompt that shares no block with another.
fn question(number: u64) -> Value {
    let ids: Vec<u64> = (0..PROMPT)
        .map(|at| 10 + (at + 97 * number) % 1900)
        .collect();
    json!({"model": MODEL, "max_tokens": 1200, "prompt": ids})
}
