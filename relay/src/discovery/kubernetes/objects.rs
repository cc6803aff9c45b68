//! The objects of Kubernetes' API, as far as they matter here, and what they say of workers.
//!
//! Kubernetes' own encoder writes empty lists and maps as `null` at times, so these count as
//! empty.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The container that counts as its pod, so that pods are found by those who look for containers.
const MAIN_CONTAINER: &str = "main";

/// Documents of a worker, by names that are unique in the store.
pub(super) type Documents = BTreeMap<String, Vec<u8>>;

/// An object of a collection.
pub(super) trait Object: DeserializeOwned + Send {
    /// What every object has.
    fn meta(&self) -> &Meta;
}

/// What every object has.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) uid: String,
    /// The version of the whole collection in which it became as it is.
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    owner_references: Vec<Owner>,
}

#[derive(Clone, Debug, Deserialize)]
struct Owner {
    kind: String,
    uid: String,
}

/// Some objects of a collection.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct Page<T> {
    pub(super) metadata: PageMeta,
    #[serde(default = "Vec::new", deserialize_with = "null_is_empty")]
    pub(super) items: Vec<T>,
}

/// Of which version of the collection a page is, and how to ask for the next one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMeta {
    pub(super) resource_version: String,
    #[serde(default, rename = "continue")]
    pub(super) next: String,
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct WatchEvent<'a> {
    #[serde(rename = "type")]
    pub(super) kind: WatchEventKind,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// What a line of a watch says of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum WatchEventKind {
    Added,
    Modified,
    Deleted,
    /// Nothing, but that nothing else has happened up to its version.
    Bookmark,
    /// The object is a [`Status`]: the watch has ended.
    Error,
}

/// What a bookmark has.
#[derive(Debug, Deserialize)]
pub(super) struct Bookmark {
    pub(super) metadata: Meta,
}

/// Why the server refuses.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) message: String,
}

/// What a worker says of itself.
#[derive(Debug, Deserialize)]
pub(super) struct WorkerMetadata {
    metadata: Meta,
    #[serde(default)]
    spec: Option<WorkerSpec>,
}

#[derive(Debug, Deserialize)]
struct WorkerSpec {
    /// Anything: the server doesn't check it.
    #[serde(default)]
    data: Option<Box<RawValue>>,
}

/// By kind, by a name of each. The requests' endpoints, which it has as well, don't matter here.
#[derive(Deserialize)]
struct WorkerData<'a> {
    #[serde(borrow, default, deserialize_with = "null_is_empty")]
    event_channels: BTreeMap<String, &'a RawValue>,
    #[serde(borrow, default, deserialize_with = "null_is_empty")]
    event_sources: BTreeMap<String, &'a RawValue>,
    #[serde(borrow, default, deserialize_with = "null_is_empty")]
    model_cards: BTreeMap<String, &'a RawValue>,
}

impl Object for WorkerMetadata {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl WorkerMetadata {
    /// Which pod it is of, by uid: a pod's name is that of its successor as well.
    pub(super) fn pod(&self) -> Option<&str> {
        let owners = &self.metadata.owner_references;
        let pod = owners.iter().find(|owner| owner.kind == "Pod")?;
        Some(&pod.uid)
    }

    /// Its documents; none where it has nothing, or nothing that is understood.
    pub(super) fn documents(&self) -> Option<Documents> {
        let data = self.spec.as_ref()?.data.as_ref()?;
        let data: WorkerData<'_> = serde_json::from_str(data.get()).ok()?;
        let kinds = [
            ("event_channels", data.event_channels),
            ("event_sources", data.event_sources),
            ("mdc", data.model_cards),
        ];
        let mut documents = Documents::new();
        for (kind, entries) in kinds {
            for (path, document) in entries {
                // Two workers may give a name of theirs to different things.
                let name = format!("{kind}/{}/{path}", self.metadata.name);
                documents.insert(name, document.get().as_bytes().to_vec());
            }
        }
        Some(documents)
    }
}

/// What an object tells of who is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// The object's name.
    pub(super) object: String,
    /// Who is ready.
    pub(super) workers: BTreeSet<ReadyWorker>,
}

/// A worker that is ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadyWorker {
    /// The name of the resource in which it describes itself.
    pub(super) worker: String,
    /// The uid of its pod.
    pub(super) pod: String,
}

impl ReadyWorker {
    /// What has no uid could be meant for a predecessor of the same name.
    fn new(worker: String, pod: Option<&String>) -> Option<Self> {
        let pod = pod.filter(|uid| !uid.is_empty())?.clone();
        (!worker.is_empty()).then_some(Self { worker, pod })
    }
}

/// Some pods behind a service.
#[derive(Debug, Deserialize)]
pub(super) struct EndpointSlice {
    metadata: Meta,
    #[serde(default, deserialize_with = "null_is_empty")]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default, deserialize_with = "null_is_empty")]
    conditions: Conditions,
    #[serde(default)]
    target_ref: Option<TargetRef>,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    /// Kubernetes says that absent means ready; Dynamo takes it for not ready, and so it is here.
    #[serde(default)]
    ready: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TargetRef {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    uid: Option<String>,
}

impl Object for EndpointSlice {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl EndpointSlice {
    /// Whose pods are ready.
    pub(super) fn ready(self) -> Ready {
        let ready = self.endpoints.into_iter().filter_map(|endpoint| {
            let target = endpoint.target_ref?;
            let is_ready = endpoint.conditions.ready == Some(true);
            is_ready.then(|| ReadyWorker::new(target.name?, target.uid.as_ref()))?
        });
        Ready {
            workers: ready.collect(),
            object: self.metadata.name,
        }
    }
}

/// A pod.
#[derive(Debug, Deserialize)]
pub(super) struct Pod {
    metadata: Meta,
    #[serde(default, deserialize_with = "null_is_empty")]
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    #[serde(default, deserialize_with = "null_is_empty")]
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(default)]
    ready: bool,
}

impl Object for Pod {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Pod {
    /// Which of its containers are ready.
    pub(super) fn ready(self) -> Ready {
        let Meta { name, uid, .. } = self.metadata;
        let containers = self.status.container_statuses.into_iter();
        let ready = containers.filter(|container| container.ready);
        let ready = ready.filter_map(|container| {
            let worker = match container.name.as_str() {
                MAIN_CONTAINER => name.clone(),
                other => format!("{name}-{other}"),
            };
            ReadyWorker::new(worker, Some(&uid))
        });
        Ready {
            workers: ready.collect(),
            object: name,
        }
    }
}

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
