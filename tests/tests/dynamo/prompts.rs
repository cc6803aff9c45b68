//! What a prompt's blocks are called, and what holding some of them is worth.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use kvgrid_core::block::{HashFormat, HashSeed, chain_hashes};
use kvgrid_prompt::{Card, CardOptions, LoadOptions, Prompter};
use kvgrid_tests::harness::{MODEL, model_dir};

use crate::traffic::{BLOCK, Question};

/// What kvgrid takes a prompt's token ids to be.
pub(crate) struct Tokens {
    prompter: Prompter,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        let options = CardOptions::new(MODEL, block_size());
        let card = Card::from_model_dir(&model_dir(), options).unwrap();
        let prompter = Prompter::load(&card, &LoadOptions::default()).unwrap();
        Self { prompter }
    }

    pub(crate) fn of(&self, question: &Question) -> Vec<u32> {
        let body = question.body.to_string();
        let prompt = match question.path {
            "/v1/chat/completions" => self.prompter.chat(body.as_bytes(), None),
            _ => self.prompter.completion(body.as_bytes(), None),
        };
        prompt.unwrap().tokens.to_vec()
    }
}

fn block_size() -> NonZeroU32 {
    u32::try_from(BLOCK).ok().and_then(NonZeroU32::new).unwrap()
}

/// How many of a prompt's leading blocks are held, by the mocker's names.
pub(crate) fn depth(held: &BTreeSet<u64>, prompt: &[u32]) -> usize {
    let names = chain_hashes(
        prompt,
        block_size(),
        HashFormat::Standard,
        HashSeed::default(),
    );
    names
        .iter()
        .take_while(|name| held.contains(&name.0))
        .count()
}

/// Tokens of a prompt that needn't be computed: the last one always is.
pub(crate) fn overlap(depth: usize, prompt_tokens: usize) -> u64 {
    let reusable = depth.min((prompt_tokens - 1) / BLOCK);
    u64::try_from(reusable * BLOCK).unwrap()
}
