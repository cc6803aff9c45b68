//! The envelope of a message, the same on every transport and topic.

use thiserror::Error;

use super::super::msgpack::{Malformed, Reader, Token};
use super::{fields, uint};

/// The only kind of frame there is.
const FRAME_VERSION: u8 = 1;

/// A message with what its publisher says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Names one life of a publisher.
    pub publisher: u64,
    /// Counts the publisher's messages from 0 on, without holes.
    pub sequence: u64,
    /// When it was published, in milliseconds since 1970 by the publisher's clock.
    pub published_at_ms: u64,
    /// What it is about.
    pub topic: &'a str,
    /// The topic's own bytes.
    pub payload: &'a [u8],
}

/// Why bytes are no message. Their sender is at fault; nothing of them may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EnvelopeError {
    /// A kind of frame that is not known here.
    #[error("frame version {0} is not known")]
    Version(u8),
    /// The frame says another length than it has.
    #[error("the frame says another length than it has")]
    Length,
    /// No MessagePack, or a field of another type.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A field that every message has is not there.
    #[error("field {0} is missing")]
    Missing(&'static str),
}

impl<'a> Envelope<'a> {
    /// Reads a frame as ZeroMQ carries it: a version, a length, and the message.
    pub fn from_frame(frame: &'a [u8]) -> Result<Self, EnvelopeError> {
        let (version, rest) = frame.split_first().ok_or(EnvelopeError::Length)?;
        if *version != FRAME_VERSION {
            return Err(EnvelopeError::Version(*version));
        }
        let (length, message) = rest.split_first_chunk::<4>().ok_or(EnvelopeError::Length)?;
        if usize::try_from(u32::from_be_bytes(*length)) != Ok(message.len()) {
            return Err(EnvelopeError::Length);
        }
        Self::from_message(message)
    }

    /// Reads a message without a frame, as NATS carries it.
    pub fn from_message(message: &'a [u8]) -> Result<Self, EnvelopeError> {
        let (mut publisher, mut sequence, mut published_at_ms) = (None, None, 0);
        let (mut topic, mut payload) = (None, None);
        fields(Reader::new(message), |name, value| {
            match name {
                b"publisher_id" => publisher = Some(uint(value)?),
                b"sequence" => sequence = Some(uint(value)?),
                b"published_at" => published_at_ms = uint(value)?,
                b"topic" => topic = Some(text(value)?),
                b"payload" => payload = Some(bytes(value)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Self {
            publisher: publisher.ok_or(EnvelopeError::Missing("publisher_id"))?,
            sequence: sequence.ok_or(EnvelopeError::Missing("sequence"))?,
            published_at_ms,
            topic: topic.ok_or(EnvelopeError::Missing("topic"))?,
            payload: payload.ok_or(EnvelopeError::Missing("payload"))?,
        })
    }
}

fn text(mut value: Reader<'_>) -> Result<&str, Malformed> {
    match value.token()? {
        Token::Str(text) => core::str::from_utf8(text).map_err(|_| Malformed::Type),
        _ => Err(Malformed::Type),
    }
}

fn bytes(mut value: Reader<'_>) -> Result<&[u8], Malformed> {
    match value.token()? {
        Token::Bin(bytes) => Ok(bytes),
        _ => Err(Malformed::Type),
    }
}
