//! What the deaths of a real site's parts do to its place in the grid.

use std::time::Duration;

use kvgrid_tests::dynamo::{Dynamo, Grid, KvSource};
use kvgrid_tests::harness::{Conversation, Turn};
use tokio::time::Instant;

use crate::two_sites;

#[tokio::test]
async fn dynamo_frontend_death_moves_requests_and_keeps_blocks() {
    frontend_death_moves_requests_and_keeps_blocks(
        "dynamo_frontend_death_moves_requests_and_keeps_blocks",
        KvSource::EngineZmq,
    )
    .await;
}

#[tokio::test]
async fn dynamo_frontend_death_moves_requests_and_keeps_blocks_by_dynamos_events() {
    frontend_death_moves_requests_and_keeps_blocks(
        "dynamo_frontend_death_moves_requests_and_keeps_blocks_by_dynamos_events",
        KvSource::DynamoEvents,
    )
    .await;
}

#[tokio::test]
async fn dynamo_frontend_death_moves_requests_and_keeps_blocks_by_dynamos_relay() {
    frontend_death_moves_requests_and_keeps_blocks(
        "dynamo_frontend_death_moves_requests_and_keeps_blocks_by_dynamos_relay",
        KvSource::DynamoRelay,
    )
    .await;
}

#[tokio::test]
async fn dynamo_frontend_death_moves_requests_and_keeps_blocks_by_nats_and_etcd() {
    frontend_death_moves_requests_and_keeps_blocks(
        "dynamo_frontend_death_moves_requests_and_keeps_blocks_by_nats_and_etcd",
        KvSource::DynamoNats,
    )
    .await;
}

async fn frontend_death_moves_requests_and_keeps_blocks(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites(&dynamo, source).await;
    let mut moved = Conversation::new(4, 4000).unwrap();
    let mut resumed = Conversation::new(5, 4000).unwrap();
    let home = grid.turn(&mut moved).await.unwrap().site;
    grid.ask_site(&home, &mut resumed).await.unwrap();
    grid.until_applied().await.unwrap();
    let blocks = grid.known().await.unwrap().blocks(&home);

    grid.site(&home).kill_frontend();
    let killed = Instant::now();
    let next = grid.turn(&mut moved).await.unwrap();
    let left = Duration::from_secs(1).saturating_sub(killed.elapsed());
    let known = grid
        .until("the dead site isn't eligible", left, |known| {
            !known.eligible(&home)
        })
        .await
        .unwrap();
    assert_ne!(next.site, home);
    assert_eq!(known.blocks(&home), blocks);

    grid.site(&home).start_frontend().unwrap();
    grid.site(&home).until_serving().await.unwrap();
    let known = grid
        .until("it is eligible again", Duration::from_secs(10), |known| {
            known.eligible(&home)
        })
        .await
        .unwrap();
    let served = grid.turn(&mut resumed).await.unwrap();
    assert_eq!(known.blocks(&home), blocks);
    assert_eq!(served.site, home, "{served:?}");
    assert!(served.overlap_tokens >= 4000, "{served:?}");
    assert_eq!(served.overlap_tokens, served.cached_tokens);
}

#[tokio::test]
async fn dynamo_worker_death_takes_its_blocks_along() {
    worker_death_takes_its_blocks_along(
        "dynamo_worker_death_takes_its_blocks_along",
        KvSource::EngineZmq,
    )
    .await;
}

#[tokio::test]
async fn dynamo_worker_death_takes_its_blocks_along_by_dynamos_events() {
    worker_death_takes_its_blocks_along(
        "dynamo_worker_death_takes_its_blocks_along_by_dynamos_events",
        KvSource::DynamoEvents,
    )
    .await;
}

#[tokio::test]
async fn dynamo_worker_death_takes_its_blocks_along_by_dynamos_relay() {
    worker_death_takes_its_blocks_along(
        "dynamo_worker_death_takes_its_blocks_along_by_dynamos_relay",
        KvSource::DynamoRelay,
    )
    .await;
}

#[tokio::test]
async fn dynamo_worker_death_takes_its_blocks_along_by_nats_and_etcd() {
    worker_death_takes_its_blocks_along(
        "dynamo_worker_death_takes_its_blocks_along_by_nats_and_etcd",
        KvSource::DynamoNats,
    )
    .await;
}

#[tokio::test]
async fn dynamo_worker_death_takes_its_blocks_along_by_kubernetes() {
    worker_death_takes_its_blocks_along(
        "dynamo_worker_death_takes_its_blocks_along_by_kubernetes",
        KvSource::DynamoKubernetes,
    )
    .await;
}

async fn worker_death_takes_its_blocks_along(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites(&dynamo, source).await;
    let mut conversation = Conversation::new(6, 4000).unwrap();
    let home = grid.turn(&mut conversation).await.unwrap().site;
    grid.until_applied().await.unwrap();
    assert!(grid.known().await.unwrap().blocks(&home) >= 250);

    grid.site(&home).kill_workers();
    let patience = Duration::from_secs(15);
    grid.until("the dead worker's blocks are gone", patience, |known| {
        known.blocks(&home) == 0
    })
    .await
    .unwrap();
    let next = grid.turn(&mut conversation).await.unwrap();
    assert_ne!(next.site, home);

    grid.site(&home).start_workers().unwrap();
    grid.site(&home).until_serving().await.unwrap();
    let first = until_served_by(&grid, &home).await;
    assert_eq!(first.overlap_tokens, first.cached_tokens);
}

/// Asks new questions until one is served by this site.
async fn until_served_by(grid: &Grid, site: &str) -> Turn {
    let deadline = Instant::now() + Duration::from_secs(45);
    for seed in 1000.. {
        let mut question = Conversation::new(seed, 100).unwrap();
        let turn = grid.turn(&mut question).await.unwrap();
        if turn.site == site {
            return turn;
        }
        assert!(Instant::now() < deadline, "{site} isn't used again");
    }
    unreachable!("there are more seeds than seconds")
}
