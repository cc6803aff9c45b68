//! Reads what a relay sends on a view connection and turns it into events.
//!
//! Each stream has a reader of its own; all of them share one bounded channel, so a session that
//! is busy stops the streams, by QUIC's flow control, instead of filling memory.

use bytes::Bytes;
use kvgrid_core::PoolId;
use kvgrid_core::replication::{Chunk, Frame, SubscriptionId};
use kvgrid_core::view::CardDigest;
use kvgrid_proto::frame::{BULK_LIMIT, CONTROL_LIMIT};
use kvgrid_proto::v1;
use kvgrid_runtime::frames::{FrameReader, ReadFrameError};
use quinn::{Connection, RecvStream};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Most bytes of a card; a large tokenizer has 30 MB.
pub(super) const CARD_LIMIT: usize = 64 * 1024 * 1024;

/// Events that wait for the session; at the bound the streams wait.
pub(super) const EVENTS: usize = 32;

/// What came from the relay.
#[derive(Debug)]
pub(super) enum Inbound {
    Control(v1::relay_frame::Frame),
    Pool(PoolId, SubscriptionId, Frame),
    PoolEnd(PoolId, SubscriptionId),
    Chunk(PoolId, SubscriptionId, Chunk),
    Card(CardDigest, Bytes),
}

/// Why a stream's content is not taken: the relay is at fault, unless the connection broke.
#[derive(Debug, Error)]
pub(super) enum InboundError {
    #[error(transparent)]
    Frame(#[from] ReadFrameError),
    #[error(transparent)]
    Field(#[from] kvgrid_proto::ConvertError),
    #[error("card of {0} bytes, more than {CARD_LIMIT}")]
    CardLength(u64),
    #[error("card: {0}")]
    Card(#[from] quinn::ReadToEndError),
    #[error("{0}")]
    Connection(#[from] quinn::ConnectionError),
    #[error("the control stream ended")]
    ControlEnded,
}

/// The session took an event, or is gone.
type Delivered = Result<(), mpsc::error::SendError<Inbound>>;

/// Reads the control stream until it ends or breaks.
pub(super) async fn read_control(
    stream: RecvStream,
    events: mpsc::Sender<Inbound>,
) -> InboundError {
    let mut reader = FrameReader::new(stream, CONTROL_LIMIT);
    loop {
        match reader.read::<v1::RelayFrame>().await {
            Ok(Some(v1::RelayFrame { frame: Some(frame) })) => {
                if events.send(Inbound::Control(frame)).await.is_err() {
                    return InboundError::ControlEnded;
                }
            }
            // A kind that we don't know: from a newer relay.
            Ok(Some(v1::RelayFrame { frame: None })) => {}
            Ok(None) => return InboundError::ControlEnded,
            Err(error) => return error.into(),
        }
    }
}

/// Takes the relay's streams and reads each until the connection ends or one of them makes no
/// sense. Dropping the future stops all readers.
pub(super) async fn read_streams(
    connection: Connection,
    events: mpsc::Sender<Inbound>,
) -> InboundError {
    let mut readers = JoinSet::new();
    loop {
        // Both arms are cancel safe: a stream not accepted stays queued, a reader not joined
        // stays in the set.
        tokio::select! {
            accepted = connection.accept_uni() => match accepted {
                Ok(stream) => {
                    readers.spawn(read_stream(stream, events.clone()));
                }
                Err(error) => return error.into(),
            },
            Some(ended) = readers.join_next() => match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) if is_reset(&error) => {}
                Ok(Err(error)) => return error,
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            },
        }
    }
}

/// A relay resets a stream that it gives up, and keeps the connection.
fn is_reset(error: &InboundError) -> bool {
    match error {
        InboundError::Frame(ReadFrameError::Stream(quinn::ReadError::Reset(_)))
        | InboundError::Card(quinn::ReadToEndError::Read(quinn::ReadError::Reset(_))) => true,
        InboundError::Frame(_)
        | InboundError::Card(_)
        | InboundError::Field(_)
        | InboundError::CardLength(_)
        | InboundError::Connection(_)
        | InboundError::ControlEnded => false,
    }
}

async fn read_stream(
    stream: RecvStream,
    events: mpsc::Sender<Inbound>,
) -> Result<(), InboundError> {
    let mut reader = FrameReader::new(stream, BULK_LIMIT);
    let Some(head) = reader.read::<v1::StreamHead>().await? else {
        return Ok(());
    };
    let delivered = match head.content {
        Some(v1::stream_head::Content::Pool(pool)) => read_pool(pool, reader, &events).await?,
        Some(v1::stream_head::Content::Chunk(chunk)) => {
            let (pool, subscription, chunk) = kvgrid_proto::chunk_from_wire(&chunk)?;
            events.send(Inbound::Chunk(pool, subscription, chunk)).await
        }
        Some(v1::stream_head::Content::Card(card)) => read_card(card, reader, &events).await?,
        // A kind that we don't know: from a newer relay. Dropping the reader stops it.
        None => Ok(()),
    };
    // The session is gone, and this task with it in a moment.
    drop(delivered);
    Ok(())
}

/// Reads a subscription's frames, and tells its end where the relay goes on without it.
async fn read_pool(
    head: v1::PoolStream,
    mut reader: FrameReader,
    events: &mpsc::Sender<Inbound>,
) -> Result<Delivered, InboundError> {
    let pool = PoolId(head.pool_id);
    let subscription = SubscriptionId(head.subscription);
    loop {
        let event = match next_frame(&mut reader).await {
            Ok(Some(frame)) => Inbound::Pool(pool, subscription, frame),
            Ok(None) => Inbound::PoolEnd(pool, subscription),
            Err(error) if is_reset(&error) => Inbound::PoolEnd(pool, subscription),
            Err(error) => return Err(error),
        };
        let ended = matches!(event, Inbound::PoolEnd(..));
        let delivered = events.send(event).await;
        if ended || delivered.is_err() {
            return Ok(delivered);
        }
    }
}

/// The next frame of a kind that we know.
async fn next_frame(reader: &mut FrameReader) -> Result<Option<Frame>, InboundError> {
    while let Some(frame) = reader.read::<v1::PoolFrame>().await? {
        if let Some(frame) = kvgrid_proto::frame_from_wire(frame)? {
            return Ok(Some(frame));
        }
    }
    Ok(None)
}

async fn read_card(
    head: v1::CardHead,
    reader: FrameReader,
    events: &mpsc::Sender<Inbound>,
) -> Result<Delivered, InboundError> {
    let digest = kvgrid_proto::card_digest_from_wire(&head.digest)?;
    let length = usize::try_from(head.length).unwrap_or(usize::MAX);
    if length > CARD_LIMIT {
        return Err(InboundError::CardLength(head.length));
    }
    let (mut stream, first) = reader.into_parts();
    let rest = stream
        .read_to_end(length.saturating_sub(first.len()))
        .await?;
    let bytes = [first.as_ref(), &rest].concat();
    Ok(events.send(Inbound::Card(digest, bytes.into())).await)
}
