//! The entries of Dynamo's discovery, as far as they matter here.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{ModelCard, Publisher, ServedModel, Transport, WorkerRank};

/// An endpoint, as Dynamo names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Place {
    /// The namespace.
    pub(crate) namespace: String,
    /// The component; empty where none is told.
    #[serde(default)]
    pub(crate) component: String,
    /// The endpoint; empty where none is told.
    #[serde(default, alias = "name")]
    pub(crate) endpoint: String,
}

/// An entry.
#[derive(Clone, Debug)]
pub(super) enum Record {
    /// A publisher, by its id.
    Channel(u64, Publisher),
    /// For whom a publisher speaks.
    Source {
        place: Place,
        publisher: u64,
        worker: WorkerRank,
    },
    /// A worker's model.
    Model(ServedModel),
    /// Something else.
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Written {
    EventChannel {
        scope: WrittenScope,
        topic: String,
        instance_id: u64,
        transport: WrittenTransport,
    },
    EventSource {
        scope: WrittenScope,
        publisher_id: u64,
        metadata: Value,
    },
    Model {
        #[serde(flatten)]
        place: Place,
        instance_id: u64,
        card_json: Value,
    },
    #[serde(other)]
    Other,
}

/// Endpoint scope, or component scope as before Dynamo 1.5.
#[derive(Deserialize)]
struct WrittenScope {
    endpoint: Option<Place>,
    component: Option<Value>,
    namespace: Option<Value>,
}

#[derive(Deserialize)]
struct WrittenTransport {
    kind: String,
    #[serde(default)]
    config: Value,
}

#[derive(Deserialize)]
struct WrittenWorker {
    worker_id: u64,
    dp_rank: u32,
}

impl Record {
    /// Reads an entry's document.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        Ok(match serde_json::from_slice(bytes)? {
            Written::EventChannel {
                scope,
                topic,
                instance_id,
                transport,
            } => {
                let publisher = Publisher {
                    topic,
                    place: scope.place(),
                    transport: transport.read(),
                    worker: None,
                };
                Self::Channel(instance_id, publisher)
            }
            Written::EventSource {
                scope,
                publisher_id,
                metadata,
            } => match metadata.get("worker").map(WrittenWorker::deserialize) {
                Some(Ok(worker)) => Self::Source {
                    place: scope.place(),
                    publisher: publisher_id,
                    worker: WorkerRank {
                        worker: worker.worker_id,
                        rank: worker.dp_rank,
                    },
                },
                _ => Self::Other,
            },
            Written::Model {
                place,
                instance_id,
                card_json,
            } => Self::Model(ServedModel {
                place,
                worker: instance_id,
                card: Arc::new(ModelCard::parse(card_json)?),
            }),
            Written::Other => Self::Other,
        })
    }

    /// Where it belongs.
    pub(super) fn place(&self) -> Option<&Place> {
        match self {
            Self::Channel(_, publisher) => Some(&publisher.place),
            Self::Source { place, .. } => Some(place),
            Self::Model(model) => Some(&model.place),
            Self::Other => None,
        }
    }
}

impl WrittenScope {
    fn place(self) -> Place {
        let text = |value: Option<&Value>, keys: &[&str]| {
            let value = value?;
            let named = keys.iter().find_map(|key| value.get(key)?.as_str());
            named.or(value.as_str()).map(str::to_owned)
        };
        self.endpoint.unwrap_or_else(|| {
            let component = self.component.as_ref();
            let namespace = text(self.namespace.as_ref(), &["name", "namespace"])
                .or_else(|| component?.get("namespace")?.as_str().map(str::to_owned));
            Place {
                namespace: namespace.unwrap_or_default(),
                component: text(component, &["component", "name"]).unwrap_or_default(),
                endpoint: String::new(),
            }
        })
    }
}

impl WrittenTransport {
    fn read(self) -> Transport {
        let endpoint = self.config.get("endpoint").and_then(Value::as_str);
        match (self.kind.as_str(), endpoint) {
            ("Zmq", Some(endpoint)) if endpoint.starts_with("tcp://") => {
                Transport::Zmq(endpoint.to_owned())
            }
            _ => Transport::Other(self.kind),
        }
    }
}
