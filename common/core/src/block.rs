//! Token blocks and their hashes, exactly as Dynamo computes them.
//!
//! A block is `block_size` consecutive tokens; a tail that does not fill a block has no hash.
//! Its *local* hash covers its own tokens and a seed, into which a LoRA adapter's name and a
//! cache namespace are folded. Its *chain* hash covers the block and all blocks before it, so
//! equal chain hashes mean equal prefixes; it is what filters hold.
//!
//! With EAGLE speculative decoding a block's window is one token longer than its stride, so
//! that neighbouring windows share a token.
//!
//! **Invariant:** nothing but tokens, adapter and namespace enters a hash. An engine's own
//! name of a block never does.

use core::num::NonZeroU32;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of every hash that carries neither adapter nor namespace, and of all chaining.
const SEED: u64 = 1337;

/// The hash of one block's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

/// The hash of a block and all blocks before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainHash(pub u64);

impl ChainHash {
    /// The chain of a prompt's first block.
    pub const fn root(block: BlockHash) -> Self {
        Self(block.0)
    }

    /// The chain that `block` makes of the chain before it.
    pub fn child(self, block: BlockHash) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&block.0.to_le_bytes());
        Self(xxh3_64_with_seed(&bytes, SEED))
    }
}

/// How tokens are cut into blocks before hashing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HashFormat {
    /// Blocks lie side by side.
    #[default]
    Standard,
    /// Each block also covers the first token of the next one.
    Eagle,
}

impl HashFormat {
    /// Tokens that one block's hash covers.
    const fn window(self, block_size: usize) -> usize {
        match self {
            Self::Standard => block_size,
            Self::Eagle => block_size.saturating_add(1),
        }
    }
}

/// What is folded into every block hash besides its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashSeed(u64);

impl HashSeed {
    /// The seed for an adapter's canonical name and a cache namespace; empty text is none.
    pub fn new(lora: Option<&str>, namespace: Option<&str>) -> Self {
        let adapter = folded(lora, 0);
        let tenant = folded(namespace, 1);
        Self(SEED.wrapping_add(adapter).wrapping_add(tenant))
    }
}

impl Default for HashSeed {
    fn default() -> Self {
        Self(SEED)
    }
}

fn folded(text: Option<&str>, seed: u64) -> u64 {
    match text {
        None | Some("") => 0,
        Some(text) => xxh3_64_with_seed(text.as_bytes(), seed),
    }
}

/// The local hashes of all complete blocks, in order.
pub fn block_hashes(
    tokens: &[u32],
    block_size: NonZeroU32,
    format: HashFormat,
    seed: HashSeed,
) -> Vec<BlockHash> {
    hashes(tokens, block_size, format, seed).collect()
}

/// The chain hashes of all complete blocks, in order.
pub fn chain_hashes(
    tokens: &[u32],
    block_size: NonZeroU32,
    format: HashFormat,
    seed: HashSeed,
) -> Vec<ChainHash> {
    hashes(tokens, block_size, format, seed)
        .scan(None, |last: &mut Option<ChainHash>, block| {
            let chain = match *last {
                None => ChainHash::root(block),
                Some(parent) => parent.child(block),
            };
            *last = Some(chain);
            Some(chain)
        })
        .collect()
}

fn hashes(
    tokens: &[u32],
    block_size: NonZeroU32,
    format: HashFormat,
    seed: HashSeed,
) -> impl Iterator<Item = BlockHash> {
    let stride = usize::try_from(block_size.get()).unwrap_or(usize::MAX);
    let window = format.window(stride);
    let mut bytes = Vec::with_capacity(window.min(tokens.len()).saturating_mul(4));
    (0..)
        .step_by(stride)
        .map_while(move |start: usize| tokens.get(start..start.checked_add(window)?))
        .map(move |block| {
            bytes.clear();
            bytes.extend(block.iter().flat_map(|token| token.to_le_bytes()));
            BlockHash(xxh3_64_with_seed(&bytes, seed.0))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn size(tokens: u32) -> NonZeroU32 {
        NonZeroU32::new(tokens).unwrap()
    }

    fn local(tokens: &[u32], format: HashFormat, seed: HashSeed) -> Vec<u64> {
        let blocks = block_hashes(tokens, size(4), format, seed);
        blocks.into_iter().map(|hash| hash.0).collect()
    }

    #[test]
    fn text_blocks_hash_as_in_dynamo() {
        let tokens = [1, 2, 3, 4, 5, 6, 7, 8];

        let blocks = local(&tokens, HashFormat::Standard, HashSeed::default());
        let chains = chain_hashes(&tokens, size(4), HashFormat::Standard, HashSeed::default());

        assert_eq!(blocks, [14643705804678351452, 16777012769546811212]);
        assert_eq!(
            chains,
            [
                ChainHash(14643705804678351452),
                ChainHash(4945711292740353085)
            ]
        );
    }

    #[test]
    fn adapter_and_namespace_hash_as_in_dynamo() {
        let hash = |lora, namespace| {
            local(
                &[1, 2, 3, 4],
                HashFormat::Standard,
                HashSeed::new(lora, namespace),
            )
        };

        assert_eq!(hash(Some("adapter-a"), None), [11381080598872079209]);
        assert_eq!(hash(None, Some("tenant-a")), [5738685477468498325]);
        assert_eq!(
            hash(Some("adapter-a"), Some("tenant-a")),
            [9967753091837871098]
        );
        assert_eq!(hash(Some(""), Some("")), hash(None, None));
    }

    #[test]
    fn eagle_blocks_hash_as_in_dynamo() {
        let blocks = local(&[1, 2, 3, 4, 5], HashFormat::Eagle, HashSeed::default());

        assert_eq!(blocks, [1914873892905420881]);
    }

    #[test]
    fn an_eagle_block_needs_the_token_after_it() {
        let count = |tokens: &[u32]| local(tokens, HashFormat::Eagle, HashSeed::default()).len();

        assert_eq!(count(&[1, 2, 3, 4]), 0);
        assert_eq!(count(&[1, 2, 3, 4, 5, 6, 7, 8]), 1);
        assert_eq!(count(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), 2);
    }

    #[test]
    fn a_huge_block_size_has_no_blocks() {
        let blocks = block_hashes(
            &[1, 2, 3],
            size(u32::MAX),
            HashFormat::Eagle,
            HashSeed::default(),
        );

        assert_eq!(blocks, []);
    }

    /// Says the same as Dynamo's description, word for word and slowly.
    fn naive(tokens: &[u32], size: usize, eagle: bool, seed: u64) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for index in 0..tokens.len() / size {
            let start = index * size;
            let end = start + size + usize::from(eagle);
            if end > tokens.len() {
                break;
            }
            let bytes: Vec<u8> = tokens[start..end]
                .iter()
                .flat_map(|t| t.to_le_bytes())
                .collect();
            let block = xxh3_64_with_seed(&bytes, seed);
            let chain = match found.last() {
                None => block,
                Some((_, parent)) => {
                    let pair = [parent.to_le_bytes(), block.to_le_bytes()].concat();
                    xxh3_64_with_seed(&pair, 1337)
                }
            };
            found.push((block, chain));
        }
        found
    }

    proptest! {
        #[test]
        fn hashes_equal_the_naive_ones(
            tokens in proptest::collection::vec(any::<u32>(), 0..200),
            block_size in 1u32..20,
            eagle: bool,
            lora in proptest::option::of("[a-z]{0,3}"),
            namespace in proptest::option::of("[a-z]{0,3}"),
        ) {
            let format = if eagle { HashFormat::Eagle } else { HashFormat::Standard };
            let seed = HashSeed::new(lora.as_deref(), namespace.as_deref());

            let blocks = block_hashes(&tokens, size(block_size), format, seed);
            let chains = chain_hashes(&tokens, size(block_size), format, seed);
            let expected = naive(&tokens, block_size as usize, eagle, seed.0);

            let found: Vec<_> = blocks.iter().zip(&chains).map(|(b, c)| (b.0, c.0)).collect();
            prop_assert_eq!(blocks.len(), chains.len());
            prop_assert_eq!(found, expected);
        }
    }
}
