//! Frames: a message behind its length as a varint.
//!
//! A receiver checks the length against its limit and then allocates only for bytes that came. The
//! [`Decoder`] does no I/O: bytes are fed in as they arrive, messages come out once they are
//! whole, and what follows the last frame (a raw body) can be taken back.

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};
use thiserror::Error;

/// Most bytes of a control message: hello, catalog, load, members, heads.
pub const CONTROL_LIMIT: usize = 256 * 1024;

/// Most bytes of a bulk message: a snapshot chunk or a delta, 1 MiB and what wraps it.
pub const BULK_LIMIT: usize = 1024 * 1024 + 4096;

/// Bytes of a length: five carry 35 bits, more than any limit.
const LENGTH_BYTES: usize = 5;

/// Why bytes are no frame. The sender is at fault; the stream can't be read any further.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The message is longer than this kind of stream allows; nothing was allocated for it.
    #[error("a message of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Bytes announced, or bytes that were to be sent.
        length: u64,
        /// Most bytes allowed.
        limit: usize,
    },
    /// The length does not end within five bytes.
    #[error("the length of a message is no varint")]
    Length,
    /// The bytes are not the message that belongs here.
    #[error("malformed message: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// The stream ended within a message.
    #[error("the stream ended within a message, {missing} bytes short")]
    Truncated {
        /// Bytes that were still to come, at least.
        missing: usize,
    },
}

/// Encodes one message with its length in front. Fails only if it is over `limit`.
pub fn encode<M: Message>(message: &M, limit: usize) -> Result<Bytes, FrameError> {
    let mut buffer = BytesMut::new();
    encode_into(message, limit, &mut buffer)?;
    Ok(buffer.freeze())
}

/// Appends one message with its length in front; `buffer` is unchanged if it is over `limit`.
pub fn encode_into<M: Message>(
    message: &M,
    limit: usize,
    buffer: &mut BytesMut,
) -> Result<(), FrameError> {
    let length = message.encoded_len();
    if length > limit {
        return Err(FrameError::TooLong {
            length: wide(length),
            limit,
        });
    }
    buffer.reserve(encoded_len_varint(wide(length)) + length);
    encode_varint(wide(length), buffer);
    message
        .encode(buffer)
        .expect("a BytesMut grows to hold any message");
    Ok(())
}

/// Takes frames out of a stream of bytes.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    buffer: BytesMut,
}

impl Decoder {
    /// A decoder that refuses messages longer than `limit`.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            buffer: BytesMut::new(),
        }
    }

    /// Changes the limit for the messages to come: a stream's head may be short, the rest not.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds bytes that arrived. The caller drains [`Self::next_message`] before it feeds more, so the
    /// buffer holds at most one frame and one read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, or `None` until more bytes are fed.
    pub fn next_message<M: Message + Default>(&mut self) -> Result<Option<M>, FrameError> {
        let Some((head, length)) = self.length()? else {
            return Ok(None);
        };
        if self.buffer.len() < head + length {
            return Ok(None);
        }
        self.buffer.advance(head);
        let message = self.buffer.split_to(length).freeze();
        Ok(Some(M::decode(message)?))
    }

    /// Says whether the stream may end here: `Truncated` if a message has begun.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let missing = match self.length()? {
            Some((head, length)) => (head + length).saturating_sub(self.buffer.len()),
            None => 1,
        };
        Err(FrameError::Truncated { missing })
    }

    /// Gives back what was fed and not decoded: the raw bytes behind a head.
    pub fn into_rest(self) -> Bytes {
        self.buffer.freeze()
    }

    /// Bytes of the length itself, and the length.
    fn length(&self) -> Result<Option<(usize, usize)>, FrameError> {
        let mut length = 0_u64;
        for (at, byte) in self.buffer.iter().take(LENGTH_BYTES).enumerate() {
            length |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                return self.checked(length).map(|length| Some((at + 1, length)));
            }
        }
        if self.buffer.len() < LENGTH_BYTES {
            Ok(None)
        } else {
            Err(FrameError::Length)
        }
    }

    fn checked(&self, length: u64) -> Result<usize, FrameError> {
        usize::try_from(length)
            .ok()
            .filter(|length| *length <= self.limit)
            .ok_or(FrameError::TooLong {
                length,
                limit: self.limit,
            })
    }
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{EdgeHello, RequestHead, Subscribe};
    use proptest::prelude::*;

    fn subscribe(pool: u64) -> Subscribe {
        Subscribe {
            pool_id: pool,
            subscription: 300,
            ..Subscribe::default()
        }
    }

    #[test]
    fn a_head_is_followed_by_its_raw_body() {
        let head = RequestHead {
            method: "POST".into(),
            number: 9,
            ..RequestHead::default()
        };
        let mut decoder = Decoder::new(CONTROL_LIMIT);
        decoder.feed(&encode(&head, CONTROL_LIMIT).unwrap());
        decoder.feed(b"body");

        assert_eq!(decoder.next_message::<RequestHead>().unwrap(), Some(head));
        assert_eq!(decoder.into_rest(), "body");
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes_arrive() {
        let mut decoder = Decoder::new(CONTROL_LIMIT);
        decoder.feed(&[0xff, 0xff, 0xff, 0xff, 0x0f]);

        assert_eq!(
            decoder.next_message::<EdgeHello>(),
            Err(FrameError::TooLong {
                length: u64::from(u32::MAX),
                limit: CONTROL_LIMIT
            })
        );
    }

    #[test]
    fn a_length_without_end_is_refused() {
        let mut decoder = Decoder::new(CONTROL_LIMIT);
        decoder.feed(&[0x80; 6]);

        assert_eq!(decoder.next_message::<EdgeHello>(), Err(FrameError::Length));
    }

    #[test]
    fn a_stream_that_ends_within_a_message_is_truncated() {
        let frame = encode(&subscribe(1), CONTROL_LIMIT).unwrap();
        let mut decoder = Decoder::new(CONTROL_LIMIT);
        decoder.feed(&frame[..frame.len() - 3]);

        assert_eq!(decoder.next_message::<Subscribe>().unwrap(), None);
        assert_eq!(decoder.finish(), Err(FrameError::Truncated { missing: 3 }));
    }

    #[test]
    fn a_message_over_the_limit_is_not_sent() {
        let hello = EdgeHello {
            software: "x".repeat(100),
        };

        assert!(matches!(
            encode(&hello, 50),
            Err(FrameError::TooLong { limit: 50, .. })
        ));
    }

    proptest! {
        #[test]
        fn messages_come_out_whole_however_the_bytes_are_cut(
            pools in proptest::collection::vec(any::<u64>(), 0..20),
            cut in 1_usize..40,
        ) {
            let mut bytes = BytesMut::new();
            for pool in &pools {
                encode_into(&subscribe(*pool), CONTROL_LIMIT, &mut bytes).unwrap();
            }
            let mut decoder = Decoder::new(CONTROL_LIMIT);
            let mut found = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.feed(piece);
                while let Some(message) = decoder.next_message::<Subscribe>().unwrap() {
                    found.push(message);
                }
            }

            prop_assert_eq!(decoder.finish(), Ok(()));
            let expected: Vec<_> = pools.iter().map(|pool| subscribe(*pool)).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn hostile_bytes_never_panic_and_never_pass_the_limit(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut decoder = Decoder::new(64);
            decoder.feed(&bytes);
            while let Ok(Some(message)) = decoder.next_message::<RequestHead>() {
                prop_assert!(message.encoded_len() <= 10 * 64);
            }
            let _ = decoder.finish();
        }
    }
}
