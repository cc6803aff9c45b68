//! What a relay says that comes to a site whose past nobody can tell it.

use std::time::Duration;

use kvgrid_tests::dynamo::{Dynamo, KvSource};
use kvgrid_tests::harness::{Conversation, Known};

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

async fn comes_late_and_says_so(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites(&dynamo, source).await;
    let mut conversation = Conversation::new(7, 4000).unwrap();
    let home = grid.turn(&mut conversation).await.unwrap().site;
    grid.until_applied().await.unwrap();
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

    grid.site(&home).stop_worker().await;
    grid.site(&home).start_worker().unwrap();
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
