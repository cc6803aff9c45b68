//! What a worker says on Dynamo's own event plane, heard by a socket of the tests' own.
//!
//! This is the tests' witness where engines have no replay port: it finds the publishers and
//! reads their messages by code that shares nothing with the relay's. The plane has no memory,
//! so that all of a publisher is heard up to some event only once that event is heard.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use zeromq::{Socket as _, SocketRecv as _, SubSocket};

use super::heard::{Envelope, Heard};
use super::nats;
use crate::harness::process::POLL;

/// How long a connection may take: one to a dead port hangs.
const CONNECT: Duration = Duration::from_secs(5);
/// How long workers may take to register.
const REGISTER: Duration = Duration::from_secs(30);
/// Messages that may wait to be looked at.
const WAITING: usize = 4096;

/// A place in a publisher's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The publisher's own id.
    pub publisher: u64,
    /// The sequence of one of its messages.
    pub sequence: u64,
}

/// The publishers of a site's events, one for each rank of each worker.
pub(super) struct Plane {
    way: Way,
    publishers: usize,
    /// Publishers of workers that were killed; their entries stay for a while.
    dead: BTreeSet<u64>,
    listening: Option<Listening>,
    heard: Vec<Heard>,
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
    messages: mpsc::Receiver<Result<Envelope>>,
    /// Those that were heard, or are to be.
    alive: BTreeSet<u64>,
    /// They read the sockets, until this is dropped.
    _ears: JoinSet<()>,
}

impl Plane {
    /// The plane of a site of so many publishers that registers itself here.
    pub(super) fn of_files(discovery: &Path, publishers: usize) -> Self {
        Self::by(Way::Files(discovery.to_owned()), publishers)
    }

    /// The plane of the site of this namespace that publishes here.
    pub(super) fn of_nats(server: SocketAddr, namespace: &str, publishers: usize) -> Self {
        let subject =
            format!("namespace.{namespace}.component.backend.endpoint.generate.kv-events");
        Self::by(Way::Nats { server, subject }, publishers)
    }

    const fn by(way: Way, publishers: usize) -> Self {
        Self {
            way,
            publishers,
            dead: BTreeSet::new(),
            listening: None,
            heard: Vec::new(),
        }
    }

    /// The workers were killed: whoever publishes next is another one.
    pub(super) fn killed(&mut self) {
        if let Way::Files(discovery) = &self.way {
            self.dead
                .extend(entries(discovery).into_iter().map(|(id, _)| id));
        }
        let heard = self.listening.take();
        self.dead
            .extend(heard.into_iter().flat_map(|listening| listening.alive));
    }

    /// Reads on until a block of this name was stored; `None` if it isn't within `patience`.
    pub(super) async fn hear(
        &mut self,
        name: u64,
        patience: Duration,
    ) -> Result<Option<Published>> {
        if self.listening.is_none() {
            self.listening = Some(self.listen().await?);
        }
        let heard = timeout(patience, self.until_stored(name)).await;
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

    /// All that was heard so far, from all publishers.
    pub(super) fn heard(&mut self) -> Result<&[Heard]> {
        while let Some(message) = self.listening.as_mut().and_then(Listening::waiting) {
            self.take(&message?)?;
        }
        Ok(&self.heard)
    }

    async fn until_stored(&mut self, name: u64) -> Result<Published> {
        loop {
            let listening = self.listening.as_mut().context("nobody listens")?;
            let message = listening.messages.recv().await;
            let envelope = message.context("the sockets are gone")??;
            let before = self.heard.len();
            self.take(&envelope)?;
            if self.heard[before..].iter().any(|heard| heard.stores(name)) {
                return Ok(Published {
                    publisher: envelope.publisher_id,
                    sequence: envelope.sequence,
                });
            }
        }
    }

    fn take(&mut self, envelope: &Envelope) -> Result<()> {
        if self.dead.contains(&envelope.publisher_id) {
            return Ok(());
        }
        if let Some(listening) = &mut self.listening {
            listening.alive.insert(envelope.publisher_id);
            let alive = listening.alive.len();
            ensure!(alive <= self.publishers, "{alive} publishers");
        }
        self.heard.extend(envelope.events()?);
        Ok(())
    }

    async fn listen(&self) -> Result<Listening> {
        let (sender, messages) = mpsc::channel(WAITING);
        let mut ears = JoinSet::new();
        let mut alive = BTreeSet::new();
        match &self.way {
            Way::Files(discovery) => {
                for (publisher, endpoint) in self.registered(discovery).await? {
                    alive.insert(publisher);
                    ears.spawn(listen_to(Socket::zmq(&endpoint).await?, sender.clone()));
                }
            }
            Way::Nats { server, subject } => {
                let subscription = nats::Subscription::open(*server, subject);
                let subscription = timeout(CONNECT, subscription)
                    .await
                    .context("no connection to NATS")??;
                ears.spawn(listen_to(Socket::Nats(subscription), sender));
            }
        }
        Ok(Listening {
            messages,
            alive,
            _ears: ears,
        })
    }

    /// Waits until all that are to be there have registered.
    async fn registered(&self, discovery: &Path) -> Result<Vec<(u64, String)>> {
        let deadline = Instant::now() + REGISTER;
        loop {
            let mut alive = entries(discovery);
            alive.retain(|(id, _)| !self.dead.contains(id));
            if alive.len() >= self.publishers {
                return Ok(alive);
            }
            ensure!(Instant::now() < deadline, "only {alive:?} publish");
            sleep(POLL).await;
        }
    }
}

impl Listening {
    /// What has come and was not looked at.
    fn waiting(&mut self) -> Option<Result<Envelope>> {
        self.messages.try_recv().ok()
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

/// Hands on what a socket receives, to its end.
async fn listen_to(mut socket: Socket, messages: mpsc::Sender<Result<Envelope>>) {
    loop {
        let message = socket.next().await;
        let is_last = message.is_err();
        if messages.send(message).await.is_err() || is_last {
            return;
        }
    }
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane")
            .field("way", &self.way)
            .finish_non_exhaustive()
    }
}
