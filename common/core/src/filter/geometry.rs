//! How large a table is and where in it a hash belongs.
//!
//! A table has any number of chunks. A hash goes to one chunk by fast range reduction, and
//! all its moves stay inside that chunk, so chunks can be coded, compared and repaired alone.
//! Inside, its fingerprint leads from either of its two buckets to the other. The step is
//! always odd, so one of the two is even: (even bucket, fingerprint) names the pair, and can
//! be read off any stored fingerprint, or whole hash.

use core::num::NonZeroU32;
use core::ops::RangeInclusive;

use thiserror::Error;

use super::bucket::LANES;
use super::class::{Class, Seat};
use super::key::MixKey;
use crate::block::ChainHash;

/// Bits of a fingerprint.
const FINGERPRINT_BITS: u32 = 16;
/// Bits of a whole hash.
const HASH_BITS: u32 = 64;
/// Fingerprints there are; zero means an empty slot.
const FINGERPRINTS: u64 = 65_535;
/// Buckets of a chunk: 32 KiB. Shorter ones would fill up by chance before the hard load.
const CHUNK_BUCKETS: u16 = 4_096;
/// Largest table: 912 million blocks in 2 GiB, or 8 GiB in the exact form.
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
    #[error("fingerprints of {0} bits are not of {FINGERPRINT_BITS} or {HASH_BITS}")]
    FingerprintBits(u32),
}

/// How much of a mixed hash a table keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A fingerprint: two bytes a slot, and "yes" is sometimes wrong.
    #[default]
    Filter,
    /// All of it: eight bytes a slot, and two hashes are taken for one as rarely as two prompts
    /// have one hash.
    Exact,
}

impl Form {
    /// The word for it in configurations and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Exact => "exact",
        }
    }

    const fn slot_bits(self) -> u32 {
        match self {
            Self::Filter => FINGERPRINT_BITS,
            Self::Exact => HASH_BITS,
        }
    }

    fn of_slot_bits(bits: u32) -> Option<Self> {
        let mut forms = [Self::Filter, Self::Exact].into_iter();
        forms.find(|form| form.slot_bits() == bits)
    }
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
    /// Bits of each slot: of a fingerprint, or of a whole hash.
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
    form: Form,
    key_id: u64,
}

impl Geometry {
    /// The smallest filter that holds so many blocks at the soft load, capped at the largest.
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
            form: Form::Filter,
            key_id,
        }
    }

    /// A table for as many blocks in this form.
    #[must_use]
    pub const fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
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
        let form = Form::of_slot_bits(header.fingerprint_bits)
            .ok_or(GeometryError::FingerprintBits(header.fingerprint_bits))?;
        Ok(Self {
            chunks,
            chunk_buckets,
            form,
            key_id: header.key_id,
        })
    }

    /// The geometry as it goes on the wire.
    pub fn header(&self) -> Header {
        Header {
            chunks: self.chunks.get(),
            chunk_buckets: u32::from(self.chunk_buckets),
            slots: LANES,
            fingerprint_bits: self.form.slot_bits(),
            key_id: self.key_id,
        }
    }

    /// Number of chunks.
    pub const fn chunks(&self) -> u32 {
        self.chunks.get()
    }

    /// How much of a mixed hash it keeps.
    #[inline]
    pub const fn form(&self) -> Form {
        self.form
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
        u64::from(self.chunks.get()) * self.chunk_bytes()
    }

    /// Bytes of one chunk's buckets.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_slots() * u64::from(self.form.slot_bits() / 8)
    }

    /// The class of a hash under a key, which should be the geometry's own.
    #[inline]
    pub fn class(&self, key: &MixKey, chain: ChainHash) -> Class {
        self.class_of_mixed(key.mix(chain))
    }

    /// The class of a mixed hash.
    #[inline]
    pub(crate) fn class_of_mixed(&self, mixed: u64) -> Class {
        match self.form {
            Form::Filter => self.seat_of_mixed(mixed).to_class(),
            Form::Exact => Class::of_mixed(mixed),
        }
    }

    /// Where a mixed hash belongs: high half to chunk, 20 bits to fingerprint, the rest to bucket.
    #[inline]
    fn seat_of_mixed(&self, mixed: u64) -> Seat {
        let low = mixed & 0xffff_ffff;
        let fingerprint = 1 + (((low >> 12) * FINGERPRINTS) >> 20 & 0xffff) as u16;
        let bucket = (low & 0xfff) as u16 & self.bucket_mask() & !1;
        Seat::pack(self.chunk_of_mixed(mixed), bucket, fingerprint)
    }

    #[inline]
    fn chunk_of_mixed(&self, mixed: u64) -> u32 {
        (((mixed >> 32) * u64::from(self.chunks.get())) >> 32) as u32
    }

    /// Where entries of a class belong; nothing that makes sense for another table's class.
    #[inline]
    pub(super) fn seat(&self, class: Class) -> Seat {
        match self.form {
            Form::Filter => Seat::of_class(class),
            Form::Exact => self.seat_of_mixed(class.to_bits()),
        }
    }

    /// The chunk that a class of this table belongs to.
    #[inline]
    pub fn chunk(&self, class: Class) -> u32 {
        match self.form {
            Form::Filter => Seat::of_class(class).chunk(),
            Form::Exact => self.chunk_of_mixed(class.to_bits()),
        }
    }

    /// A class of a filter by its parts, if this table can have it.
    pub(super) fn class_at(&self, chunk: u32, bucket: u16, fingerprint: u16) -> Option<Class> {
        let class = Seat::pack(chunk, bucket, fingerprint).to_class();
        Some(class).filter(|class| self.has(*class))
    }

    /// Whether the class is one of this table.
    #[inline]
    pub fn has(&self, class: Class) -> bool {
        let seat = self.seat(class);
        seat.chunk() < self.chunks.get()
            && seat.bucket() < self.chunk_buckets
            && seat.bucket().is_multiple_of(2)
            && seat.fingerprint() != 0
    }

    /// The class of a fingerprint found in a bucket of a filter.
    #[inline]
    pub(super) fn class_of_stored(&self, chunk: u32, bucket: u16, fingerprint: u16) -> Class {
        let even = if bucket.is_multiple_of(2) {
            bucket
        } else {
            self.alternate(bucket, fingerprint)
        };
        Seat::pack(chunk, even, fingerprint).to_class()
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

    /// Where a seat's buckets stand in the table, the even one first.
    #[inline]
    pub(super) fn indices(&self, seat: Seat) -> (usize, usize) {
        let even = seat.bucket();
        let odd = self.alternate(even, seat.fingerprint());
        let index = |bucket| self.index(seat.chunk(), bucket);
        (index(even), index(odd))
    }

    /// Buckets of one chunk.
    #[inline]
    pub(super) const fn chunk_buckets(&self) -> u16 {
        self.chunk_buckets
    }

    /// The class's place among all classes of the table in their order.
    #[inline]
    pub(super) fn rank(&self, class: Class) -> u64 {
        if self.form == Form::Exact {
            return class.to_bits();
        }
        let seat = self.seat(class);
        let pair = u64::from(seat.bucket() / 2);
        (u64::from(seat.chunk()) << self.chunk_rank_bits())
            | pair << FINGERPRINT_BITS
            | u64::from(seat.fingerprint())
    }

    /// The class at a place, if there is one.
    #[inline]
    pub(super) fn class_of_rank(&self, rank: u64) -> Option<Class> {
        if self.form == Form::Exact {
            return Class::from_bits(rank);
        }
        let chunk = u32::try_from(rank >> self.chunk_rank_bits()).ok()?;
        let pair = (rank >> FINGERPRINT_BITS & 0xffff) as u16 & (self.bucket_mask() / 2);
        self.class_at(chunk, pair * 2, (rank & 0xffff) as u16)
    }

    /// The places of all classes.
    pub(super) fn ranks(&self) -> RangeInclusive<u64> {
        0..=self.first_rank(self.chunks.get()).wrapping_sub(1)
    }

    /// The places of one chunk's classes; none if the table doesn't have the chunk.
    pub(super) fn chunk_ranks(&self, chunk: u32) -> RangeInclusive<u64> {
        if chunk >= self.chunks.get() {
            return RangeInclusive::new(1, 0);
        }
        self.first_rank(chunk)..=self.first_rank(chunk + 1).wrapping_sub(1)
    }

    /// The least place of a chunk's classes; that of the chunk after the last may be 2^64, which
    /// comes out as zero.
    fn first_rank(&self, chunk: u32) -> u64 {
        match self.form {
            Form::Filter => u64::from(chunk) << self.chunk_rank_bits(),
            // The least high half that the reduction leads to the chunk.
            Form::Exact => (u64::from(chunk) << 32).div_ceil(u64::from(self.chunks.get())) << 32,
        }
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
