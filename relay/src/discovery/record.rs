//! The entries of Dynamo's discovery, as far as they matter here.

use std::fmt;
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.component, self.endpoint)
    }
}

impl Place {
    /// Whether this may be where the other is, for not all of it may be told.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        let fits = |one: &str, other: &str| one.is_empty() || other.is_empty() || one == other;
        self.namespace == other.namespace
            && fits(&self.component, &other.component)
            && fits(&self.endpoint, &other.endpoint)
    }
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
        #[serde(flatten)]
        scope: WrittenScope,
        topic: String,
        instance_id: u64,
        transport: WrittenTransport,
    },
    EventSource {
        #[serde(flatten)]
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

/// An endpoint; before Dynamo 1.5 a component, or an empty one for a whole namespace.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenScope {
    Endpoint {
        scope: EndpointScope,
    },
    Component {
        namespace: String,
        component: String,
    },
}

#[derive(Deserialize)]
struct EndpointScope {
    endpoint: Place,
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
        match self {
            Self::Endpoint { scope } => scope.endpoint,
            Self::Component {
                namespace,
                component,
            } => Place {
                namespace,
                component,
                endpoint: String::new(),
            },
        }
    }
}

impl WrittenTransport {
    fn read(self) -> Transport {
        let text = |key| self.config.get(key).and_then(Value::as_str);
        let (endpoint, prefix) = (text("endpoint"), text("subject_prefix"));
        match (self.kind.as_str(), endpoint, prefix) {
            ("Zmq", Some(endpoint), _) if endpoint.starts_with("tcp://") => {
                Transport::Zmq(endpoint.to_owned())
            }
            ("Nats", _, Some(prefix)) if is_subject(prefix) => Transport::Nats(prefix.to_owned()),
            _ => Transport::Other(self.kind),
        }
    }
}

/// Most bytes of a subject.
const SUBJECT_BYTES: usize = 1024;

/// Whether this is a NATS subject that stands for itself alone.
fn is_subject(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_graphic() && !b"*>".contains(&b))
    };
    text.len() <= SUBJECT_BYTES && text.split('.').all(is_part)
}
