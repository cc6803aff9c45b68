//! The keyed mix: chain hash to 64 bits that nobody can predict without the grid's key.
//!
//! SipHash-1-3 over the eight bytes of the hash. It is made to be a pseudorandom function of
//! short inputs and costs about as much as one memory access. xxh3 with a secret is not one:
//! for eight bytes it is a known permutation of `input ^ secret`, so a single known pair of
//! hash and class leaves a few million candidates for its whole secret. With it, collisions
//! can be made and guessed prompts be tested against a stolen filter.
//!
//! The two halves of the key are used apart: one mixes, the other only makes the public id,
//! so the id says nothing about the mix.

use core::fmt;

use crate::block::ChainHash;

/// What the id half is applied to.
const ID_INPUT: u64 = u64::from_le_bytes(*b"kvgridid");

/// The grid's secret 32 bytes, ready for use; without it a filter can neither be asked nor fooled.
#[derive(Clone, PartialEq, Eq)]
pub struct MixKey {
    mix: [u64; 2],
    id: u64,
}

impl MixKey {
    /// Takes the key as it stands in the key file.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            mix: [word(0), word(8)],
            id: sip::<1, 3>([word(16), word(24)], ID_INPUT),
        }
    }

    /// The key's public name, which stands in a table's geometry.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// A key of the same name that mixes otherwise: for hashes that share a table with others
    /// and must not be taken for them.
    pub(crate) fn derived(&self, purpose: u64) -> Self {
        let mix = [purpose, !purpose].map(|word| self.mix(ChainHash(word)));
        Self { mix, id: self.id }
    }

    /// Mixes a chain hash.
    #[inline]
    pub fn mix(&self, chain: ChainHash) -> u64 {
        sip::<1, 3>(self.mix, chain.0)
    }
}

impl fmt::Debug for MixKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MixKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// SipHash of one little-endian word with `C` rounds for a word and `D` to finish.
#[inline]
const fn sip<const C: usize, const D: usize>(key: [u64; 2], input: u64) -> u64 {
    const LENGTH: u64 = 8 << 56;
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    v[3] ^= input;
    v = rounds::<C>(v);
    v[0] ^= input;
    v[3] ^= LENGTH;
    v = rounds::<C>(v);
    v[0] ^= LENGTH;
    v[2] ^= 0xff;
    v = rounds::<D>(v);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
const fn rounds<const N: usize>(mut v: [u64; 4]) -> [u64; 4] {
    let mut round = 0;
    while round < N {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
        round += 1;
    }
    v
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn two_four_rounds_agree_with_the_standard_library(key: [u64; 2], input: u64) {
            #[allow(deprecated, reason = "the library's only SipHash that takes a key")]
            let mut hasher = std::hash::SipHasher::new_with_keys(key[0], key[1]);
            hasher.write(&input.to_le_bytes());

            prop_assert_eq!(sip::<2, 4>(key, input), hasher.finish());
        }

        #[test]
        fn one_three_rounds_agree_with_the_standard_library(input: u64) {
            let mut hasher = std::hash::DefaultHasher::new();
            hasher.write(&input.to_le_bytes());

            prop_assert_eq!(sip::<1, 3>([0, 0], input), hasher.finish());
        }
    }

    #[test]
    fn each_half_of_the_key_has_its_own_use() {
        let key = MixKey::from_bytes(&[7; 32]);
        let mut bytes = [7; 32];
        bytes[0] = 8;
        let other_mix = MixKey::from_bytes(&bytes);
        bytes[0] = 7;
        bytes[31] = 8;
        let other_id = MixKey::from_bytes(&bytes);
        let chain = ChainHash(99);

        assert_ne!(key.mix(chain), other_mix.mix(chain));
        assert_eq!(key.id(), other_mix.id());
        assert_eq!(key.mix(chain), other_id.mix(chain));
        assert_ne!(key.id(), other_id.id());
    }

    #[test]
    fn the_secret_is_not_printed() {
        let key = MixKey::from_bytes(&[7; 32]);

        assert!(!format!("{key:?}").contains(&key.mix[0].to_string()));
    }
}
