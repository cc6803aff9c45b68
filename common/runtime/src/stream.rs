//! Streams that carry a message and a raw body, and never end by accident.
//!
//! QUIC finishes a stream whose writer is dropped, and the reader takes what came for the
//! whole. [`GuardedSend`] resets it instead, unless it was finished on purpose, so that a
//! reader of [`StreamBody`] gets an error for every body that is not whole.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use kvgrid_proto::frame::FrameError;
use prost::Message;
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, StoppedError, VarInt, WriteError};
use thiserror::Error;

use crate::frames::{FrameReader, ReadFrameError};

/// Most bytes taken from a stream at once.
const CHUNK: usize = 64 * 1024;

/// Why one end reset a stream or stopped reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamCode {
    /// The end does not want the rest any more: its client left, or it stops.
    Abandoned,
    /// What feeds the stream broke: the body is not whole.
    Broken,
    /// The peer broke the protocol, or went over a limit.
    Refused,
}

impl StreamCode {
    /// The code on the wire.
    pub fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Abandoned => 1,
            Self::Broken => 2,
            Self::Refused => 3,
        })
    }
}

/// The sending half of a stream; dropped unfinished, it resets the stream.
#[derive(Debug)]
pub struct GuardedSend {
    stream: SendStream,
    ended: bool,
}

impl GuardedSend {
    /// Guards `stream` from now on.
    pub fn new(stream: SendStream) -> Self {
        Self {
            stream,
            ended: false,
        }
    }

    /// Sends all of `bytes`, as fast as the reader takes them.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), WriteError> {
        self.stream.write_chunk(bytes).await
    }

    /// Completes when the reader stops reading, has read everything, or is gone.
    pub fn stopped(
        &self,
    ) -> impl Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync + use<> {
        self.stream.stopped()
    }

    /// Says that everything was sent.
    pub fn finish(mut self) {
        self.ended = true;
        // It fails only for a stream that the reader has stopped, who then does not care.
        let _ = self.stream.finish();
    }

    /// Says that what was sent is not everything, and why.
    pub fn reset(mut self, code: StreamCode) {
        self.end(code);
    }

    fn end(&mut self, code: StreamCode) {
        self.ended = true;
        let _ = self.stream.reset(code.code());
    }
}

impl Drop for GuardedSend {
    fn drop(&mut self) {
        if !self.ended {
            self.end(StreamCode::Abandoned);
        }
    }
}

/// Reads the one message at the beginning of a stream, and gives the body behind it.
pub async fn read_message<M: Message + Default>(
    stream: RecvStream,
    limit: usize,
) -> Result<(M, StreamBody), ReadFrameError> {
    let mut reader = FrameReader::new(stream, limit);
    let Some(message) = reader.read().await? else {
        return Err(FrameError::Truncated { missing: 1 }.into());
    };
    let (stream, rest) = reader.into_parts();
    Ok((message, StreamBody::new(stream, rest)))
}

/// Why a body is not whole.
#[derive(Debug, Error)]
pub enum StreamBodyError {
    /// The sender reset the stream.
    #[error("the stream was reset with code {0}")]
    Reset(VarInt),
    /// The connection is gone.
    #[error(transparent)]
    Lost(ConnectionError),
    /// The stream ended before the length that was announced.
    #[error("the body is {0} bytes short")]
    Short(u64),
    /// The stream goes on behind the length that was announced, or beyond the limit.
    #[error("the body is longer than announced or allowed")]
    Long,
    /// The stream was read elsewhere; a fault of ours.
    #[error("the stream is closed")]
    Closed,
}

impl From<ReadError> for StreamBodyError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Reset(code),
            ReadError::ConnectionLost(error) => Self::Lost(error),
            ReadError::ClosedStream
            | ReadError::IllegalOrderedRead
            | ReadError::ZeroRttRejected => Self::Closed,
        }
    }
}

/// The raw body of a stream; dropped unread, it tells the sender to stop.
#[derive(Debug)]
pub struct StreamBody {
    stream: RecvStream,
    /// What was read together with the message before it.
    rest: Bytes,
    /// Bytes that must still come, if the length was announced.
    left: Option<u64>,
    /// Bytes that may still come.
    allowed: u64,
    ended: bool,
}

impl StreamBody {
    fn new(stream: RecvStream, rest: Bytes) -> Self {
        Self {
            stream,
            rest,
            left: None,
            allowed: u64::MAX,
            ended: false,
        }
    }

    /// Holds the sender to the length that it announced.
    pub fn with_length(mut self, length: Option<u64>) -> Self {
        self.left = length;
        self
    }

    /// Fails the body when it goes beyond `limit` bytes.
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.allowed = limit;
        self
    }

    /// Tells the sender that nothing more will be read, and why.
    pub fn stop(mut self, code: StreamCode) {
        self.end(code);
    }

    fn end(&mut self, code: StreamCode) {
        self.ended = true;
        let _ = self.stream.stop(code.code());
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamBodyError>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.rest))));
        }
        // The future holds nothing but the borrow, so that dropping it here loses nothing.
        let read = pin!(self.stream.read_chunk(CHUNK, true));
        let chunk = ready!(read.poll(cx))?;
        Poll::Ready(Ok(chunk.map(|chunk| chunk.bytes)))
    }

    fn count(&mut self, bytes: &Bytes) -> Result<(), StreamBodyError> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let take = |from: u64| from.checked_sub(length).ok_or(StreamBodyError::Long);
        self.allowed = take(self.allowed)?;
        self.left = self.left.map(take).transpose()?;
        Ok(())
    }

    fn checked_end(&self) -> Result<(), StreamBodyError> {
        match self.left {
            None | Some(0) => Ok(()),
            Some(short) => Err(StreamBodyError::Short(short)),
        }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = StreamBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamBodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let result = match ready!(self.poll_bytes(cx)) {
            Ok(Some(bytes)) => self.count(&bytes).map(|()| Some(Frame::data(bytes))),
            Ok(None) => {
                self.ended = true;
                self.checked_end().map(|()| None)
            }
            Err(error) => {
                self.ended = true;
                Err(error)
            }
        };
        if matches!(result, Err(StreamBodyError::Long)) {
            self.end(StreamCode::Refused);
        }
        Poll::Ready(result.transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        if !self.ended {
            self.end(StreamCode::Abandoned);
        }
    }
}

#[cfg(test)]
mod tests;
