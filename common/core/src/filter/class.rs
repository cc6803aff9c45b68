//! What the filter keeps of a hash.

use core::fmt;

/// A chunk, the even one of two candidate buckets, and a fingerprint.
///
/// Hashes of one class cannot be told apart. The order is chunk, bucket, fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u64);

impl Class {
    /// Packs the parts; only [`super::Geometry`] knows whether they make sense.
    #[inline]
    pub(super) const fn pack(chunk: u32, bucket: u16, fingerprint: u16) -> Self {
        Self((chunk as u64) << 32 | (bucket as u64) << 16 | fingerprint as u64)
    }

    /// Reads a class back from [`Class::to_bits`]; zero is none.
    #[inline]
    pub(super) const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// The class as one word, never zero since a fingerprint never is.
    #[inline]
    pub(super) const fn to_bits(self) -> u64 {
        self.0
    }

    /// The chunk it belongs to.
    #[inline]
    pub const fn chunk(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The even one of its two buckets, counted within the chunk.
    #[inline]
    pub const fn bucket(self) -> u16 {
        (self.0 >> 16 & 0xffff) as u16
    }

    /// Its fingerprint, never zero.
    #[inline]
    pub const fn fingerprint(self) -> u16 {
        (self.0 & 0xffff) as u16
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
        let (chunk, bucket, fingerprint) = (self.chunk(), self.bucket(), self.fingerprint());
        write!(f, "Class({chunk}:{bucket}:{fingerprint:04x})")
    }
}
