//! Why events are refused, and how often.

use super::msgpack::Malformed;

/// Why an event, or the rest of a stored run, was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// A field is missing or of another type than it should be.
    Malformed,
    /// An event of a type that is not known here.
    UnknownType,
    /// A storage medium that is not known here.
    UnknownMedium,
    /// Storage that is not the worker's own.
    Remote,
    /// Storage with an owner other than the engine.
    Ownership,
    /// Another block size than the pool's.
    BlockSize,
    /// Pairs of tokens where single ones are expected, or the reverse.
    HashFormat,
    /// Blocks that are not of full attention.
    Attention,
    /// An adapter without a name.
    Adapter,
    /// A salt that is ambiguous, or one salted block too many.
    Salt,
    /// Blocks whose content is more than tokens, such as images.
    ExtraKeys,
    /// Fewer tokens than the blocks need.
    FewTokens,
    /// A worker other than the one the publisher speaks for.
    Worker,
    /// A message that does not keep to its contract: no marker, or another version.
    Contract,
    /// Another life of the publisher than the one that was asked for.
    Producer,
    /// Something of a peer's that is not known here, and is never taken for something else.
    Unsupported,
    /// More of something than is followed.
    Limit,
}

impl Refusal {
    /// Every reason, in the order of their declaration.
    pub const ALL: [Self; 17] = [
        Self::Malformed,
        Self::UnknownType,
        Self::UnknownMedium,
        Self::Remote,
        Self::Ownership,
        Self::BlockSize,
        Self::HashFormat,
        Self::Attention,
        Self::Adapter,
        Self::Salt,
        Self::ExtraKeys,
        Self::FewTokens,
        Self::Worker,
        Self::Contract,
        Self::Producer,
        Self::Unsupported,
        Self::Limit,
    ];

    /// A short name, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownType => "unknown_type",
            Self::UnknownMedium => "unknown_medium",
            Self::Remote => "remote",
            Self::Ownership => "ownership",
            Self::BlockSize => "block_size",
            Self::HashFormat => "hash_format",
            Self::Attention => "attention",
            Self::Adapter => "adapter",
            Self::Salt => "salt",
            Self::ExtraKeys => "extra_keys",
            Self::FewTokens => "few_tokens",
            Self::Worker => "worker",
            Self::Contract => "contract",
            Self::Producer => "producer",
            Self::Unsupported => "unsupported",
            Self::Limit => "limit",
        }
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Refused events by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    counts: [u64; Refusal::ALL.len()],
}

impl Refusals {
    /// Counts one refusal.
    pub const fn count(&mut self, refusal: Refusal) {
        self.counts[refusal as usize] += 1;
    }

    /// Adds all counts of another.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
    }

    /// How often this reason was given.
    pub const fn of(&self, refusal: Refusal) -> u64 {
        self.counts[refusal as usize]
    }

    /// All refusals together.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}
