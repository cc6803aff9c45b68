//! The two sockets of a publisher: its live messages, and its replay of past ones.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use thiserror::Error;
use tokio::time::timeout;
use zeromq::{
    DealerSocket, Socket, SocketEvent, SocketOptions, SocketRecv, SocketSend, SubSocket, ZmqError,
    ZmqMessage,
};

/// How long one attempt to connect may take. A port that is closed is tried again within it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between attempts.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

/// How long to wait for the next message of a replay.
const REPLAY_PATIENCE: Duration = Duration::from_secs(5);

/// Most messages of one replay; engines keep 10,000 unless told otherwise.
const REPLAY_LIMIT: usize = 1_000_000;

/// The sequence that ends a replay.
const REPLAY_END: u64 = u64::MAX;

/// Why a publisher can't be heard. It or the network is at fault; nothing was applied.
#[derive(Debug, Error)]
pub(super) enum SocketError {
    /// The ZeroMQ library failed, mostly because nobody listens.
    #[error(transparent)]
    Zmq(#[from] ZmqError),
    /// The replay stopped before its end.
    #[error("no replay within {REPLAY_PATIENCE:?}")]
    Silent,
    /// The connection broke before the replay's end.
    #[error("disconnected")]
    Disconnected,
    /// The replay doesn't end.
    #[error("more than {REPLAY_LIMIT} messages in a replay")]
    Endless,
}

/// A message with its place in the publisher's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) sequence: u64,
    pub(super) payload: Bytes,
}

impl Numbered {
    /// Sequence and payload are the last two frames; topics and delimiters come before.
    fn read(message: ZmqMessage) -> Option<Self> {
        let mut frames = message.into_vec();
        let payload = frames.pop()?;
        let sequence = frames.pop()?;
        let sequence = u64::from_be_bytes(sequence.as_ref().try_into().ok()?);
        Some(Self { sequence, payload })
    }
}

/// What comes from a live connection.
pub(super) enum Heard {
    /// A message.
    Message(Numbered),
    /// Something that is no message of an engine.
    Noise,
    /// The connection is over.
    Disconnected,
}

/// A live connection to a publisher.
pub(super) struct Subscription {
    socket: SubSocket,
    disconnected: Disconnected,
}

impl Subscription {
    /// Connects, and goes on trying until it succeeds.
    pub(super) async fn open(endpoint: &str, topic: &str) -> Self {
        loop {
            match Self::attempt(endpoint, topic).await {
                Ok(subscription) => return subscription,
                Err(error) => tracing::debug!(endpoint, %error, "Publisher not reached"),
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }

    async fn attempt(endpoint: &str, topic: &str) -> Result<Self, ZmqError> {
        let mut socket = SubSocket::with_options(options());
        let disconnected = Disconnected::of(&mut socket);
        socket.connect(endpoint).await?;
        socket.subscribe(topic).await?;
        Ok(Self {
            socket,
            disconnected,
        })
    }

    /// Waits for what comes next. May be dropped while it waits: nothing is lost.
    pub(super) async fn hear(&mut self) -> Heard {
        // The end of a connection is told after its last message was read.
        tokio::select! {
            message = self.socket.recv() => match message {
                Ok(message) => Numbered::read(message).map_or(Heard::Noise, Heard::Message),
                Err(_) => Heard::Disconnected,
            },
            () = self.disconnected.wait() => Heard::Disconnected,
        }
    }
}

/// Tells when a socket's one connection is over; receiving from the socket would only wait.
struct Disconnected(BoxStream<'static, SocketEvent>);

impl Disconnected {
    /// Watches a socket that is not connected yet.
    fn of(socket: &mut impl Socket) -> Self {
        Self(socket.monitor().boxed())
    }

    /// Waits for the end. May be dropped while it waits.
    async fn wait(&mut self) {
        while let Some(event) = self.0.next().await {
            if matches!(event, SocketEvent::Disconnected(_)) {
                return;
            }
        }
    }
}

/// The address of a publisher's replay socket.
pub(super) struct ReplayPort(pub(super) String);

/// A replay under way.
pub(super) struct Replay {
    socket: DealerSocket,
    disconnected: Disconnected,
    left: usize,
}

impl Replay {
    /// Asks for all messages from a sequence on that the publisher still has.
    pub(super) async fn open(endpoint: &str, from: u64) -> Result<Self, SocketError> {
        let mut socket = DealerSocket::with_options(options());
        let disconnected = Disconnected::of(&mut socket);
        socket.connect(endpoint).await?;
        let mut request = ZmqMessage::from(Bytes::new());
        request.push_back(Bytes::copy_from_slice(&from.to_be_bytes()));
        socket.send(request).await?;
        Ok(Self {
            socket,
            disconnected,
            left: REPLAY_LIMIT,
        })
    }

    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Numbered>, SocketError> {
        loop {
            self.left = self.left.checked_sub(1).ok_or(SocketError::Endless)?;
            let received = async {
                tokio::select! {
                    message = self.socket.recv() => Ok(message?),
                    () = self.disconnected.wait() => Err(SocketError::Disconnected),
                }
            };
            let message = timeout(REPLAY_PATIENCE, received).await;
            let message = message.map_err(|_| SocketError::Silent)??;
            if let Some(message) = Numbered::read(message) {
                return Ok(Some(message).filter(|m| m.sequence != REPLAY_END));
            }
        }
    }
}

fn options() -> SocketOptions {
    let mut options = SocketOptions::default();
    options.connect_timeout(CONNECT_TIMEOUT);
    options
}
