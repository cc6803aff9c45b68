//! Reads the frames (`CBI1`) in which a filter's content travels.
//!
//! ```text
//! header  "CBI1", version u16, kind u16, fingerprint bits u8, slots u8, format version u16,
//!         seed u64, buckets u64, data centre u64, sequence u64, checksum u32
//! chunk   index u32, count u32, offset u64, then bucket words u64 to the end
//! images  base sequence u64, number u32, then bucket u32 and its word u64, so often
//! ```
//!
//! All numbers are little-endian. The checksum is the low half of XXH3 over all after it.

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::{Format, FormatError, Header};

const MAGIC: &[u8; 4] = b"CBI1";
const VERSION: u16 = 1;
const CHUNK: u16 = 1;
const IMAGES: u16 = 2;
/// Bucket words of the largest chunk: 4 MiB.
const CHUNK_WORDS: usize = 524_288;
/// Buckets of the largest delta.
const IMAGE_LIMIT: usize = 349_525;
/// Bytes of one image.
const IMAGE_BYTES: usize = 12;

/// Why a frame is not read. The publisher is at fault; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// It ends before its content does, or has more than that.
    #[error("{0} bytes are not the length of its content")]
    Length(usize),
    /// It is none of these frames, or of another version.
    #[error("it does not begin as a frame of this version does")]
    Magic,
    /// Neither chunk nor images.
    #[error("frame kind {0} is not known")]
    Kind(u16),
    /// Its content is not what was sent.
    #[error("the checksum does not fit the content")]
    Checksum,
    /// Another format than the subscribed one's, or none that is known.
    #[error("the filter is of another format: {0}")]
    Format(FormatError),
    /// A table of another size or seed.
    #[error("the filter has another seed or size than was subscribed to")]
    OtherTable,
    /// Another data centre's.
    #[error("the filter is another data centre's")]
    OtherCentre,
    /// More than one frame may have.
    #[error("{0} buckets are more than a frame may have")]
    TooMany(usize),
    /// A bucket that the table doesn't have.
    #[error("bucket {0} is outside the table")]
    Bucket(u64),
}

/// A frame, read and found to be one of the table's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A run of the table's buckets, whole.
    Chunk {
        sequence: u64,
        index: u32,
        count: u32,
        offset: u64,
        words: Vec<u64>,
    },
    /// Some buckets as they are now.
    Images {
        base: u64,
        sequence: u64,
        images: Vec<(u32, u64)>,
    },
}

/// Reads a frame of a table of this format, from this data centre.
pub(super) fn read(bytes: &[u8], format: &Format, centre: u64) -> Result<Frame, FrameError> {
    let mut from = Cursor { bytes, at: 0 };
    if from.take::<4>()? != *MAGIC || from.u16()? != VERSION {
        return Err(FrameError::Magic);
    }
    let kind = from.u16()?;
    let (fingerprint_bits, slots) = (u32::from(from.u8()?), u32::from(from.u8()?));
    let header = Header {
        fingerprint_bits,
        slots,
        version: u32::from(from.u16()?),
        seed: from.u64()?,
        buckets: from.u64()?,
    };
    let of = Format::from_header(header).map_err(FrameError::Format)?;
    if of != *format {
        return Err(FrameError::OtherTable);
    }
    if from.u64()? != centre {
        return Err(FrameError::OtherCentre);
    }
    let sequence = from.u64()?;
    let checksum = from.u32()?;
    if (xxh3_64(from.rest()) & 0xffff_ffff) as u32 != checksum {
        return Err(FrameError::Checksum);
    }
    match kind {
        CHUNK => from.chunk(sequence, format),
        IMAGES => from.images(sequence, format),
        other => Err(FrameError::Kind(other)),
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let taken = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        let taken = taken.ok_or(FrameError::Length(self.bytes.len()))?;
        self.at += N;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, FrameError> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, FrameError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        self.take().map(u64::from_le_bytes)
    }

    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    fn chunk(mut self, sequence: u64, format: &Format) -> Result<Frame, FrameError> {
        let (index, count, offset) = (self.u32()?, self.u32()?, self.u64()?);
        let (words, []) = self.rest().as_chunks::<8>() else {
            return Err(FrameError::Length(self.bytes.len()));
        };
        if words.len() > CHUNK_WORDS {
            return Err(FrameError::TooMany(words.len()));
        }
        let end = offset.saturating_add(words.len() as u64);
        if words.is_empty() || end > u64::from(format.buckets()) {
            return Err(FrameError::Bucket(end));
        }
        let words = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Ok(Frame::Chunk {
            sequence,
            index,
            count,
            offset,
            words,
        })
    }

    fn images(mut self, sequence: u64, format: &Format) -> Result<Frame, FrameError> {
        let (base, number) = (self.u64()?, self.u32()? as usize);
        if number > IMAGE_LIMIT {
            return Err(FrameError::TooMany(number));
        }
        if self.rest().len() != number * IMAGE_BYTES {
            return Err(FrameError::Length(self.bytes.len()));
        }
        let mut images = Vec::with_capacity(number);
        for _ in 0..number {
            let (bucket, word) = (self.u32()?, self.u64()?);
            if bucket >= format.buckets() {
                return Err(FrameError::Bucket(u64::from(bucket)));
            }
            images.push((bucket, word));
        }
        Ok(Frame::Images {
            base,
            sequence,
            images,
        })
    }
}
