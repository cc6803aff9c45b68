//! The wire form of sorted classes: a chunk's content, or the adds or removes of a batch.
//!
//! Classes are numbered in their order, and the gaps between the numbers are Rice coded: the
//! number of classes, the parameter `k` and the first number (varints but for `k`, a byte),
//! then for each gap its high part in unary, zeros ended by a one, and its `k` low bits.
//! Bits fill each byte from its low end; the last byte is filled up with zeros.
//! No classes are no bytes. Every multiset has exactly one form for each `k`.
//!
//! Gaps of random classes are geometric, for which Rice codes are within 2 % of the entropy.
//! At the soft load a chunk takes 1.9 bytes a class and a batch of 10,000 on a table of ten
//! million about 3.2. Of whole hashes a chunk takes 5.3 and a batch 6.7.
//!
//! Decoding trusts nothing: it allocates no more than the classes a table of this geometry
//! could hold and no more than the bytes could mean, and refuses what is not a class.

mod bits;

use core::ops::RangeInclusive;

use thiserror::Error;

use self::bits::{BitReader, BitWriter};
use super::class::Class;
use super::geometry::Geometry;
use super::table::OVERFLOW;

/// Most low bits of a gap: as many as are read at once. The gaps of filters have fewer; those of
/// a handful of whole hashes may take a few hundred bits for it.
const MAX_PARAMETER: u32 = 56;

/// Why bytes are no classes. The sender is at fault; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The bytes end before the classes do.
    #[error("the coded classes end early")]
    Truncated,
    /// There are bytes, or bits that are not zero, after the last class.
    #[error("the coded classes are followed by something else")]
    Trailing,
    /// A number needs more than 64 bits, or is written longer than it has to be.
    #[error("a number before the coded classes is malformed")]
    Number,
    /// More classes than the table, or chunk, has room for, or none although there are bytes.
    #[error("{count} coded classes are not between 1 and {limit}")]
    Count {
        /// Classes said to follow.
        count: u64,
        /// Most that can be right.
        limit: u64,
    },
    /// The Rice parameter is larger than any may be.
    #[error("the rice parameter {0} is above {MAX_PARAMETER}")]
    Parameter(u8),
    /// A class is outside the table, or chunk, or has no fingerprint.
    #[error("coded class {index} is not one of the table or chunk")]
    Class {
        /// How many good ones came before it.
        index: u64,
    },
}

/// Codes classes of one table.
///
/// # Panics
///
/// If the classes are not sorted or not the table's own, which only a bug can bring about.
pub fn encode_classes(geometry: &Geometry, sorted: &[Class]) -> Vec<u8> {
    let right = sorted.is_sorted() && sorted.iter().all(|class| geometry.has(*class));
    assert!(
        right,
        "classes are coded in their order and for their own table"
    );
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
        return Vec::new();
    };
    let (first, last) = (geometry.rank(*first), geometry.rank(*last));
    let count = sorted.len() as u64;
    let parameter = parameter((last - first) / (count - 1).max(1));
    let mut bits = BitWriter::with_capacity(sorted.len() * (parameter as usize + 3) / 8 + 16);
    bits.varint(count);
    bits.put(u64::from(parameter), 8);
    bits.varint(first);
    let mut before = first;
    for class in &sorted[1..] {
        let rank = geometry.rank(*class);
        bits.rice(rank - before, parameter);
        before = rank;
    }
    bits.finish()
}

/// Reads classes of any chunks, sorted.
pub fn decode_classes(geometry: &Geometry, bytes: &[u8]) -> Result<Vec<Class>, CodecError> {
    let limit = geometry.slots() + OVERFLOW as u64;
    decode(geometry, bytes, limit, &geometry.ranks())
}

/// Reads classes of one chunk, sorted.
pub fn decode_chunk(
    geometry: &Geometry,
    chunk: u32,
    bytes: &[u8],
) -> Result<Vec<Class>, CodecError> {
    let limit = geometry.chunk_slots() + OVERFLOW as u64;
    decode(geometry, bytes, limit, &geometry.chunk_ranks(chunk))
}

/// The parameter that codes gaps of this mean in the fewest bits.
fn parameter(mean_gap: u64) -> u32 {
    // For geometric gaps one more low bit pays as soon as 2^k is below 0.4812 of the mean.
    let enough = mean_gap / 10_000 * 4_812 + mean_gap % 10_000 * 4_812 / 10_000;
    match enough {
        0 | 1 => 0,
        _ => ((enough - 1).ilog2() + 1).min(MAX_PARAMETER),
    }
}

fn decode(
    geometry: &Geometry,
    bytes: &[u8],
    limit: u64,
    ranks: &RangeInclusive<u64>,
) -> Result<Vec<Class>, CodecError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut bits = BitReader::new(bytes);
    let count = bits.varint()?;
    if count == 0 || count > limit {
        return Err(CodecError::Count { count, limit });
    }
    let parameter = bits.byte()?;
    if u32::from(parameter) > MAX_PARAMETER {
        return Err(CodecError::Parameter(parameter));
    }
    let mut rank = bits.varint()?;
    if bits.left() / (u64::from(parameter) + 1) < count - 1 {
        return Err(CodecError::Truncated);
    }
    let capacity = usize::try_from(count).map_err(|_| CodecError::Truncated)?;
    let mut classes = Vec::with_capacity(capacity);
    for index in 0..count {
        if index > 0 {
            let gap = bits.rice(u32::from(parameter), *ranks.end())?;
            rank = gap
                .and_then(|gap| rank.checked_add(gap))
                .unwrap_or(u64::MAX);
        }
        let class = Some(rank).filter(|rank| ranks.contains(rank));
        let class = class.and_then(|rank| geometry.class_of_rank(rank));
        classes.push(class.ok_or(CodecError::Class { index })?);
    }
    bits.finish()?;
    Ok(classes)
}

#[cfg(test)]
mod tests;
