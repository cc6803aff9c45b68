//! Feeds one subscription: frames in order on its stream, chunks each on a stream of its own.
//!
//! The feed polls the publisher when a stream can take more, and holds no more than one write
//! and the chunks under way. The publisher's lock is held for one poll at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use kvgrid_core::filter::Form;
use kvgrid_core::replication::{Chunk, Resume, Subscription, SubscriptionId};
use kvgrid_proto::frame::{self, BULK_LIMIT, FrameError};
use kvgrid_proto::v1::stream_head::Content;
use kvgrid_proto::v1::{PoolStream, StreamHead};
use kvgrid_proto::{chunk_to_wire, frame_to_wire};
use kvgrid_runtime::frames::WriteFrameError;
use kvgrid_runtime::stream::GuardedSend;
use quinn::{Connection, StoppedError, WriteError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::forms::Wanted;
use super::pool::{Lifetime, Pool};
use super::session::SessionError;

const FRAME_PRIORITY: i32 = 0;
const CHUNK_PRIORITY: i32 = -10;
/// Frames are written together up to about so many bytes.
const WRITE_BYTES: usize = 64 * 1024;

/// A subscription and the pool it is of.
pub(super) struct Feed {
    pool: Arc<Pool>,
    id: SubscriptionId,
    form: Form,
    /// Keeps whole hashes published.
    _wanted: Option<Wanted>,
    subscription: Mutex<Subscription>,
    audits: Notify,
}

impl Feed {
    /// In the form that is wanted, if the pool has it.
    pub(super) fn new(
        pool: Arc<Pool>,
        (id, form): (SubscriptionId, Form),
        resume: Option<Resume>,
    ) -> Self {
        let form = pool.form(form);
        let _wanted = (form == Form::Exact).then(|| Wanted::new(&pool));
        let subscription = pool.publishers().filter.subscribe(resume);
        Self {
            pool,
            id,
            form,
            _wanted,
            subscription: Mutex::new(subscription),
            audits: Notify::new(),
        }
    }

    /// Wants the digests of all chunks to be sent.
    pub(super) fn request_audit(&self) {
        self.subscription().request_audit();
        self.audits.notify_one();
    }

    fn subscription(&self) -> MutexGuard<'_, Subscription> {
        // A poll that panicked has at worst forgotten what it would have sent.
        self.subscription
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes the frames that are due, as many as fit in one write.
    fn poll_frames(&self, buffer: &mut BytesMut) -> Result<(), FrameError> {
        let mut subscription = self.subscription();
        while buffer.len() < WRITE_BYTES {
            let polled = match self.pool.publishers().of(self.form) {
                Some(publisher) => publisher.poll_frame(&mut subscription),
                None => None,
            };
            let Some(polled) = polled else { break };
            frame::encode_into(&frame_to_wire(polled), BULK_LIMIT, buffer)?;
        }
        Ok(())
    }

    fn poll_chunk(&self) -> Option<Chunk> {
        let mut subscription = self.subscription();
        if subscription.queued_chunks() == 0 {
            return None;
        }
        let mut publishers = self.pool.publishers();
        publishers.of(self.form)?.poll_chunk(&mut subscription)
    }

    /// Permits that one of its chunks takes, by what it is coded in.
    const fn chunk_permits(&self) -> u32 {
        match self.form {
            Form::Filter => 1,
            Form::Exact => 3,
        }
    }

    fn try_acquire(&self, permits: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let permits = Arc::clone(permits);
        permits.try_acquire_many_owned(self.chunk_permits()).ok()
    }

    async fn acquire(&self, permits: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let permits = Arc::clone(permits);
        permits.acquire_many_owned(self.chunk_permits()).await.ok()
    }

    fn has_chunks(&self) -> bool {
        self.subscription().queued_chunks() > 0
    }
}

/// Feeds until the pool or the connection ends.
pub(super) async fn run(
    feed: Arc<Feed>,
    connection: Connection,
    permits: Arc<Semaphore>,
) -> Result<(), SessionError> {
    let content = Content::Pool(PoolStream {
        pool_id: feed.pool.id().0,
        subscription: feed.id.0,
    });
    let mut stream = open(&connection, FRAME_PRIORITY, content).await?;
    let mut news = feed.pool.news();
    let mut sending = JoinSet::new();
    let mut spare: Option<OwnedSemaphorePermit> = None;
    loop {
        if *news.borrow_and_update() == Lifetime::Withdrawn {
            break;
        }
        let mut buffer = BytesMut::new();
        if let Err(error) = feed.poll_frames(&mut buffer) {
            // Only a bug brings it about; the edge's stall timer begins anew.
            warn!(%error, "Frame is too long");
            return Ok(());
        }
        if !buffer.is_empty() {
            match stream.write(buffer.freeze()).await {
                Ok(()) => continue,
                // The edge wants no more of this.
                Err(WriteError::Stopped(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(permit) = spare.take().or_else(|| feed.try_acquire(&permits))
            && let Some(chunk) = feed.poll_chunk()
        {
            sending.spawn(send_chunk(
                Arc::clone(&feed),
                connection.clone(),
                chunk,
                permit,
            ));
            continue;
        }
        // All of these are cancel safe: a permit that was granted is kept in `spare`.
        tokio::select! {
            _ = news.changed() => {}
            () = feed.audits.notified() => {}
            permit = feed.acquire(&permits), if feed.has_chunks() => {
                spare = permit;
            }
            Some(sent) = sending.join_next() => sent.unwrap_or(Ok(()))?,
        }
    }
    debug!(pool = feed.pool.id().0, "Pool withdrawn");
    stream.finish();
    Ok(())
}

/// A stream of its own that begins with `content`, and is reset if it does not end by itself.
pub(super) async fn open(
    connection: &Connection,
    priority: i32,
    content: Content,
) -> Result<GuardedSend, SessionError> {
    let stream = connection.open_uni().await?;
    // It fails only on a stream that is closed, which the first write will say.
    let _ = stream.set_priority(priority);
    let mut stream = GuardedSend::new(stream);
    let head = StreamHead {
        content: Some(content),
    };
    let head = frame::encode(&head, BULK_LIMIT).map_err(WriteFrameError::from)?;
    match stream.write(head).await {
        // Who does not want the stream says so again where it is used.
        Ok(()) | Err(WriteError::Stopped(_)) => Ok(stream),
        Err(error) => Err(error.into()),
    }
}

/// Sends a chunk and waits until the edge has it, which frees the permit.
async fn send_chunk(
    feed: Arc<Feed>,
    connection: Connection,
    chunk: Chunk,
    permit: OwnedSemaphorePermit,
) -> Result<(), SessionError> {
    let content = Content::Chunk(chunk_to_wire(feed.pool.id(), feed.id, &chunk));
    let stream = open(&connection, CHUNK_PRIORITY, content).await?;
    let stopped = stream.stopped();
    stream.finish();
    match stopped.await {
        Ok(_) | Err(StoppedError::ZeroRttRejected) => {}
        Err(StoppedError::ConnectionLost(error)) => return Err(error.into()),
    }
    drop(permit);
    Ok(())
}
