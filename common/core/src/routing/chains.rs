//! A request's prompt as chain hashes, each kind hashed once.
//!
//! Sites of one model can differ in how they tokenise (their cards differ), in block size
//! and in hash format. Token sequences that are equal are kept once, and each is hashed once
//! per (block size, format) that the view has a pool of, however many sites share it. Pools
//! that name their blocks otherwise than by these hashes get a chain of such names, made once
//! as well.

use core::num::NonZeroU32;
use std::sync::Arc;

use crate::block::{ChainHash, HashSeed, chain_hashes};
use crate::id::ModelId;
use crate::view::plan::Kind;
use crate::view::{CardDigest, GridView};
use xxhash_rust::xxh3::Xxh3Default;

/// A prompt's tokens, per card, and their chains, once hashed.
#[derive(Clone, Debug)]
pub struct Chains {
    seed: HashSeed,
    /// Which of `prompts` a card's sites see.
    cards: Vec<(CardDigest, usize)>,
    /// Index of the prompt that holds for every site, whatever its card.
    every: Option<usize>,
    prompts: Vec<Prompt>,
}

#[derive(Clone, Debug)]
struct Prompt {
    tokens: Arc<[u32]>,
    chains: Vec<(Kind, Vec<ChainHash>)>,
}

impl Chains {
    /// A prompt of which no tokens are known.
    pub const fn new(seed: HashSeed) -> Self {
        Self {
            seed,
            cards: Vec::new(),
            every: None,
            prompts: Vec::new(),
        }
    }

    /// The client's own token ids, which hold for every site.
    pub fn of_every_site(tokens: Arc<[u32]>, seed: HashSeed) -> Self {
        let mut chains = Self::new(seed);
        chains.every = Some(chains.intern(tokens));
        chains
    }

    /// The tokens as one card makes them.
    pub fn insert(&mut self, card: CardDigest, tokens: Arc<[u32]>) {
        let index = self.intern(tokens);
        match self.cards.iter_mut().find(|(known, _)| *known == card) {
            Some(known) => known.1 = index,
            None => self.cards.push((card, index)),
        }
    }

    /// Whether no tokens are known for any card.
    pub const fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    /// The prompt's tokens at sites with this card.
    pub fn tokens(&self, card: &CardDigest) -> Option<&[u32]> {
        Some(&self.prompt(Some(card))?.tokens)
    }

    /// The prompt's length at sites with this card.
    pub fn prompt_tokens(&self, card: Option<&CardDigest>) -> Option<u32> {
        let prompt = self.prompt(card)?;
        Some(u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX))
    }

    /// What the prompt's first block hashes to at sites with this card, for affinity.
    pub(super) fn beginning(&self, card: &CardDigest, block_size: NonZeroU32) -> Option<u64> {
        let tokens = &self.prompt(Some(card))?.tokens;
        let block = tokens.len().min(block_size.get() as usize);
        let mut hasher = Xxh3Default::new();
        for token in &tokens[..block] {
            hasher.update(&token.to_le_bytes());
        }
        Some(hasher.digest())
    }

    /// The longest length that any card gives.
    pub fn longest(&self) -> Option<u32> {
        let longest = self
            .prompts
            .iter()
            .map(|prompt| prompt.tokens.len())
            .max()?;
        Some(u32::try_from(longest).unwrap_or(u32::MAX))
    }

    /// Hashes what the pools of `model` in `view` ask for and is not hashed yet.
    pub fn hash_for(&mut self, view: &GridView, model: ModelId) {
        let Some(plan) = view.plan(model) else {
            return;
        };
        for reading in &plan.readings {
            let card = plan.cards[reading.card].as_ref();
            if let Some(index) = self.index(card) {
                self.prompts[index].name(reading.kind, self.seed);
            }
        }
    }

    /// The names of the prompt's blocks in pools of this kind at sites with this card; `None`
    /// if the tokens are not known or not hashed.
    pub(super) fn chain(&self, card: Option<&CardDigest>, kind: Kind) -> Option<&[ChainHash]> {
        self.prompt(card)?.chain(kind)
    }

    fn intern(&mut self, tokens: Arc<[u32]>) -> usize {
        let known = self.prompts.iter().position(|known| known.tokens == tokens);
        known.unwrap_or_else(|| {
            self.prompts.push(Prompt {
                tokens,
                chains: Vec::new(),
            });
            self.prompts.len() - 1
        })
    }

    fn index(&self, card: Option<&CardDigest>) -> Option<usize> {
        let by_card = || {
            let card = card?;
            self.cards.iter().find(|(known, _)| known == card)
        };
        self.every.or_else(|| by_card().map(|(_, index)| *index))
    }

    fn prompt(&self, card: Option<&CardDigest>) -> Option<&Prompt> {
        self.index(card).and_then(|index| self.prompts.get(index))
    }
}

impl Prompt {
    fn chain(&self, kind: Kind) -> Option<&[ChainHash]> {
        let mut chains = self.chains.iter();
        let found = chains.find(|(of, _)| *of == kind);
        found.map(|(_, chain)| chain.as_slice())
    }

    /// Names the blocks as pools of this kind do, unless that was done already.
    fn name(&mut self, kind: Kind, seed: HashSeed) {
        if self.chain(kind).is_some() {
            return;
        }
        let hashed = Kind::hashed(kind.block_size, kind.format);
        let hashes = match self.chain(hashed) {
            Some(hashes) => hashes,
            None => {
                let hashes = chain_hashes(&self.tokens, kind.block_size, kind.format, seed);
                self.chains.push((hashed, hashes));
                &self.chains[self.chains.len() - 1].1
            }
        };
        if kind != hashed {
            let names = kind.naming.names(hashes);
            self.chains.push((kind, names));
        }
    }
}
