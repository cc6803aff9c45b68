//! How large a table is and where in it a hash belongs.
//!
//! A table has any number of chunks. A hash goes to one chunk by fast range reduction, and
//! all its moves stay inside that chunk, so chunks can be coded, compared and repaired alone.
//! Inside, its fingerprint leads from either of its two buckets to the other. The step is
//! always odd, so one of the two is even: (even bucket, fingerprint) names the pair, and can
//! be read off any stored fingerprint.

use core::num::NonZeroU32;

use thiserror::Error;

use super::bucket::LANES;
use super::class::Class;
use super::key::MixKey;
use crate::block::ChainHash;

/// Bits of a fingerprint.
const FINGERPRINT_BITS: u32 = 16;
/// Fingerprints there are; zero means an empty slot.
const FINGERPRINTS: u64 = 65_535;
/// Buckets of a chunk: 32 KiB. Shorter ones would fill up by chance before the hard load.
const CHUNK_BUCKETS: u16 = 4_096;
/// Largest table: 2 GiB and 912 million blocks.
const MAX_CHUNKS: u32 = 65_536;

/// Why a peer's geometry is refused. The peer is at fault; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// No chunks, or more than any table may have.
    #[error("{0} chunks are not between 1 and {MAX_CHUNKS}")]
    Chunks(u32),
    /// The chunk's size is no power of two, or none that this version knows.
    #[error("{0} buckets in a chunk are not a power of two from 2 to {CHUNK_BUCKETS}")]
    ChunkBuckets(u32),
    /// Another number of slots in a bucket than this version knows.
    #[error("{0} slots in a bucket are not {LANES}")]
    Slots(u32),
    /// Another fingerprint than this version knows.
    #[error("fingerprints of {0} bits are not of {FINGERPRINT_BITS}")]
    FingerprintBits(u32),
}

/// A geometry as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of chunks.
    pub chunks: u32,
    /// Buckets of each chunk.
    pub chunk_buckets: u32,
    /// Slots of each bucket.
    pub slots: u32,
    /// Bits of each slot.
    pub fingerprint_bits: u32,
    /// Names the key of the mix.
    pub key_id: u64,
}

/// The size of a table and the name of the key that places hashes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    chunks: NonZeroU32,
    /// A power of two from 2 to 4,096.
    chunk_buckets: u16,
    key_id: u64,
}

impl Geometry {
    /// The smallest table that holds so many blocks at the soft load, capped at the largest.
    pub fn for_capacity(blocks: u64, key_id: u64) -> Self {
        let one = Self::of_chunks(NonZeroU32::MIN, key_id);
        let chunks = blocks.div_ceil(one.soft_capacity()).max(1);
        let chunks = u32::try_from(chunks).unwrap_or(MAX_CHUNKS).min(MAX_CHUNKS);
        Self::of_chunks(NonZeroU32::new(chunks).unwrap_or(NonZeroU32::MIN), key_id)
    }

    const fn of_chunks(chunks: NonZeroU32, key_id: u64) -> Self {
        Self {
            chunks,
            chunk_buckets: CHUNK_BUCKETS,
            key_id,
        }
    }

    /// Takes a geometry from the wire, if it is one that this version knows.
    ///
    /// Chunks shorter than the usual 4,096 buckets are for tests and models: they fill up by
    /// chance long before the hard load.
    pub fn from_header(header: Header) -> Result<Self, GeometryError> {
        let chunks = NonZeroU32::new(header.chunks)
            .filter(|chunks| chunks.get() <= MAX_CHUNKS)
            .ok_or(GeometryError::Chunks(header.chunks))?;
        let chunk_buckets = u16::try_from(header.chunk_buckets)
            .ok()
            .filter(|size| size.is_power_of_two() && (2..=CHUNK_BUCKETS).contains(size))
            .ok_or(GeometryError::ChunkBuckets(header.chunk_buckets))?;
        if header.slots != LANES {
            return Err(GeometryError::Slots(header.slots));
        }
        if header.fingerprint_bits != FINGERPRINT_BITS {
            return Err(GeometryError::FingerprintBits(header.fingerprint_bits));
        }
        Ok(Self {
            chunks,
            chunk_buckets,
            key_id: header.key_id,
        })
    }

    /// The geometry as it goes on the wire.
    pub fn header(&self) -> Header {
        Header {
            chunks: self.chunks.get(),
            chunk_buckets: u32::from(self.chunk_buckets),
            slots: LANES,
            fingerprint_bits: FINGERPRINT_BITS,
            key_id: self.key_id,
        }
    }

    /// Number of chunks.
    pub const fn chunks(&self) -> u32 {
        self.chunks.get()
    }

    /// Names the key that places hashes in this table.
    pub const fn key_id(&self) -> u64 {
        self.key_id
    }

    /// Slots of all buckets.
    pub fn slots(&self) -> u64 {
        u64::from(self.chunks.get()) * self.chunk_slots()
    }

    /// Slots of one chunk.
    pub fn chunk_slots(&self) -> u64 {
        u64::from(self.chunk_buckets) * u64::from(LANES)
    }

    /// Blocks at the soft load of 0.85, past which a larger table should take over.
    pub fn soft_capacity(&self) -> u64 {
        self.slots() * 85 / 100
    }

    /// Blocks at the hard load of 0.90, past which inserts are refused.
    pub fn hard_capacity(&self) -> u64 {
        self.slots() * 90 / 100
    }

    /// Bytes of the table's buckets.
    pub fn bytes(&self) -> u64 {
        self.slots() * u64::from(FINGERPRINT_BITS / 8)
    }

    /// The class of a hash under a key, which should be the geometry's own.
    #[inline]
    pub fn class(&self, key: &MixKey, chain: ChainHash) -> Class {
        self.class_of_mixed(key.mix(chain))
    }

    /// The class of a mixed hash: high half to chunk, 20 bits to fingerprint, the rest to bucket.
    #[inline]
    pub(crate) fn class_of_mixed(&self, mixed: u64) -> Class {
        let chunk = (((mixed >> 32) * u64::from(self.chunks.get())) >> 32) as u32;
        let low = mixed & 0xffff_ffff;
        let fingerprint = 1 + (((low >> 12) * FINGERPRINTS) >> 20 & 0xffff) as u16;
        let bucket = (low & 0xfff) as u16 & self.bucket_mask() & !1;
        Class::pack(chunk, bucket, fingerprint)
    }

    /// A class by its parts, if this table can have it.
    pub fn class_at(&self, chunk: u32, bucket: u16, fingerprint: u16) -> Option<Class> {
        Some(Class::pack(chunk, bucket, fingerprint)).filter(|class| self.has(*class))
    }

    /// Whether the class is one of this table.
    #[inline]
    pub fn has(&self, class: Class) -> bool {
        class.chunk() < self.chunks.get()
            && class.bucket() < self.chunk_buckets
            && class.bucket().is_multiple_of(2)
            && class.fingerprint() != 0
    }

    /// The class of a fingerprint found in a bucket.
    #[inline]
    pub(super) fn class_of_stored(&self, chunk: u32, bucket: u16, fingerprint: u16) -> Class {
        let even = if bucket.is_multiple_of(2) {
            bucket
        } else {
            self.alternate(bucket, fingerprint)
        };
        Class::pack(chunk, even, fingerprint)
    }

    /// The other bucket of a fingerprint, within the chunk.
    #[inline]
    pub(super) fn alternate(&self, bucket: u16, fingerprint: u16) -> u16 {
        let spread = u32::from(fingerprint).wrapping_mul(0x9e37_79b1) >> 16;
        bucket ^ ((spread & 0xffff) as u16 & self.bucket_mask() | 1)
    }

    /// Where a chunk's bucket stands in the table.
    #[inline]
    pub(super) fn index(&self, chunk: u32, bucket: u16) -> usize {
        chunk as usize * usize::from(self.chunk_buckets) + usize::from(bucket)
    }

    /// Buckets of one chunk.
    #[inline]
    pub(super) const fn chunk_buckets(&self) -> u16 {
        self.chunk_buckets
    }

    /// The class's place among all classes of the table in their order.
    #[inline]
    pub(super) fn rank(&self, class: Class) -> u64 {
        let pair = u64::from(class.bucket() / 2);
        (u64::from(class.chunk()) << self.chunk_rank_bits())
            | pair << FINGERPRINT_BITS
            | u64::from(class.fingerprint())
    }

    /// The class at a place, if there is one.
    #[inline]
    pub(super) fn class_of_rank(&self, rank: u64) -> Option<Class> {
        let chunk = u32::try_from(rank >> self.chunk_rank_bits()).ok()?;
        let pair = (rank >> FINGERPRINT_BITS & 0xffff) as u16 & (self.bucket_mask() / 2);
        self.class_at(chunk, pair * 2, (rank & 0xffff) as u16)
    }

    /// One more than the largest place.
    #[inline]
    pub(super) fn ranks(&self) -> u64 {
        u64::from(self.chunks.get()) << self.chunk_rank_bits()
    }

    /// The places of one chunk's classes; none if the table doesn't have the chunk.
    pub(super) fn chunk_ranks(&self, chunk: u32) -> core::ops::Range<u64> {
        if chunk >= self.chunks.get() {
            return 0..0;
        }
        let first = u64::from(chunk) << self.chunk_rank_bits();
        first..first + (1 << self.chunk_rank_bits())
    }

    #[inline]
    const fn chunk_rank_bits(&self) -> u32 {
        self.chunk_buckets.trailing_zeros() - 1 + FINGERPRINT_BITS
    }

    #[inline]
    const fn bucket_mask(&self) -> u16 {
        self.chunk_buckets - 1
    }
}
