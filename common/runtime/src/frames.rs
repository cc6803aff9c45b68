//! Frames over QUIC streams: the decoder of `kvgrid_proto::frame` fed from a stream.

use bytes::Bytes;
use kvgrid_proto::frame::{self, Decoder, FrameError};
use prost::Message;
use quinn::{ReadError, RecvStream, SendStream, WriteError};
use thiserror::Error;

/// Most bytes taken from a stream at once: what a decoder may hold beyond one frame.
const READ_BYTES: usize = 64 * 1024;

/// Why a frame could not be read.
#[derive(Debug, Error)]
pub enum ReadFrameError {
    /// The peer sent what is no frame; the stream is of no more use.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The stream or its connection broke; nobody need be at fault.
    #[error(transparent)]
    Stream(#[from] ReadError),
}

/// Why a frame could not be written.
#[derive(Debug, Error)]
pub enum WriteFrameError {
    /// Our own message is over the limit; nothing was written.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The stream or its connection broke; nobody need be at fault.
    #[error(transparent)]
    Stream(#[from] WriteError),
}

/// Reads frames from a stream.
#[derive(Debug)]
pub struct FrameReader {
    stream: RecvStream,
    decoder: Decoder,
}

impl FrameReader {
    /// Reads from `stream`, refusing messages longer than `limit`.
    pub fn new(stream: RecvStream, limit: usize) -> Self {
        Self {
            stream,
            decoder: Decoder::new(limit),
        }
    }

    /// The next message, or `None` where the stream ends between two. Cancel safe.
    pub async fn read<M: Message + Default>(&mut self) -> Result<Option<M>, ReadFrameError> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(Some(message));
            }
            match self.stream.read_chunk(READ_BYTES, true).await? {
                Some(chunk) => self.decoder.feed(&chunk.bytes),
                None => {
                    self.decoder.finish()?;
                    return Ok(None);
                }
            }
        }
    }

    /// Changes the limit for the messages to come.
    pub fn set_limit(&mut self, limit: usize) {
        self.decoder.set_limit(limit);
    }

    /// The stream, and the bytes that were read from it but belong to no frame yet.
    pub fn into_parts(self) -> (RecvStream, Bytes) {
        (self.stream, self.decoder.into_rest())
    }
}

/// Writes one message. Not cancel safe: a frame cut short ends the use of the stream.
pub async fn write_frame<M: Message>(
    stream: &mut SendStream,
    message: &M,
    limit: usize,
) -> Result<(), WriteFrameError> {
    let bytes = frame::encode(message, limit)?;
    stream.write_chunk(bytes).await?;
    Ok(())
}
