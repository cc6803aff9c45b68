//! Objects as a cluster has them in which Dynamo 1.6.1 serves.

use serde_json::{Value, json};

use crate::discovery::tests::model_card;

/// The uid of a pod's first life.
pub(super) fn uid(pod: &str) -> String {
    format!("uid-{pod}")
}

/// What the worker in a pod writes of itself, all with one number.
pub(super) fn worker(pod: &str, number: u64) -> Value {
    let endpoint = json!({"namespace": "prod", "component": "backend", "name": "generate"});
    let scope = json!({"kind": "endpoint", "endpoint": endpoint});
    let topic =
        format!("namespace/prod/component/backend/endpoint/generate/topic/kv%2Devents/{number:x}");
    let serving = format!("prod/backend/generate/{number:x}");
    let data = json!({
        "endpoints": {&serving: {
            "type": "Endpoint", "namespace": "prod", "component": "backend",
            "endpoint": "generate", "instance_id": number, "transport": {"tcp": "10.0.0.1:1"},
        }},
        "event_channels": {&topic: {
            "type": "EventChannel", "scope": scope, "topic": "kv-events", "instance_id": number,
            "transport": {"kind": "Zmq", "config": {"endpoint": "tcp://10.0.0.1:5000"}},
            // As its releases before 1.5 read it.
            "namespace": "prod", "component": "backend",
        }},
        "event_sources": {&topic: {
            "type": "EventSource", "scope": scope, "topic": "kv-events", "publisher_id": number,
            "metadata": {"worker": {"worker_id": number, "dp_rank": 0}, "publisher_id": number},
        }},
        "model_cards": {&serving: {
            "type": "Model", "namespace": "prod", "component": "backend",
            "endpoint": "generate", "instance_id": number,
            "card_json": model_card("http://10.0.0.1:9090"),
        }},
    });
    resource(pod, pod, &data)
}

/// A resource that a pod's process writes.
pub(super) fn resource(name: &str, pod: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoWorkerMetadata",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("of-{name}"), "generation": 3,
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid(pod),
                 "controller": true, "blockOwnerDeletion": false},
            ],
            "managedFields": [{"manager": "dynamo-worker", "operation": "Apply"}],
        },
        "spec": {"data": data},
    })
}

/// A slice with these pods, each ready or not, or without a word on that.
pub(super) fn slice(name: &str, pods: &[(&str, Option<bool>)]) -> Value {
    let endpoint = |(pod, ready): &(&str, Option<bool>)| {
        json!({
            "addresses": ["10.0.0.1"], "conditions": {"ready": ready, "serving": true},
            "targetRef": {"kind": "Pod", "name": pod, "namespace": "default", "uid": uid(pod)},
        })
    };
    let endpoints: Vec<_> = pods.iter().map(endpoint).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "default"}, "endpoints": endpoints,
    })
}

/// A pod with these containers, each ready or not.
pub(super) fn pod(name: &str, containers: &[(&str, bool)]) -> Value {
    let status = |(name, ready): &(&str, bool)| json!({"name": name, "ready": ready});
    let statuses: Vec<_> = containers.iter().map(status).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": uid(name)},
        "status": {"phase": "Running", "containerStatuses": statuses},
    })
}
