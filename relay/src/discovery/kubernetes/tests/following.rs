//! How collections are followed, whatever becomes of the connection and the server.

use http::StatusCode;
use serde_json::{Value, json};

use super::api_server::line;
use super::objects::{resource, slice, worker};
use super::*;

#[tokio::test]
async fn a_collection_of_many_pages_is_read_whole() {
    let server = ApiServer::start(None).await;
    let names: Vec<String> = (0..600).map(|number| format!("w{number}")).collect();
    for (number, name) in (1..).zip(&names) {
        server.put(
            WORKERS,
            resource(name, name, &json!({"event_channels": {"c": number}})),
        );
    }
    for (number, some) in names.chunks(2).enumerate() {
        let ready: Vec<_> = some.iter().map(|name| (name.as_str(), READY)).collect();
        server.put(SLICES, slice(&format!("s{number}"), &ready));
    }
    let settings = settings(&server);

    let mut rig = Rig::start(server, settings);
    rig.until(|rig| rig.entries.len() == 600).await;

    let contents = rig.server.contents();
    assert_eq!((contents.lists(WORKERS), contents.lists(SLICES)), (3, 2));
    let lists = contents.seen.iter().filter(|seen| !seen.is_watch());
    for seen in lists {
        assert_eq!(seen.query["limit"], "256");
        let selector = seen.query.get("labelSelector").map(String::as_str);
        match seen.path.as_str() {
            "/apis/nvidia.com/v1alpha1/namespaces/default/dynamoworkermetadatas" => {
                assert_eq!(selector, None);
            }
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices" => {
                assert_eq!(selector, Some("nvidia.com/dynamo-discovery-enabled=true"));
            }
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_watch_is_taken_up_from_the_last_version_it_told() {
    let mut rig = Rig::with(&["a"]).await;
    let listed = rig.server.watched(WORKERS, 1).await;

    rig.server.end(WORKERS);
    let untouched = rig.server.watched(WORKERS, 2).await;
    let bookmark = rig.server.bookmark(WORKERS);
    rig.server.end(WORKERS);
    let after_bookmark = rig.server.watched(WORKERS, 3).await;
    let change = rig.server.put(WORKERS, worker("b", 2));
    rig.server.put(SLICES, slice("more", &[("b", READY)]));
    rig.until_served(&["a", "b"]).await;
    rig.server.end(WORKERS);
    let after_change = rig.server.watched(WORKERS, 4).await;

    assert_eq!(untouched, listed);
    assert_eq!((after_bookmark, after_change), (bookmark, change));
    assert_eq!((rig.losses, rig.server.contents().lists(WORKERS)), (0, 1));
    for seen in rig.server.contents().watches(WORKERS) {
        assert_eq!(seen.query["allowWatchBookmarks"], "true");
        assert_eq!(seen.query["timeoutSeconds"], "300");
    }
}

#[tokio::test]
async fn a_change_may_come_in_pieces() {
    let mut rig = Rig::with(&["a"]).await;
    let mut changed = worker("a", 1);
    changed["metadata"]["resourceVersion"] = json!("5000");
    changed["spec"]["data"]["event_channels"] = Value::Null;
    let whole = line("MODIFIED", &changed);
    let (first, second) = whole.split_at(whole.len() / 3);

    rig.server.say(WORKERS, b"\n".to_vec());
    rig.server.say(WORKERS, first.to_vec());
    rig.server.say(WORKERS, second.to_vec());

    rig.until(|rig| rig.entries.len() == 2).await;
    rig.server.end(WORKERS);
    assert_eq!(rig.server.watched(WORKERS, 2).await, 5000);
    assert_eq!(rig.losses, 0);
}

#[tokio::test]
async fn a_change_in_which_the_connection_breaks_is_told_later() {
    let mut rig = Rig::with(&["a", "b"]).await;
    let before = rig.server.watched(WORKERS, 1).await;

    rig.server.cut_next(WORKERS);
    rig.server.delete(WORKERS, "a");
    rig.until_served(&["b"]).await;
    rig.until(|rig| rig.lost.is_none()).await;

    assert_eq!(rig.server.watched(WORKERS, 2).await, before);
    assert_eq!((rig.losses, rig.server.contents().lists(WORKERS)), (1, 1));
}

#[tokio::test]
async fn a_version_that_is_too_old_makes_all_be_read_anew() {
    let expired = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "old"});
    for in_stream in [false, true] {
        let mut rig = Rig::with(&["a", "b"]).await;

        // No watch is told of what happens.
        rig.server.contents().refusal = Some((WORKERS, StatusCode::SERVICE_UNAVAILABLE, "wait"));
        rig.server.end(WORKERS);
        rig.until(|rig| rig.lost.is_some()).await;
        rig.server.delete(WORKERS, "a");
        rig.server.compact(!in_stream);
        rig.server.contents().refusal = None;
        if in_stream {
            rig.until(|rig| rig.lost.is_none()).await;
            rig.server.say(WORKERS, line("ERROR", &expired));
        }
        rig.server
            .until(|contents| contents.lists(WORKERS) == 2)
            .await;

        rig.until_served(&["b"]).await;
        rig.until(|rig| rig.lost.is_none()).await;
        assert_eq!(rig.server.contents().lists(SLICES), 1);
    }
}

#[tokio::test]
async fn what_is_not_understood_of_a_watch_makes_all_be_read_anew() {
    let nameless = json!({"metadata": {"name": "a"}});
    let unknown = b"{\"type\":\"MOVED\",\"object\":{}}\n".to_vec();
    let endless = vec![b' '; (8 << 20) + 1];
    for bytes in [b"{]\n".to_vec(), unknown, line("ADDED", &nameless), endless] {
        let mut rig = Rig::with(&["a"]).await;

        rig.server.say(WORKERS, bytes);
        rig.until(|rig| rig.lost.is_some()).await;
        rig.until(|rig| rig.lost.is_none()).await;

        assert_eq!(rig.workers(), ["a"].into());
        assert_eq!(rig.server.contents().lists(WORKERS), 2);
    }
}

#[tokio::test]
async fn a_server_that_is_away_takes_nothing_along_and_may_return_with_less() {
    let mut rig = Rig::with(&["a", "b", "c"]).await;

    rig.server.set_away(true);
    rig.until(|rig| rig.losses == 2).await;
    rig.server.delete(WORKERS, "a");
    rig.server
        .put(SLICES, slice("all", &[("a", READY), ("b", READY)]));
    rig.server.compact(true);
    assert_eq!(rig.workers(), ["a", "b", "c"].into());
    rig.server.set_away(false);

    rig.until_served(&["b"]).await;
    rig.until(|rig| rig.lost.is_none()).await;
}

#[tokio::test]
async fn a_server_that_is_away_for_a_moment_is_followed_on() {
    let mut rig = Rig::with(&["a", "b"]).await;

    rig.server.set_away(true);
    rig.until(|rig| rig.losses == 2).await;
    rig.server.delete(WORKERS, "a");
    rig.server.set_away(false);

    rig.until(|rig| rig.lost.is_none()).await;
    rig.until_served(&["b"]).await;
    let lists = |plural| rig.server.contents().lists(plural);
    assert_eq!((lists(WORKERS), lists(SLICES)), (1, 1));
}
