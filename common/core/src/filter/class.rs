//! What a table keeps of a hash, and where in the table that belongs.

use core::fmt;

/// What a table keeps of a hash, as one word: a seat in the filter form, the whole mixed hash in
/// the exact form.
///
/// Hashes of one class cannot be told apart. In either form classes are ordered by their chunks
/// first, which only the table's [`super::Geometry`] can tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u64);

impl Class {
    /// Reads a class back from [`Class::to_bits`]; zero is none.
    #[inline]
    pub(super) const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// All of a mixed hash. Zero, which is no class, is taken for its neighbour: they are as hard
    /// to tell apart as any two hashes of one class.
    #[inline]
    pub(super) const fn of_mixed(mixed: u64) -> Self {
        if mixed == 0 { Self(1) } else { Self(mixed) }
    }

    /// The class as one word, never zero.
    #[inline]
    pub(super) const fn to_bits(self) -> u64 {
        self.0
    }

    /// Its term in a chunk's digest, which is the wrapping sum over the chunk's classes.
    ///
    /// A sum counts duplicates, which an exclusive or would cancel.
    #[inline]
    pub const fn digest(self) -> u64 {
        // The finaliser of MurmurHash3: sums of it over different multisets differ by chance
        // only. No key is needed, since it finds drift and not forgery.
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ mixed >> 33
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Class({:016x})", self.0)
    }
}

/// Where an entry belongs: a chunk, the even one of two candidate buckets, and the fingerprint
/// that leads from either bucket to the other. The order is chunk, bucket, fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seat(u64);

impl Seat {
    /// Packs the parts; only [`super::Geometry`] knows whether they make sense.
    #[inline]
    pub(super) const fn pack(chunk: u32, bucket: u16, fingerprint: u16) -> Self {
        Self((chunk as u64) << 32 | (bucket as u64) << 16 | fingerprint as u64)
    }

    /// What the filter form keeps is the seat and nothing more.
    #[inline]
    pub(super) const fn of_class(class: Class) -> Self {
        Self(class.0)
    }

    /// The class of all hashes with this seat, in the filter form.
    #[inline]
    pub(super) const fn to_class(self) -> Class {
        Class(self.0)
    }

    /// The chunk it belongs to.
    #[inline]
    pub(super) const fn chunk(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The even one of its two buckets, counted within the chunk.
    #[inline]
    pub(super) const fn bucket(self) -> u16 {
        (self.0 >> 16 & 0xffff) as u16
    }

    /// Its fingerprint, never zero.
    #[inline]
    pub(super) const fn fingerprint(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}
