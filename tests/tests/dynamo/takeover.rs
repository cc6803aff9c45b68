//! What the death of a relay does to a real site that has two, each beside a frontend.

use kvgrid_tests::dynamo::{Dynamo, Grid, KvSource};
use kvgrid_tests::harness::Conversation;

use crate::two_sites_with;

#[tokio::test]
async fn dynamo_site_is_known_by_its_other_relay_when_one_dies() {
    known_by_its_other_relay_when_one_dies(
        "dynamo_site_is_known_by_its_other_relay_when_one_dies",
        KvSource::EngineZmq,
    )
    .await;
}

#[tokio::test]
async fn dynamo_site_is_known_by_its_other_relay_when_one_dies_by_dynamos_events() {
    known_by_its_other_relay_when_one_dies(
        "dynamo_site_is_known_by_its_other_relay_when_one_dies_by_dynamos_events",
        KvSource::DynamoEvents,
    )
    .await;
}

#[tokio::test]
async fn dynamo_site_is_known_by_its_other_relay_when_one_dies_by_dynamos_relay() {
    known_by_its_other_relay_when_one_dies(
        "dynamo_site_is_known_by_its_other_relay_when_one_dies_by_dynamos_relay",
        KvSource::DynamoRelay,
    )
    .await;
}

#[tokio::test]
async fn dynamo_site_is_known_by_its_other_relay_when_one_dies_by_nats_and_etcd() {
    known_by_its_other_relay_when_one_dies(
        "dynamo_site_is_known_by_its_other_relay_when_one_dies_by_nats_and_etcd",
        KvSource::DynamoNats,
    )
    .await;
}

async fn known_by_its_other_relay_when_one_dies(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites_with(&dynamo, |options| {
        options.source = source;
        options.relays = 2;
    })
    .await;
    let mut conversation = Conversation::new(8, 4000).unwrap();
    let home = grid.turn(&mut conversation).await.unwrap().site;
    grid.until_applied().await.unwrap();
    let blocks = grid.known().await.unwrap().blocks(&home);
    let first = known_by(&grid, &home).await;

    grid.kill_relay(&first).unwrap();
    let mut turns = 0;
    while known_by(&grid, &home).await == first || turns == 0 {
        // Also by an edge that has yet to notice: what had no first byte is asked elsewhere.
        // Each time the same, for what is new is yet to be known.
        let turn = grid.turn(&mut conversation.clone()).await.unwrap();
        turns += 1;
        assert_eq!(turn.site, home, "{turn:?}");
        assert!(turn.cached_tokens >= 4000, "{turn:?}");
        let known = grid.known().await.unwrap();
        assert!(known.blocks(&home) >= blocks, "{}", known.blocks(&home));
    }

    grid.until_applied().await.unwrap();
    let turn = grid.turn(&mut conversation).await.unwrap();
    assert_eq!(turn.site, home, "{turn:?}");
    assert_eq!(turn.overlap_tokens, turn.cached_tokens, "{turn:?}");
    assert!(turn.cached_tokens >= 4000, "{turn:?}");
}

async fn known_by(grid: &Grid, site: &str) -> String {
    let known = grid.known().await.unwrap();
    known.site(site).unwrap().known_by.clone().unwrap()
}
