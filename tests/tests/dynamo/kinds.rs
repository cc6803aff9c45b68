//! Sites of other kinds: an older Dynamo, several workers and ranks, several tiers.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use kvgrid_tests::dynamo::{Dynamo, Grid, KvSource, Release, SiteOptions};
use kvgrid_tests::harness::{Conversation, Known};

use crate::header;
use crate::prompts::Tokens;
use crate::traffic::{Kind, Traffic, requests};

const PATIENCE: Duration = Duration::from_secs(30);

async fn one_site(dynamo: &Dynamo, options: SiteOptions) -> Grid {
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    Grid::start(dynamo, vec![options], program).await.unwrap()
}

#[tokio::test]
async fn dynamo_site_of_an_older_release_is_followed() {
    older_is_followed(
        "dynamo_site_of_an_older_release_is_followed",
        KvSource::EngineZmq,
    )
    .await;
}

#[tokio::test]
async fn dynamo_site_of_an_older_release_is_followed_by_dynamos_events() {
    older_is_followed(
        "dynamo_site_of_an_older_release_is_followed_by_dynamos_events",
        KvSource::DynamoEvents,
    )
    .await;
}

#[tokio::test]
async fn dynamo_site_of_an_older_release_is_followed_by_nats_and_etcd() {
    older_is_followed(
        "dynamo_site_of_an_older_release_is_followed_by_nats_and_etcd",
        KvSource::DynamoNats,
    )
    .await;
}

async fn older_is_followed(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let options = SiteOptions {
        source,
        release: Release::Older,
        ..SiteOptions::named("fra")
    };
    let mut grid = one_site(&dynamo, options).await;
    let mut conversation = Conversation::new(12, 4000).unwrap();

    let first = grid.turn(&mut conversation).await.unwrap();
    grid.until_applied().await.unwrap();
    let known = grid.known().await.unwrap();
    let second = grid.turn(&mut conversation).await.unwrap();

    assert_eq!(first.overlap_tokens, first.cached_tokens, "{first:?}");
    assert!(known.complete("fra"));
    assert!(second.overlap_tokens >= 4000, "{second:?}");
    assert_eq!(second.overlap_tokens, second.cached_tokens, "{second:?}");
}

#[tokio::test]
async fn dynamo_sites_unlike_each_other_are_known_alike() {
    let Some(dynamo) = Dynamo::for_test("dynamo_sites_unlike_each_other_are_known_alike") else {
        return;
    };
    let usual = SiteOptions::named("fra");
    let unlike = SiteOptions {
        source: KvSource::DynamoEvents,
        release: Release::Older,
        block_size: const { NonZeroU32::new(64).unwrap() },
        chat_template: Some(
            "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}",
        ),
        ..SiteOptions::named("iad")
    };
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    let sites = vec![usual, unlike];
    // Only what is cached decides, or one site that happens to be faster would be asked alone.
    let weights = "[policy.weights]\nrtt = 0\nupload = 0\nqueue = 0\nprefill = 0\n";
    let started = Grid::start_with(&dynamo, sites, program, weights).await;
    let mut grid = started.unwrap();
    let tokens = Tokens::new();
    let mut traffic = Traffic::new(5, &tokens);
    let mut reused: BTreeMap<String, u64> = BTreeMap::new();
    // Each has something to begin with that the other doesn't have.
    let mut begun = ["iad", "fra"].into_iter();

    for number in 0..requests() {
        let question = traffic.next();
        if question.kind == Kind::New
            && let Some(site) = begun.next()
        {
            let site = grid.site(site);
            let answer = site.post(question.path, &question.body).await.unwrap();
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        }
        grid.until_applied().await.unwrap();
        let answer = grid.post(question.path, &question.body).await.unwrap();

        let said = format!("request {number}: {:?} {:?}", question.kind, answer.headers);
        let told = header(&answer, "x-kvgrid-overlap-tokens").parse().ok();
        let prompt = header(&answer, "x-kvgrid-prompt-tokens").parse().ok();
        assert_eq!(answer.status, StatusCode::OK, "{said}");
        assert_eq!(told, answer.cached_tokens(), "{said}");
        assert_eq!(prompt, answer.prompt_tokens(), "{said}");
        *reused.entry(header(&answer, "x-kvgrid-site")).or_default() += told.unwrap_or(0);
    }

    let asked: Vec<&str> = reused.keys().map(String::as_str).collect();
    assert_eq!(asked, ["fra", "iad"], "{reused:?}");
    assert!(reused.values().all(|tokens| *tokens > 0), "{reused:?}");
}

#[tokio::test]
async fn dynamo_workers_and_ranks_are_told_apart() {
    workers_and_ranks_are_told_apart(
        "dynamo_workers_and_ranks_are_told_apart",
        KvSource::DynamoEvents,
    )
    .await;
}

#[tokio::test]
async fn dynamo_workers_and_ranks_are_told_apart_by_nats_and_etcd() {
    workers_and_ranks_are_told_apart(
        "dynamo_workers_and_ranks_are_told_apart_by_nats_and_etcd",
        KvSource::DynamoNats,
    )
    .await;
}

async fn workers_and_ranks_are_told_apart(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let options = SiteOptions {
        source,
        workers: 2,
        ranks: 2,
        ..SiteOptions::named("fra")
    };
    let mut grid = one_site(&dynamo, options).await;
    let of = "source=\"dynamo-events\",model=\"tiny-chat\"";
    let feeds = format!("source_feeds{{{of},state=\"whole\"}} 4");
    let mut conversations: Vec<_> = (20..28)
        .map(|seed| Conversation::new(seed, 2000).unwrap())
        .collect();

    for conversation in &mut conversations {
        grid.turn(conversation).await.unwrap();
    }
    let all = 8 * 125;
    grid.until("all blocks are known", PATIENCE, |known| {
        known.blocks("fra") >= all
    })
    .await
    .unwrap();
    // All four have published by now: a publisher's messages say that it is whole.
    grid.until_relay_says("fra", &[&feeds]).await.unwrap();
    for conversation in &mut conversations {
        let turn = grid.turn(conversation).await.unwrap();

        assert!(turn.overlap_tokens >= 2000, "{turn:?}");
        assert_eq!(turn.overlap_tokens, turn.cached_tokens, "{turn:?}");
    }
}

#[tokio::test]
async fn dynamo_blocks_in_host_memory_are_a_pool_of_their_own() {
    let test = "dynamo_blocks_in_host_memory_are_a_pool_of_their_own";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    // The device has room for one conversation and some more.
    let options = SiteOptions {
        source: KvSource::DynamoEvents,
        blocks: 400,
        host_blocks: 4096,
        ..SiteOptions::named("fra")
    };
    let mut grid = one_site(&dynamo, options).await;
    let mut evicted = Conversation::new(30, 4000).unwrap();
    grid.turn(&mut evicted).await.unwrap();
    for seed in 31..33 {
        let mut other = Conversation::new(seed, 4000).unwrap();
        grid.turn(&mut other).await.unwrap();
    }
    grid.until_applied().await.unwrap();

    let has = |known: &Known, blocks: std::ops::Range<u64>| {
        let site = known.site("fra");
        site.is_some_and(|site| site.pools.iter().any(|pool| blocks.contains(&pool.blocks)))
    };
    grid.until("host memory has all", PATIENCE, |known| {
        has(known, 750..4096) && has(known, 1..401)
    })
    .await
    .unwrap();
    let turn = grid.turn(&mut evicted).await.unwrap();

    assert!(turn.overlap_tokens >= 4000, "{turn:?}");
}
