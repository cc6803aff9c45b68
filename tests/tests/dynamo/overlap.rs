//! What the edge knows of real sites is what they have.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use kvgrid_tests::dynamo::{Dynamo, KvSource, Release};
use kvgrid_tests::harness::Conversation;

use crate::prompts::Tokens;
use crate::traffic::{Traffic, requests};
use crate::{ask_settled, header, two_sites, two_sites_with};

#[tokio::test]
async fn dynamo_overlap_is_what_the_site_had_cached() {
    overlap_is_what_the_site_had_cached(
        "dynamo_overlap_is_what_the_site_had_cached",
        (KvSource::EngineZmq, Release::Current),
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_is_what_the_site_had_cached_by_dynamos_events() {
    overlap_is_what_the_site_had_cached(
        "dynamo_overlap_is_what_the_site_had_cached_by_dynamos_events",
        (KvSource::DynamoEvents, Release::Current),
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_is_what_the_site_had_cached_by_dynamos_relay() {
    overlap_is_what_the_site_had_cached(
        "dynamo_overlap_is_what_the_site_had_cached_by_dynamos_relay",
        (KvSource::DynamoRelay, Release::Current),
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_is_what_the_site_had_cached_by_nats_and_etcd() {
    overlap_is_what_the_site_had_cached(
        "dynamo_overlap_is_what_the_site_had_cached_by_nats_and_etcd",
        (KvSource::DynamoNats, Release::Current),
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_is_what_the_site_had_cached_by_kubernetes() {
    overlap_is_what_the_site_had_cached(
        "dynamo_overlap_is_what_the_site_had_cached_by_kubernetes",
        (KvSource::DynamoKubernetes, Release::Current),
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_of_an_older_release_is_what_the_site_had_cached() {
    overlap_is_what_the_site_had_cached(
        "dynamo_overlap_of_an_older_release_is_what_the_site_had_cached",
        (KvSource::EngineZmq, Release::Older),
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_of_an_older_release_is_what_the_site_had_cached_by_dynamos_events() {
    overlap_is_what_the_site_had_cached(
        "dynamo_overlap_of_an_older_release_is_what_the_site_had_cached_by_dynamos_events",
        (KvSource::DynamoEvents, Release::Older),
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_of_an_older_release_is_what_the_site_had_cached_by_nats_and_etcd() {
    overlap_is_what_the_site_had_cached(
        "dynamo_overlap_of_an_older_release_is_what_the_site_had_cached_by_nats_and_etcd",
        (KvSource::DynamoNats, Release::Older),
    )
    .await;
}

async fn overlap_is_what_the_site_had_cached(test: &str, (source, release): (KvSource, Release)) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites_with(&dynamo, |options| {
        options.source = source;
        options.release = release;
        // The cluster of the tests has one worker's pod.
        options.workers = if source == KvSource::DynamoKubernetes {
            1
        } else {
            2
        };
        options.ranks = 2;
        // So few that much of what is asked is evicted again.
        options.blocks = 160;
    })
    .await;
    let tokens = Tokens::new();
    let mut traffic = Traffic::new(2, &tokens);
    let mut places = BTreeSet::new();
    let mut by_site = BTreeMap::new();
    let mut by_kind = BTreeMap::new();

    for number in 0..requests() {
        let question = traffic.next();
        let answer = ask_settled(&mut grid, number, &question).await;

        let said = format!("request {number}: {:?} {:?}", question.kind, answer.headers);
        let prompt = tokens.of(&question);
        assert_eq!(answer.status, StatusCode::OK, "{said}");
        assert_eq!(
            header(&answer, "x-kvgrid-overlap-tokens").parse().ok(),
            answer.cached_tokens(),
            "{said}"
        );
        assert_eq!(answer.prompt_token_ids().as_ref(), Some(&prompt), "{said}");
        assert_eq!(
            header(&answer, "x-kvgrid-prompt-tokens"),
            prompt.len().to_string(),
            "{said}"
        );
        // Workers of two clusters may have one id.
        places.insert((header(&answer, "x-kvgrid-site"), answer.place().unwrap()));
        *by_site.entry(header(&answer, "x-kvgrid-site")).or_insert(0) += 1;
        *by_kind.entry(question.kind).or_insert(0) += 1;
    }

    // The comparison says little unless most ranks and all kinds of requests are in it.
    assert_eq!(by_site.len(), 2, "{by_site:?}");
    assert!(places.len() > 3, "{places:?}");
    assert_eq!(by_kind.len(), 6, "{by_kind:?}");
    let known = grid.known().await.unwrap();
    let pools = known.sites.iter().flat_map(|site| &site.pools);
    let ages: Vec<_> = pools.map(|pool| pool.eviction_age_ms).collect();
    assert!(ages.iter().all(Option::is_some), "{ages:?}");
}

#[tokio::test]
async fn dynamo_conversation_stays_where_it_is_warm() {
    conversation_stays_where_it_is_warm(
        "dynamo_conversation_stays_where_it_is_warm",
        KvSource::EngineZmq,
    )
    .await;
}

#[tokio::test]
async fn dynamo_conversation_stays_where_it_is_warm_by_dynamos_events() {
    conversation_stays_where_it_is_warm(
        "dynamo_conversation_stays_where_it_is_warm_by_dynamos_events",
        KvSource::DynamoEvents,
    )
    .await;
}

#[tokio::test]
async fn dynamo_conversation_stays_where_it_is_warm_by_dynamos_relay() {
    conversation_stays_where_it_is_warm(
        "dynamo_conversation_stays_where_it_is_warm_by_dynamos_relay",
        KvSource::DynamoRelay,
    )
    .await;
}

#[tokio::test]
async fn dynamo_conversation_stays_where_it_is_warm_by_nats_and_etcd() {
    conversation_stays_where_it_is_warm(
        "dynamo_conversation_stays_where_it_is_warm_by_nats_and_etcd",
        KvSource::DynamoNats,
    )
    .await;
}

async fn conversation_stays_where_it_is_warm(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites(&dynamo, source).await;
    let mut conversation = Conversation::new(3, 4000).unwrap();
    let warm = grid.turn(&mut conversation).await.unwrap().site;

    for turn in 2..=8 {
        grid.until_applied().await.unwrap();
        // The other site has nothing to do, this one has.
        let busy = grid.keep_busy(&warm);
        let served = grid.turn(&mut conversation).await.unwrap();
        drop(busy);

        assert_eq!(served.site, warm, "turn {turn}: {served:?}");
        assert!(served.overlap_tokens >= 4000, "turn {turn}: {served:?}");
        assert_eq!(served.overlap_tokens, served.cached_tokens, "turn {turn}");
    }
}
