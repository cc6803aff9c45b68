//! What one subscription to a filter brings, in order: a snapshot in chunks, then deltas.
//!
//! ```text
//! Waiting --chunk 0--> Taking --last chunk--> Following --delta--> Following
//!                        ^------- chunk 0 ------+
//! ```
//!
//! A delta follows the sequence before it or the stream is at its end: what is missing comes
//! only with another snapshot, by another subscription. A snapshot counts when its last chunk
//! is there, so that a stream that breaks off leaves nothing half told.

use thiserror::Error;

use super::Format;
use super::frame::{Frame, FrameError, read};

/// What a message says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A part of the whole table.
    Chunk,
    /// Buckets that have changed.
    Delta,
    /// Nothing new, and the publisher is alive.
    Heartbeat,
}

/// A message of a subscription, as its envelope says it.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// What it is.
    pub kind: Kind,
    /// The sequence that it follows; of no meaning for a snapshot.
    pub base: u64,
    /// The sequence that it leads to.
    pub sequence: u64,
    /// Its frame; empty for a heartbeat.
    pub payload: &'a [u8],
}

/// What a message adds to what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing yet.
    Nothing,
    /// The table, whole, as of this sequence.
    Snapshot {
        /// All bucket words.
        words: Vec<u64>,
        /// The publisher's count.
        sequence: u64,
    },
    /// Buckets as they are now; an image overwrites what was there.
    Delta {
        /// Bucket and word.
        images: Vec<(u32, u64)>,
        /// The publisher's count.
        sequence: u64,
    },
}

/// Why a stream can't be followed any further. The publisher is at fault, or something was
/// lost; what was told before stays true of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// The frame is not one of this filter's.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The frame contradicts its envelope.
    #[error("the frame is not what its message says")]
    Envelope,
    /// A chunk that does not follow the one before.
    #[error("chunk {index} of {count} does not follow")]
    Chunk {
        /// Its place.
        index: u32,
        /// How many it says that there are.
        count: u32,
    },
    /// Something between the message and the one before was lost.
    #[error("sequence {base} follows {expected:?}")]
    Gap {
        /// The sequence up to which all is known, if a snapshot was whole.
        expected: Option<u64>,
        /// The one that the message follows.
        base: u64,
    },
}

/// Where a subscription stands.
#[derive(Debug)]
pub struct Stream {
    format: Format,
    centre: u64,
    /// The sequence up to which all was told.
    known: Option<u64>,
    taking: Option<Taking>,
}

/// A snapshot of which more chunks are to come.
#[derive(Debug)]
struct Taking {
    sequence: u64,
    next: u32,
    count: u32,
    words: Vec<u64>,
}

impl Stream {
    /// The stream of a new subscription to a filter of this format, in this data centre.
    pub const fn new(format: Format, centre: u64) -> Self {
        Self {
            format,
            centre,
            known: None,
            taking: None,
        }
    }

    /// The sequence up to which all was told, once a snapshot is whole.
    pub const fn known(&self) -> Option<u64> {
        self.known
    }

    /// Takes a message. After an error the stream is of no more use.
    pub fn handle(&mut self, update: Update<'_>) -> Result<Progress, StreamError> {
        if update.kind == Kind::Heartbeat {
            return self.heartbeat(update);
        }
        let frame = read(update.payload, &self.format, self.centre)?;
        match frame {
            Frame::Chunk {
                sequence,
                index,
                count,
                offset,
                words,
            } if update.kind == Kind::Chunk && sequence == update.sequence => {
                self.chunk(sequence, (index, count), offset, words)
            }
            Frame::Images {
                base,
                sequence,
                images,
            } if update.kind == Kind::Delta
                && (base, sequence) == (update.base, update.sequence) =>
            {
                self.delta(base, sequence, images)
            }
            Frame::Chunk { .. } | Frame::Images { .. } => Err(StreamError::Envelope),
        }
    }

    /// A heartbeat says how far the stream is; while a snapshot is under way it says nothing.
    const fn heartbeat(&self, update: Update<'_>) -> Result<Progress, StreamError> {
        if !update.payload.is_empty() {
            return Err(StreamError::Envelope);
        }
        match self.known {
            Some(known) if self.taking.is_none() && known != update.sequence => {
                Err(StreamError::Gap {
                    expected: Some(known),
                    base: update.sequence,
                })
            }
            _ => Ok(Progress::Nothing),
        }
    }

    fn chunk(
        &mut self,
        sequence: u64,
        (index, count): (u32, u32),
        offset: u64,
        words: Vec<u64>,
    ) -> Result<Progress, StreamError> {
        let wrong = StreamError::Chunk { index, count };
        if index == 0 {
            self.taking = Some(Taking {
                sequence,
                next: 0,
                count,
                words: Vec::new(),
            });
        }
        let mut taking = self.taking.take().ok_or(wrong)?;
        let follows = (taking.next, taking.count, taking.sequence) == (index, count, sequence);
        if !follows || index >= count || offset != taking.words.len() as u64 {
            return Err(wrong);
        }
        if taking.words.is_empty() {
            taking.words = words;
        } else {
            taking.words.extend(words);
        }
        taking.next += 1;
        let whole = taking.words.len() as u64 == u64::from(self.format.buckets());
        if (taking.next == count) != whole {
            return Err(wrong);
        }
        if !whole {
            self.taking = Some(taking);
            return Ok(Progress::Nothing);
        }
        self.known = Some(sequence);
        let words = taking.words;
        Ok(Progress::Snapshot { words, sequence })
    }

    fn delta(
        &mut self,
        base: u64,
        sequence: u64,
        images: Vec<(u32, u64)>,
    ) -> Result<Progress, StreamError> {
        if self.taking.is_some() || self.known != Some(base) || sequence <= base {
            let expected = self.known;
            return Err(StreamError::Gap { expected, base });
        }
        self.known = Some(sequence);
        Ok(Progress::Delta { images, sequence })
    }
}
