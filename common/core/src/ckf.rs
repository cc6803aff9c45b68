//! Dynamo's own cuckoo filter, format 1 (`ckf-v1`), as its relay publishes it.
//!
//! The filter is, as ours, a multiset of *classes*: a pair of buckets and a 16-bit fingerprint,
//! taken from a chain hash with a seed that everybody knows. Where in its pair an entry stands
//! is the publisher's business and changes with every kick. So nothing here keeps a second
//! kind of filter: a [`Mirror`] turns the publisher's bucket words into classes that came and
//! went, and each class is the *name* under which an ordinary pool of ours holds its blocks.
//! Who searches such a pool gives it names instead of chain hashes ([`Naming`]).
//!
//! [`Stream`] reads what one subscription brings, and refuses what contradicts itself.

use core::num::NonZeroU32;

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::block::ChainHash;

mod frame;
mod mirror;
mod stream;
#[cfg(test)]
mod tests;

pub use frame::FrameError;
pub use mirror::{Changes, Mirror};
pub use stream::{Kind, Progress, Stream, StreamError, Update};

/// The only version of the format that there is.
const VERSION: u32 = 1;
/// Bits of a fingerprint.
const FINGERPRINT_BITS: u32 = 16;
/// Slots of a bucket, the first in the lowest bits of its word; zero is an empty one.
const SLOTS: u32 = 4;
/// Most buckets that the format allows: a table of 128 MiB.
const MAX_BUCKETS: u32 = 1 << 24;
/// What the seed is mixed with to find a fingerprint's other bucket.
const ALTERNATE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Why a filter's format is refused. The peer is at fault, or newer than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Another version.
    #[error("format version {0} is not {VERSION}")]
    Version(u32),
    /// Another width of fingerprints.
    #[error("fingerprints of {0} bits are not of {FINGERPRINT_BITS}")]
    FingerprintBits(u32),
    /// Another number of slots in a bucket.
    #[error("{0} slots in a bucket are not {SLOTS}")]
    Slots(u32),
    /// No power of two, or one that the format doesn't allow.
    #[error("{0} buckets are not a power of two from 2 to {MAX_BUCKETS}")]
    Buckets(u64),
}

/// A format as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: u32,
    /// Seed of all its hashes; not a secret.
    pub seed: u64,
    /// Number of buckets.
    pub buckets: u64,
    /// Bits of a fingerprint.
    pub fingerprint_bits: u32,
    /// Slots of a bucket.
    pub slots: u32,
}

/// All that decides to which class a chain hash belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Format {
    seed: u64,
    /// A power of two from 2 on.
    buckets: NonZeroU32,
}

impl Format {
    /// Takes a format from the wire, if it is one that this version knows.
    pub fn from_header(header: Header) -> Result<Self, FormatError> {
        if header.version != VERSION {
            return Err(FormatError::Version(header.version));
        }
        if header.fingerprint_bits != FINGERPRINT_BITS {
            return Err(FormatError::FingerprintBits(header.fingerprint_bits));
        }
        if header.slots != SLOTS {
            return Err(FormatError::Slots(header.slots));
        }
        Self::new(header.seed, header.buckets)
    }

    /// A table of so many buckets with this seed.
    pub fn new(seed: u64, buckets: u64) -> Result<Self, FormatError> {
        let number = u32::try_from(buckets).ok().and_then(NonZeroU32::new);
        let allowed = |number: &NonZeroU32| {
            number.get().is_power_of_two() && (2..=MAX_BUCKETS).contains(&number.get())
        };
        let buckets = number
            .filter(allowed)
            .ok_or(FormatError::Buckets(buckets))?;
        Ok(Self { seed, buckets })
    }

    /// The format as it goes on the wire.
    pub const fn header(&self) -> Header {
        Header {
            version: VERSION,
            seed: self.seed,
            buckets: self.buckets.get() as u64,
            fingerprint_bits: FINGERPRINT_BITS,
            slots: SLOTS,
        }
    }

    /// The seed of all hashes.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Number of buckets.
    pub const fn buckets(&self) -> u32 {
        self.buckets.get()
    }

    /// Slots of all buckets.
    pub fn slots(&self) -> u64 {
        u64::from(self.buckets.get()) * u64::from(SLOTS)
    }

    /// The name of a chain's class, which takes the chain hash's place in a pool.
    #[inline]
    pub fn name(&self, chain: ChainHash) -> ChainHash {
        let mixed = xxh3_64_with_seed(&chain.0.to_le_bytes(), self.seed);
        let fingerprint = ((mixed & 0xffff) as u16).max(1);
        let bucket = (mixed >> 16 & 0xffff_ffff) as u32 & self.mask();
        self.name_of_stored(bucket, fingerprint)
    }

    /// The name of the class of a fingerprint that stands in a bucket: the lower one of its
    /// two buckets, then the fingerprint.
    #[inline]
    fn name_of_stored(&self, bucket: u32, fingerprint: u16) -> ChainHash {
        let lower = bucket.min(self.alternate(bucket, fingerprint));
        ChainHash(u64::from(lower) << FINGERPRINT_BITS | u64::from(fingerprint))
    }

    /// The other bucket of a fingerprint; never the same one.
    #[inline]
    fn alternate(&self, bucket: u32, fingerprint: u16) -> u32 {
        let mixed = xxh3_64_with_seed(&fingerprint.to_le_bytes(), self.seed ^ ALTERNATE);
        bucket ^ ((mixed & 0xffff_ffff) as u32 & self.mask()).max(1)
    }

    const fn mask(&self) -> u32 {
        self.buckets.get() - 1
    }
}

/// By what a pool knows its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Naming {
    /// By their chain hashes.
    #[default]
    Chain,
    /// By the classes of a `ckf-v1` filter, so that hashes of one class are one block.
    Ckf(Format),
    /// By something that is not known here: nothing can be looked up in the pool.
    Unknown,
}

impl Naming {
    /// What a chain's blocks are called in a pool.
    pub fn names(&self, chain: &[ChainHash]) -> Vec<ChainHash> {
        match self {
            Self::Chain => chain.to_vec(),
            Self::Ckf(format) => chain.iter().map(|chain| format.name(*chain)).collect(),
            Self::Unknown => Vec::new(),
        }
    }
}
