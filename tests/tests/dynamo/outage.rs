//! What becomes of a site's place in the grid while etcd or NATS is away.

use std::time::Duration;

use kvgrid_tests::dynamo::{Dynamo, KvSource};
use kvgrid_tests::harness::Conversation;

use crate::two_sites;

const OF: &str = "source=\"dynamo-events\",model=\"tiny-chat\"";

#[tokio::test]
async fn dynamo_site_stays_known_while_etcd_is_away() {
    let Some(dynamo) = Dynamo::for_test("dynamo_site_stays_known_while_etcd_is_away") else {
        return;
    };
    let mut grid = two_sites(&dynamo, KvSource::DynamoNats).await;
    let mut conversation = Conversation::new(9, 4000).unwrap();
    let home = grid.turn(&mut conversation).await.unwrap().site;
    grid.until_applied().await.unwrap();
    let before = grid.known().await.unwrap().blocks(&home);

    grid.site(&home).services().kill_etcd();
    let (stale, whole) = (
        format!("pool_whole{{{OF}}} 0"),
        format!("pool_whole{{{OF}}} 1"),
    );
    grid.until_relay_says(&home, &[&stale]).await.unwrap();
    let away = grid.known().await.unwrap().blocks(&home);
    let turn = grid.turn(&mut conversation).await.unwrap();
    grid.site(&home).services().start_etcd().await.unwrap();
    grid.until_relay_says(&home, &[&whole]).await.unwrap();
    grid.until_applied().await.unwrap();
    let after = grid.turn(&mut conversation).await.unwrap();

    assert!(before >= 250);
    assert_eq!(away, before);
    assert_eq!(turn.site, home, "{turn:?}");
    assert!(turn.cached_tokens >= 4000, "{turn:?}");
    assert_eq!(after.site, home, "{after:?}");
    assert_eq!(after.overlap_tokens, after.cached_tokens, "{after:?}");
}

#[tokio::test]
async fn dynamo_edge_is_never_told_more_than_there_is_after_nats_was_away() {
    let test = "dynamo_edge_is_never_told_more_than_there_is_after_nats_was_away";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites(&dynamo, KvSource::DynamoNats).await;
    let mut conversation = Conversation::new(10, 4000).unwrap();
    let home = grid.turn(&mut conversation).await.unwrap().site;
    grid.until_applied().await.unwrap();

    grid.site(&home).services().kill_nats();
    let connecting = format!("source_feeds{{{OF},state=\"connecting\"}} 1");
    grid.until_relay_says(&home, &[&connecting]).await.unwrap();
    let mut unheard = Conversation::new(11, 4000).unwrap();
    grid.ask_site(&home, &mut unheard).await.unwrap();
    grid.site(&home).services().start_nats().await.unwrap();
    let connected = format!("source_feeds{{{OF},state=\"connecting\"}} 0");
    grid.until_relay_says(&home, &[&connected]).await.unwrap();
    grid.until_applied().await.unwrap();
    let known = grid.known().await.unwrap();
    let turn = grid.turn(&mut conversation).await.unwrap();
    let later = grid.turn(&mut unheard).await.unwrap();

    // Whatever was lost meanwhile, the site's publisher and its pool are followed again.
    assert!(known.eligible(&home));
    for turn in [turn, later] {
        assert!(turn.overlap_tokens <= turn.cached_tokens, "{turn:?}");
    }
    tokio::time::timeout(Duration::from_secs(30), grid.until_applied())
        .await
        .unwrap()
        .unwrap();
}
