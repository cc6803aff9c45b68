//! What a relay says that comes to a site whose past nobody can tell it, or somebody can.

use std::time::Duration;

use kvgrid_tests::dynamo::{Dynamo, Grid, KvSource};
use kvgrid_tests::harness::{Conversation, Known};
use tokio::time::Instant;

use crate::two_sites;

#[tokio::test]
async fn dynamo_relay_that_comes_late_says_so_until_the_worker_starts_anew() {
    comes_late_and_says_so(
        "dynamo_relay_that_comes_late_says_so_until_the_worker_starts_anew",
        KvSource::DynamoEvents,
    )
    .await;
}

#[tokio::test]
async fn dynamo_relay_that_comes_late_says_so_until_the_worker_starts_anew_by_nats_and_etcd() {
    comes_late_and_says_so(
        "dynamo_relay_that_comes_late_says_so_until_the_worker_starts_anew_by_nats_and_etcd",
        KvSource::DynamoNats,
    )
    .await;
}

/// Two sites, a conversation that one of them has cached, and which one.
async fn warm(dynamo: &Dynamo, source: KvSource) -> (Grid, Conversation, String) {
    let mut grid = two_sites(dynamo, source).await;
    let mut conversation = Conversation::new(7, 4000).unwrap();
    let home = grid.turn(&mut conversation).await.unwrap().site;
    grid.until_applied().await.unwrap();
    (grid, conversation, home)
}

async fn comes_late_and_says_so(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let (mut grid, mut conversation, home) = warm(&dynamo, source).await;
    let before = grid.known().await.unwrap();

    grid.restart_relay(&home).await.unwrap();
    let of = "source=\"dynamo-events\",model=\"tiny-chat\"";
    let whole = format!("pool_whole{{{of}}} 0");
    let feed = format!("source_feeds{{{of},state=\"partial\"}} 1");
    grid.until_relay_says(&home, &[&whole, &feed])
        .await
        .unwrap();
    let patience = Duration::from_secs(20);
    let late = grid
        .until("the edge keeps what it had", patience, |known| {
            known.eligible(&home) && known.states(&home) == ["stale"]
        })
        .await
        .unwrap();
    let turn = grid.turn(&mut conversation).await.unwrap();

    grid.site(&home).stop_workers().await;
    grid.site(&home).start_workers().unwrap();
    grid.site(&home).until_serving().await.unwrap();
    let feed = format!("source_feeds{{{of},state=\"whole\"}} 1");
    grid.until_relay_says(&home, &[&feed]).await.unwrap();
    let complete = |known: &Known| known.complete(&home);
    grid.until("all is known again", patience, complete)
        .await
        .unwrap();
    let mut anew = Conversation::new(8, 4000).unwrap();
    grid.ask_site(&home, &mut anew).await.unwrap();
    grid.until_applied().await.unwrap();
    let after = grid.known().await.unwrap();

    assert!(before.blocks(&home) >= 250);
    assert_eq!(late.blocks(&home), before.blocks(&home));
    assert_eq!(turn.site, home, "{turn:?}");
    assert!(turn.cached_tokens >= 4000, "{turn:?}");
    assert_eq!(turn.overlap_tokens, turn.cached_tokens);
    assert!(after.complete(&home));
    assert!((250..300).contains(&after.blocks(&home)), "{after:#?}");
}

#[tokio::test]
async fn dynamo_relay_that_starts_anew_knows_all_at_once_by_dynamos_relay() {
    let test = "dynamo_relay_that_starts_anew_knows_all_at_once_by_dynamos_relay";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let (mut grid, mut conversation, home) = warm(&dynamo, KvSource::DynamoRelay).await;
    let before = grid.known().await.unwrap();

    grid.restart_relay(&home).await.unwrap();
    let other =
        |known: &Known| known.complete(&home) && known.epochs(&home) != before.epochs(&home);
    let patience = Duration::from_secs(20);
    let after = grid.until("all is known again", patience, other).await;
    let turn = grid.turn(&mut conversation).await.unwrap();

    assert_eq!(after.unwrap().blocks(&home), before.blocks(&home));
    assert_eq!(turn.site, home, "{turn:?}");
    assert!(turn.cached_tokens >= 4000, "{turn:?}");
    assert_eq!(turn.overlap_tokens, turn.cached_tokens);
}

#[tokio::test]
async fn dynamo_relays_own_death_leaves_its_blocks_and_its_next_life_brings_the_rest() {
    let test = "dynamo_relays_own_death_leaves_its_blocks_and_its_next_life_brings_the_rest";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let (mut grid, _, home) = warm(&dynamo, KvSource::DynamoRelay).await;
    let before = grid.known().await.unwrap().blocks(&home);

    grid.site(&home).kill_peer();
    let of = "source=\"dynamo-relay\",model=\"tiny-chat\"";
    let feed = format!("source_feeds{{{of},state=\"partial\"}} 2");
    grid.until_relay_says(&home, &[&feed]).await.unwrap();
    let dead = grid.known().await.unwrap();
    // Nobody hears what is asked meanwhile.
    let mut unheard = Conversation::new(8, 4000).unwrap();
    grid.ask_site(&home, &mut unheard).await.unwrap();
    grid.site(&home).start_peer().unwrap();
    let mut least = dead.blocks(&home);
    let deadline = Instant::now() + Duration::from_secs(60);
    let last = loop {
        let known = grid.known().await.unwrap();
        least = least.min(known.blocks(&home));
        if known.complete(&home) && known.blocks(&home) >= before + 250 {
            break known;
        }
        assert!(Instant::now() < deadline, "{known:#?}");
    };
    grid.until_applied().await.unwrap();
    let turn = grid.turn(&mut unheard).await.unwrap();

    assert!(before >= 250);
    assert!(least >= before, "{least} blocks, and {before} before");
    assert!(last.blocks(&home) < before + 300, "{last:#?}");
    assert_eq!(turn.site, home, "{turn:?}");
    assert!(turn.cached_tokens >= 4000, "{turn:?}");
    assert_eq!(turn.overlap_tokens, turn.cached_tokens);
}
