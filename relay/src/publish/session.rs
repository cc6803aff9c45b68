//! One edge's view connection, from hello to its end.
//!
//! The session reads the control stream and owns everything that writes: the control writer,
//! one feed per subscription, the sender of cards. They are tasks of one set, which ends with
//! the session, so nothing of a lost edge stays behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::replication::{Request, SubscriptionId};
use kvgrid_core::{EdgeId, PoolId};
use kvgrid_proto::frame::CONTROL_LIMIT;
use kvgrid_proto::v1::edge_frame::Frame;
use kvgrid_proto::v1::{EdgeFrame, EdgeHello};
use kvgrid_proto::{ConvertError, audit_from_wire, card_digest_from_wire, subscribe_from_wire};
use kvgrid_runtime::frames::{FrameReader, ReadFrameError, WriteFrameError};
use kvgrid_runtime::{CloseReason, PeerConnection};
use quinn::{Connection, SendStream, WriteError};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{Instrument, debug, info, info_span, warn};

use super::Hub;
use super::bucket::Bucket;
use super::card;
use super::control;
use super::feed::{self, Feed};

/// An edge that says nothing for so long after its handshake is none.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Chunks of all subscriptions together that are sent and not yet acknowledged: at most 32 KiB
/// each, or three times that and counted so of whole hashes, they fill a path of 200 Mbit/s and 239 ms, and stay far below what the connection may
/// have unacknowledged, so that deltas and load never wait for room. The edge takes so many
/// streams and a hundred more.
const CHUNKS_UNDER_WAY: usize = 200;
/// Subscriptions at once and then one each; beyond it the control stream is read slower.
const SUBSCRIBE_BURST: u32 = 64;
const SUBSCRIBE_EVERY: Duration = Duration::from_millis(100);
/// Cards asked for and not yet sent: as many as an edge takes models of one relay. Beyond it
/// requests are dropped.
const CARDS_WAITING: usize = 1024;

/// Why a session ended.
#[derive(Debug, Error)]
pub(super) enum SessionError {
    /// The peer opened no control stream in time, or broke it off.
    #[error("no hello")]
    NoHello,
    /// The peer's frame is none; it is at fault.
    #[error("control stream: {0}")]
    Read(#[from] ReadFrameError),
    /// The peer's frame makes no sense; it is at fault.
    #[error("control stream: {0}")]
    Convert(#[from] ConvertError),
    /// A frame of ours is too long, or the connection is lost.
    #[error("control stream: {0}")]
    Write(#[from] WriteFrameError),
    /// The connection is lost.
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    /// A stream is lost, and with it the connection.
    #[error("stream: {0}")]
    Stream(#[from] WriteError),
}

impl SessionError {
    /// Whether the peer did what it must not.
    const fn is_peers_fault(&self) -> bool {
        match self {
            Self::NoHello | Self::Convert(_) => true,
            Self::Read(error) => matches!(error, ReadFrameError::Frame(_)),
            Self::Write(_) | Self::Connection(_) | Self::Stream(_) => false,
        }
    }
}

/// Serves an edge until its connection ends, whoever ends it.
pub(crate) async fn serve(hub: Hub, connection: PeerConnection) {
    let Some((_, edge)) = connection.peer.as_edge() else {
        // The node lets only edges in.
        connection.close(CloseReason::Role);
        return;
    };
    let edge = edge.clone();
    let span = info_span!("view", %edge);
    run(&hub, &edge, &connection).instrument(span).await;
}

async fn run(hub: &Hub, edge: &EdgeId, connection: &PeerConnection) {
    info!(address = %connection.connection.remote_address(), "Edge connected");
    match begin(hub, edge, connection).await {
        Ok(()) => info!("Edge left"),
        Err(SessionError::Connection(error))
            if CloseReason::of(&error) == Some(CloseReason::Unexpected) =>
        {
            warn!("Edge has dialled another relay here: one that advertises our address?");
        }
        Err(error) if error.is_peers_fault() => {
            warn!(%error, "Edge broke the protocol");
            connection.close(CloseReason::Protocol);
        }
        Err(error) => {
            info!(%error, "Edge lost");
            connection.close(CloseReason::Done);
        }
    }
}

/// Serves an edge that means this relay, which it says by its first word: only then the
/// connection takes the place of the one before.
async fn begin(hub: &Hub, edge: &EdgeId, peer: &PeerConnection) -> Result<(), SessionError> {
    let connection = &peer.connection;
    let streams = match hub.0.sessions.arrive() {
        Some(_arriving) => tokio::time::timeout(HELLO_TIMEOUT, hello(connection))
            .await
            .map_err(|_| SessionError::NoHello)??,
        None => {
            warn!("Too many edges that say nothing");
            peer.close(CloseReason::Limit);
            return Ok(());
        }
    };
    if !hub.0.sessions.enter(edge, connection) {
        warn!("Too many edges");
        peer.close(CloseReason::Limit);
        return Ok(());
    }
    let ended = Session::serve(hub, edge, peer, streams).await;
    hub.0.sessions.leave(edge, connection);
    ended
}

struct Session {
    hub: Hub,
    peer: PeerConnection,
    tasks: JoinSet<Result<(), SessionError>>,
    feeds: BTreeMap<PoolId, Subscribed>,
    chunks: Arc<Semaphore>,
    cards: mpsc::Sender<kvgrid_core::view::CardDigest>,
    subscribes: Bucket,
}

/// A pool's present subscription. Taking another one's place aborts it.
struct Subscribed {
    id: SubscriptionId,
    feed: Arc<Feed>,
    task: AbortHandle,
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    async fn serve(
        hub: &Hub,
        edge: &EdgeId,
        peer: &PeerConnection,
        (writer, mut reader): (SendStream, FrameReader),
    ) -> Result<(), SessionError> {
        let (cards, wanted) = mpsc::channel(CARDS_WAITING);
        let mut tasks = JoinSet::new();
        tasks.spawn(control::run(hub.clone(), edge.clone(), writer));
        tasks.spawn(card::run(hub.clone(), peer.connection.clone(), wanted));
        let now = hub.0.config.clock.now();
        let mut session = Self {
            hub: hub.clone(),
            peer: peer.clone(),
            tasks,
            feeds: BTreeMap::new(),
            chunks: Arc::new(Semaphore::new(CHUNKS_UNDER_WAY)),
            cards,
            subscribes: Bucket::full(SUBSCRIBE_BURST, SUBSCRIBE_EVERY, now),
        };
        loop {
            // Reading is cancel safe, and so is waiting for a task.
            tokio::select! {
                frame = reader.read::<EdgeFrame>() => match frame? {
                    Some(frame) => session.take(frame).await?,
                    None => return Ok(()),
                },
                Some(ended) = session.tasks.join_next() => match ended {
                    Ok(ended) => ended?,
                    // A feed whose place was taken.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
            }
        }
    }

    async fn take(&mut self, frame: EdgeFrame) -> Result<(), SessionError> {
        match frame.frame {
            Some(Frame::Subscribe(wire)) => {
                let (pool, request) = subscribe_from_wire(wire)?;
                while let Err(wait) = self.subscribes.take(self.hub.0.config.clock.now()) {
                    tokio::time::sleep(wait).await;
                }
                self.take_request(pool, request);
            }
            Some(Frame::Audit(wire)) => {
                let (pool, request) = audit_from_wire(&wire);
                self.take_request(pool, request);
            }
            Some(Frame::Unsubscribe(wire)) => {
                self.feeds.remove(&PoolId(wire.pool_id));
            }
            Some(Frame::CardRequest(wire)) => {
                let digest = card_digest_from_wire(&wire.digest)?;
                if self.cards.try_send(digest).is_err() {
                    debug!(%digest, "Too many cards asked for");
                }
            }
            Some(Frame::Background(wire)) => self.peer.set_background(wire.on),
            // A second hello changes nothing; what a newer edge may say is not for us.
            Some(Frame::Hello(_)) | None => {}
        }
        Ok(())
    }

    fn take_request(&mut self, pool: PoolId, request: Request) {
        match request {
            Request::Subscribe {
                subscription,
                form,
                resume,
            } => {
                let Some(found) = self.hub.find_pool(pool) else {
                    // The edge will see the next catalog.
                    debug!(pool = pool.0, "Unknown pool subscribed to");
                    return;
                };
                let feed = Arc::new(Feed::new(found, (subscription, form), resume));
                let chunks = Arc::clone(&self.chunks);
                let running = feed::run(Arc::clone(&feed), self.peer.connection.clone(), chunks);
                let task = self.tasks.spawn(running);
                let subscribed = Subscribed {
                    id: subscription,
                    feed,
                    task,
                };
                self.feeds.insert(pool, subscribed);
            }
            Request::Audit { subscription } => {
                if let Some(subscribed) = self.feeds.get(&pool)
                    && subscribed.id == subscription
                {
                    subscribed.feed.request_audit();
                }
            }
        }
    }
}

/// The control stream, once the edge has said its first word.
async fn hello(connection: &Connection) -> Result<(SendStream, FrameReader), SessionError> {
    let (writer, reader) = connection.accept_bi().await?;
    let mut reader = FrameReader::new(reader, CONTROL_LIMIT);
    let Some(first) = reader.read::<EdgeFrame>().await? else {
        return Err(SessionError::NoHello);
    };
    let Some(Frame::Hello(EdgeHello { software })) = first.frame else {
        return Err(SessionError::NoHello);
    };
    debug!(software, "Edge said hello");
    Ok((writer, reader))
}
