//! What a worker says on Dynamo's own event plane, heard by a socket of the tests' own.
//!
//! This is the tests' witness where engines have no replay port: it finds the publisher and
//! reads its messages by code that shares nothing with the relay's. The plane has no memory,
//! so that all is heard up to some event only once that event is heard.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use zeromq::{Socket as _, SocketRecv as _, SubSocket};

use super::nats;
use crate::harness::process::POLL;

/// How long a connection may take: one to a dead port hangs.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a worker may take to register.
const REGISTER: Duration = Duration::from_secs(30);

/// A place in a publisher's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The publisher's own id.
    pub publisher: u64,
    /// The sequence of one of its messages.
    pub sequence: u64,
}

/// The worker's publisher of events.
pub(super) struct Plane {
    way: Way,
    /// Publishers of workers that were killed; their entries stay for a while.
    dead: BTreeSet<u64>,
    listening: Option<Listening>,
}

/// How publishers are found and heard.
#[derive(Clone, Debug)]
enum Way {
    /// In files, each at a socket of its own.
    Files(PathBuf),
    /// All by the same subject of a NATS server.
    Nats { server: SocketAddr, subject: String },
}

struct Listening {
    /// Who is heard, once that is known.
    publisher: Option<u64>,
    socket: Socket,
    held: BTreeSet<u64>,
}

impl Plane {
    /// The plane of a site that registers itself here.
    pub(super) fn of_files(discovery: &Path) -> Self {
        Self::by(Way::Files(discovery.to_owned()))
    }

    /// The plane of the site of this namespace that publishes here.
    pub(super) fn of_nats(server: SocketAddr, namespace: &str) -> Self {
        let subject =
            format!("namespace.{namespace}.component.backend.endpoint.generate.kv-events");
        Self::by(Way::Nats { server, subject })
    }

    const fn by(way: Way) -> Self {
        Self {
            way,
            dead: BTreeSet::new(),
            listening: None,
        }
    }

    /// The worker was killed: whoever publishes next is another one.
    pub(super) fn killed(&mut self) {
        if let Way::Files(discovery) = &self.way {
            self.dead
                .extend(entries(discovery).into_iter().map(|(id, _)| id));
        }
        let heard = self.listening.take();
        self.dead
            .extend(heard.and_then(|listening| listening.publisher));
    }

    /// Reads on until a block of this name was stored; `None` if it isn't within `patience`.
    pub(super) async fn hear(
        &mut self,
        name: u64,
        patience: Duration,
    ) -> Result<Option<Published>> {
        let listening = match &mut self.listening {
            Some(listening) => listening,
            None => {
                let listening = self.listen().await?;
                self.listening.insert(listening)
            }
        };
        let heard = timeout(patience, listening.until_stored(name, &self.dead)).await;
        match (heard, &self.way) {
            (Err(_), _) => Ok(None),
            // The server was away: whoever asks again has a new connection.
            (Ok(Err(_)), Way::Nats { .. }) => {
                self.listening = None;
                Ok(None)
            }
            (Ok(heard), _) => heard.map(Some),
        }
    }

    /// The names of the blocks that are held as of what was heard.
    pub(super) fn held(&self) -> BTreeSet<u64> {
        let listening = self.listening.as_ref();
        listening.map_or_else(BTreeSet::new, |listening| listening.held.clone())
    }

    async fn listen(&self) -> Result<Listening> {
        let (publisher, socket) = match &self.way {
            Way::Files(discovery) => {
                let (publisher, endpoint) = self.register(discovery).await?;
                (Some(publisher), Socket::zmq(&endpoint).await?)
            }
            Way::Nats { server, subject } => {
                let subscription = nats::Subscription::open(*server, subject);
                let subscription = timeout(CONNECT, subscription)
                    .await
                    .context("no connection to NATS")??;
                (None, Socket::Nats(subscription))
            }
        };
        Ok(Listening {
            publisher,
            socket,
            held: BTreeSet::new(),
        })
    }

    /// Waits until somebody alive has registered.
    async fn register(&self, discovery: &Path) -> Result<(u64, String)> {
        let deadline = Instant::now() + REGISTER;
        loop {
            let alive = entries(discovery).into_iter();
            let mut alive = alive.filter(|(id, _)| !self.dead.contains(id));
            if let Some(found) = alive.next() {
                return Ok(found);
            }
            ensure!(Instant::now() < deadline, "nobody publishes");
            sleep(POLL).await;
        }
    }
}

/// Publishers of events with their addresses, dead or alive.
fn entries(discovery: &Path) -> Vec<(u64, String)> {
    let files = fs::read_dir(discovery.join("v1/event_channels"));
    let entry = |path: PathBuf| -> Option<(u64, String)> {
        let entry: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let endpoint = entry.pointer("/transport/config/endpoint")?.as_str()?;
        let is_ours = entry.get("topic")?.as_str()? == "kv-events";
        let id = entry.get("instance_id")?.as_u64()?;
        is_ours.then(|| (id, endpoint.to_owned()))
    };
    let files = files.into_iter().flatten().flatten();
    files.filter_map(|file| entry(file.path())).collect()
}

enum Socket {
    Zmq(SubSocket),
    Nats(nats::Subscription),
}

impl Socket {
    async fn zmq(endpoint: &str) -> Result<Self> {
        let mut socket = SubSocket::new();
        timeout(CONNECT, socket.connect(endpoint))
            .await
            .with_context(|| format!("no connection to {endpoint}"))??;
        socket.subscribe("kv-events").await?;
        Ok(Self::Zmq(socket))
    }

    /// The next envelope.
    async fn next(&mut self) -> Result<Envelope> {
        Ok(match self {
            Self::Zmq(socket) => {
                let frames = socket.recv().await?.into_vec();
                let [_topic, _publisher, _sequence, body] = frames.as_slice() else {
                    bail!("a message of {} frames", frames.len());
                };
                rmp_serde::from_slice(body.get(5..).context("a body without a head")?)?
            }
            Self::Nats(subscription) => rmp_serde::from_slice(&subscription.next().await?)?,
        })
    }
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane")
            .field("way", &self.way)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Envelope {
    publisher_id: u64,
    sequence: u64,
    payload: Bytes,
}

/// Binary data; serde's own vectors are lists.
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        from.deserialize_bytes(Visitor)
    }
}

#[derive(Deserialize)]
struct RouterEvent {
    event: Event,
}

#[derive(Deserialize)]
struct Event {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Data {
    Stored { blocks: Vec<Block> },
    Removed { block_hashes: Vec<u64> },
    Cleared,
}

#[derive(Deserialize)]
struct Block {
    block_hash: u64,
}

impl Listening {
    async fn until_stored(&mut self, name: u64, dead: &BTreeSet<u64>) -> Result<Published> {
        loop {
            let envelope = self.socket.next().await?;
            if dead.contains(&envelope.publisher_id) {
                continue;
            }
            let publisher = *self.publisher.get_or_insert(envelope.publisher_id);
            ensure!(envelope.publisher_id == publisher, "another publisher");
            let events: Vec<RouterEvent> = rmp_serde::from_slice(&envelope.payload.0)?;
            let mut found = false;
            for event in events {
                match event.event.data {
                    Data::Stored { blocks } => {
                        found |= blocks.iter().any(|block| block.block_hash == name);
                        self.held
                            .extend(blocks.iter().map(|block| block.block_hash));
                    }
                    Data::Removed { block_hashes } => {
                        for name in block_hashes {
                            self.held.remove(&name);
                        }
                    }
                    Data::Cleared => self.held.clear(),
                }
            }
            if found {
                return Ok(Published {
                    publisher,
                    sequence: envelope.sequence,
                });
            }
        }
    }
}
