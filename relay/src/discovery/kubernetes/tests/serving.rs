//! Whose entries count, and what they are.

use serde_json::{Value, json};
use tokio::sync::watch;

use super::objects::{pod, resource, slice, worker};
use super::*;
use crate::discovery::tests::{Store as Files, model_card};
use crate::discovery::{Sighting, Store, WorkerRank};

#[tokio::test]
async fn workers_of_ready_pods_are_seen_as_in_any_other_store() {
    let server = ApiServer::start(None).await;
    serve(&server, &["a"]);
    let store = Files::new();
    let whose = WorkerRank { worker: 1, rank: 0 };
    store.register(1, "tcp://10.0.0.1:5000", whose);
    let card = model_card("http://10.0.0.1:9090");
    store.register_model(1, &card);
    let of_files = store.settings();
    let mut of_cluster = of_files.clone();
    of_cluster.store = Store::Kubernetes(settings(&server));

    let mut tasks = JoinSet::new();
    let mut sights = Vec::new();
    let model = kvgrid_core::ModelName::new("tiny-chat").unwrap();
    for settings in [of_files, of_cluster] {
        let (sender, mut sightings) = watch::channel(None);
        tasks.spawn(crate::discovery::watch(settings, model.clone(), sender));
        let seen = sightings.wait_for(|seen| {
            let seen = seen.as_deref();
            seen.is_some_and(|seen| !seen.models.is_empty() && !seen.publishers.is_empty())
        });
        let seen = timeout(Duration::from_secs(20), seen).await;
        sights.push(seen.expect("in time").unwrap().clone().unwrap());
    }

    let [files, cluster] = &sights[..] else {
        panic!("{sights:?}");
    };
    assert!(files.readable && cluster.readable);
    assert_eq!(files.publishers, cluster.publishers);
    assert_eq!(cluster.publishers[&1].worker, Some(whose));
    let models = |seen: &Sighting| Vec::from_iter(seen.models.values().cloned());
    assert_eq!(models(files), models(cluster));
}

#[tokio::test]
async fn changes_of_workers_and_of_their_readiness_are_told() {
    let mut rig = Rig::with(&["a", "b"]).await;

    rig.server.put(WORKERS, worker("c", 3));
    rig.server.delete(WORKERS, "b");
    rig.until_served(&["a"]).await;
    rig.server.put(SLICES, slice("more", &[("c", READY)]));
    rig.until_served(&["a", "c"]).await;
    rig.server.put(SLICES, slice("all", &[("a", Some(false))]));
    rig.until_served(&["c"]).await;
    rig.server.put(SLICES, slice("all", &[("a", READY)]));
    rig.until_served(&["a", "c"]).await;
    rig.server.put(SLICES, slice("all", &[("a", None)]));
    rig.until_served(&["c"]).await;
    rig.server.delete(SLICES, "more");
    rig.until_served(&[]).await;

    assert_eq!(rig.losses, 0);
    let lists = |plural| rig.server.contents().lists(plural);
    assert_eq!((lists(WORKERS), lists(SLICES)), (1, 1));
}

#[tokio::test]
async fn a_pod_in_two_slices_is_ready_until_both_let_it_go() {
    let mut rig = Rig::with(&["a", "b"]).await;

    rig.server.put(SLICES, slice("new", &[("a", READY)]));
    rig.server.put(SLICES, slice("all", &[("b", READY)]));
    rig.server.put(WORKERS, worker("c", 3));
    rig.server.put(SLICES, slice("more", &[("c", READY)]));
    rig.until_served(&["a", "b", "c"]).await;
    rig.server.delete(SLICES, "new");

    rig.until_served(&["b", "c"]).await;
}

#[tokio::test]
async fn a_pod_of_another_life_is_none_that_a_resource_is_of() {
    let mut rig = Rig::with(&["a", "b"]).await;
    let mut second = slice("all", &[("a", READY), ("b", READY)]);
    second["endpoints"][0]["targetRef"]["uid"] = json!("uid-of-another-life");

    rig.server.put(SLICES, second);
    rig.until_served(&["b"]).await;
    let mut anew = worker("a", 3);
    anew["metadata"]["ownerReferences"][0]["uid"] = json!("uid-of-another-life");
    rig.server.put(WORKERS, anew);
    rig.until_served(&["a", "b"]).await;
    // Two lives at once: which of them is over isn't known.
    rig.server.put(SLICES, slice("late", &[("a", READY)]));

    rig.until_served(&["b"]).await;
}

#[tokio::test]
async fn containers_of_a_pod_are_workers_where_they_register_so() {
    let server = ApiServer::start(None).await;
    let channel = |id| json!({"event_channels": {"c": id}});
    server.put(WORKERS, resource("a", "a", &channel(1)));
    server.put(WORKERS, resource("a-second", "a", &channel(2)));
    server.put(WORKERS, resource("a-third", "a", &channel(3)));
    let containers = [("main", true), ("second", true), ("third", false)];
    server.put(PODS, pod("a", &containers));
    let mut settings = settings(&server);
    settings.mode = KubernetesMode::Container;

    let mut rig = Rig::start(server, settings);
    rig.until_served(&["a", "a-second"]).await;
    rig.server
        .put(PODS, pod("a", &[("main", false), ("third", true)]));

    rig.until_served(&["a-third"]).await;
    assert_eq!(rig.server.contents().lists(SLICES), 0);
}

#[tokio::test]
async fn an_empty_map_may_be_null_or_absent() {
    let mut rig = Rig::with(&["a", "b"]).await;
    let of = |rig: &Rig, name: &str| {
        let prefix = format!("/{name}/");
        rig.entries
            .keys()
            .filter(|key| key.contains(&prefix))
            .count()
    };
    assert_eq!((of(&rig, "a"), of(&rig, "b")), (3, 3));

    let mut null = worker("a", 1);
    null["spec"]["data"]["event_channels"] = Value::Null;
    rig.server.put(WORKERS, null);
    rig.until(|rig| of(rig, "a") == 2).await;
    let mut absent = worker("a", 1);
    let data = absent["spec"]["data"].as_object_mut().unwrap();
    data.remove("event_sources");
    data.remove("endpoints");
    rig.server.put(WORKERS, absent);

    rig.until(|rig| {
        of(rig, "a") == 2
            && rig
                .entries
                .keys()
                .any(|key| key.starts_with("event_channels/a/"))
    })
    .await;
    assert_eq!(of(&rig, "b"), 3);
}

#[tokio::test]
async fn a_resource_that_says_nothing_is_as_it_was_while_it_is_the_same() {
    let mut rig = Rig::with(&["a", "b"]).await;
    let empty = resource("a", "a", &Value::Null);
    let mut other = empty.clone();
    other["metadata"]["uid"] = json!("of-another");

    rig.server.put(WORKERS, empty);
    rig.server
        .put(WORKERS, resource("b", "b", &json!("what is this")));
    rig.server.put(WORKERS, worker("c", 3));
    rig.server.put(SLICES, slice("more", &[("c", READY)]));
    rig.until_served(&["a", "b", "c"]).await;
    rig.server.put(WORKERS, other);

    rig.until_served(&["b", "c"]).await;
}
