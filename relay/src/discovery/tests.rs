//! A site's discovery, made by hand.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::files::Files;
use super::polled::Newcomers;
use super::*;

/// What Dynamo 1.6.1's mocker says of the small model, its files served at `base`.
pub(crate) fn model_card(base: &str) -> Value {
    let file = |name: &str| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-chat");
        let bytes = fs::read(dir.join(name)).unwrap();
        json!({
            "path": format!("{base}/{name}"),
            "checksum": format!("blake3:{}", blake3::hash(&bytes)),
            "size": bytes.len(),
        })
    };
    json!({
        "display_name": "tiny-chat", "slug": "tiny-chat", "source_path": "/models/tiny-chat",
        "model_info": {"hf_config_json": file("config.json")},
        "tokenizer": {"hf_tokenizer_json": file("tokenizer.json")},
        "prompt_formatter": {"hf_tokenizer_config_json": file("tokenizer_config.json")},
        "gen_config": {"hf_generation_config_json": file("generation_config.json")},
        "architectural_max_context_length": 131_072, "context_length": 0,
        "kv_cache_block_size": 16, "migration_limit": 0,
        "model_type": "Chat | Completions", "model_input": "Tokens",
        "worker_type": "aggregated", "needs": [],
        "runtime_config": {
            "context_length": 0, "total_kv_blocks": 2048, "max_num_seqs": 256,
            "max_num_batched_tokens": 8192, "tool_call_parser": null, "reasoning_parser": null,
            "tool_call_arguments_format": "json_string",
            "exclude_tools_when_tool_choice_none": true,
            "data_parallel_start_rank": 0, "data_parallel_size": 1,
            "enable_local_indexer": true, "enable_eagle": false,
        },
    })
}

/// A directory that is a site's discovery.
pub(crate) struct Store {
    directory: tempfile::TempDir,
}

const NAMESPACE: &str = "prod";

fn endpoint() -> Value {
    json!({"kind": "endpoint", "endpoint":
        {"namespace": NAMESPACE, "component": "backend", "name": "generate"}})
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn settings(&self) -> DiscoverySettings {
        DiscoverySettings {
            store: super::Store::Files(FileSettings {
                root: self.directory.path().to_owned(),
                interval: Duration::from_millis(20),
                dead_after: Duration::from_secs(10),
            }),
            scope: Scope {
                namespace: NAMESPACE.to_owned(),
                component: None,
                endpoint: None,
            },
        }
    }

    /// Registers a worker's publisher of events, as its process would.
    pub(crate) fn register(&self, publisher: u64, address: &str, worker: WorkerRank) {
        self.write(
            "event_sources",
            &format!("s{publisher:x}"),
            &json!({
                "type": "EventSource", "scope": endpoint(), "topic": "kv-events",
                "publisher_id": publisher,
                "metadata": {
                    "worker": {"worker_id": worker.worker, "dp_rank": worker.rank},
                    "publisher_id": publisher,
                },
            }),
        );
        self.register_channel("kv-events", publisher, address);
    }

    pub(crate) fn register_channel(&self, topic: &str, publisher: u64, address: &str) {
        self.write(
            "event_channels",
            &format!("c{publisher:x}"),
            &json!({
                "type": "EventChannel", "scope": endpoint(), "topic": topic,
                "instance_id": publisher,
                "transport": {"kind": "Zmq", "config": {"endpoint": address}},
            }),
        );
    }

    pub(crate) fn register_model(&self, worker: u64, card: &Value) {
        self.register_model_at("backend", worker, card);
    }

    pub(crate) fn register_model_at(&self, component: &str, worker: u64, card: &Value) {
        self.write(
            "mdc",
            &format!("m{worker:x}"),
            &json!({
                "type": "Model", "namespace": NAMESPACE, "component": component,
                "endpoint": "generate", "instance_id": worker, "card_json": card,
            }),
        );
    }

    pub(crate) fn write(&self, kind: &str, name: &str, entry: &Value) {
        let directory = self.directory.path().join("v1").join(kind);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), entry.to_string()).unwrap();
    }

    /// Makes all of a publisher's entries as old as if nobody had touched them since.
    pub(crate) fn age(&self, publisher: u64, age: Duration) {
        for (kind, prefix) in [("event_sources", "s"), ("event_channels", "c")] {
            let path = self.path(kind, &format!("{prefix}{publisher:x}"));
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
    }

    pub(crate) fn remove_model(&self, worker: u64) {
        fs::remove_file(self.path("mdc", &format!("m{worker:x}"))).unwrap();
    }

    fn files(&self) -> Files {
        Files::new(self.directory.path().to_owned())
    }

    fn path(&self, kind: &str, name: &str) -> PathBuf {
        self.directory.path().join("v1").join(kind).join(name)
    }

    fn read(&self, files: &mut Files) -> Sighting {
        files
            .read(SystemTime::now(), Duration::from_secs(10))
            .unwrap();
        sight(files.live(), &self.settings().scope, true)
    }
}

const WORKER: WorkerRank = WorkerRank { worker: 7, rank: 1 };

#[test]
fn publishers_and_models_of_the_scope_are_seen() {
    let store = Store::new();
    let mut files = store.files();
    let nobody = store.read(&mut files);
    store.register(1, "tcp://127.0.0.1:5000", WORKER);
    store.register_model(7, &model_card("http://127.0.0.1:1"));
    store.write(
        "event_channels",
        "else",
        &json!({
            "type": "EventChannel", "topic": "kv-events", "instance_id": 9,
            "scope": {"kind": "endpoint", "endpoint":
                {"namespace": "test", "component": "backend", "name": "generate"}},
            "transport": {"kind": "Nats", "config": {"subject_prefix": "x"}},
        }),
    );

    let seen = store.read(&mut files);

    assert!(nobody.publishers.is_empty() && nobody.models.is_empty());
    assert_eq!(Vec::from_iter(seen.publishers.keys()), [&1]);
    let publisher = &seen.publishers[&1];
    let address = "tcp://127.0.0.1:5000".to_owned();
    assert_eq!(publisher.transport, Transport::Zmq(address));
    assert_eq!(publisher.worker, Some(WORKER));
    let model = seen.models.values().next().unwrap();
    assert_eq!((model.worker, model.card.worker_blocks()), (7, Some(2048)));
}

#[test]
fn entries_that_nobody_touches_are_dead() {
    let store = Store::new();
    let mut files = store.files();
    store.register(1, "tcp://127.0.0.1:5000", WORKER);
    store.register(2, "tcp://127.0.0.1:5001", WORKER);
    store.age(1, Duration::from_secs(11));
    store.age(2, Duration::from_secs(9));

    let seen = store.read(&mut files);

    assert_eq!(Vec::from_iter(seen.publishers.keys()), [&2]);
}

#[test]
fn a_half_written_entry_is_as_it_was_before() {
    let store = Store::new();
    let mut files = store.files();
    store.register(1, "tcp://127.0.0.1:5000", WORKER);
    store.read(&mut files);
    fs::write(store.path("event_channels", "c1"), "{\"type\":\"EventCh").unwrap();
    fs::write(store.path("event_channels", "c2"), "").unwrap();
    let unfinished = store.path("event_channels", ".tmp_c1");
    fs::copy(store.path("event_sources", "s1"), unfinished).unwrap();

    let halves = store.read(&mut files);
    store.register(1, "tcp://127.0.0.1:6000", WORKER);
    let whole = store.read(&mut files);

    let address = |seen: &Sighting| seen.publishers[&1].transport.clone();
    assert_eq!(
        address(&halves),
        Transport::Zmq("tcp://127.0.0.1:5000".into())
    );
    assert_eq!(
        address(&whole),
        Transport::Zmq("tcp://127.0.0.1:6000".into())
    );
    assert_eq!(whole.publishers.len(), 1);
}

/// As Dynamo 1.3.1 writes them.
const OLDER: [&str; 2] = [
    r#"{"type":"EventChannel","namespace":"prod","component":"backend","topic":"kv-events",
        "instance_id":204445593982664692,"transport":{"kind":"Nats","config":
        {"subject_prefix":"namespace.prod.component.backend"}}}"#,
    r#"{"type":"EventChannel","namespace":"prod","component":"","topic":"kv_metrics",
        "instance_id":3814102481867608372,"transport":{"kind":"Nats","config":
        {"subject_prefix":"namespace.prod"}}}"#,
];

#[test]
fn a_publisher_of_an_older_site_needs_no_endpoint() {
    let store = Store::new();
    let mut files = store.files();
    for (name, entry) in ["a", "b"].into_iter().zip(OLDER) {
        let entry = serde_json::from_str(entry).unwrap();
        store.write("event_channels", name, &entry);
    }

    let seen = store.read(&mut files);

    let worker = &seen.publishers[&204_445_593_982_664_692];
    let prefix = "namespace.prod.component.backend".to_owned();
    assert_eq!(worker.place.component, "backend");
    assert_eq!(worker.transport, Transport::Nats(prefix));
    let generate = Place {
        namespace: "prod".into(),
        component: "backend".into(),
        endpoint: "generate".into(),
    };
    assert!(worker.place.fits(&generate));
    let router = &seen.publishers[&3_814_102_481_867_608_372];
    assert_eq!(router.place.component, "");
}

#[test]
fn a_worker_that_does_not_publish_yet_is_awaited_for_a_while() {
    let store = Store::new();
    let mut files = store.files();
    let mut newcomers = Newcomers::default();
    let start = Instant::now();
    let mut look = |after: u64| {
        let seen = store.read(&mut files);
        newcomers.look(&seen, start + Duration::from_secs(after))
    };

    let nobody = look(0);
    store.register_model(7, &model_card("http://127.0.0.1:1"));
    let new = (look(1), look(2), look(5));
    store.register_model(8, &model_card("http://127.0.0.1:1"));
    let another = look(6);
    store.register(1, "tcp://127.0.0.1:5000", WorkerRank { worker: 8, rank: 0 });
    let published = look(7);

    assert!(!nobody);
    assert_eq!(new, (true, true, false));
    assert!(another && !published);
}
