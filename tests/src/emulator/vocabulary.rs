//! A model's tokens that are whole words.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// Tokens that are a word and the space before it: text made of them becomes the same
/// tokens again, so that an answer's blocks are found when it comes back as part of the next
/// prompt.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    words: BTreeMap<u32, String>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    model: TokenizerModel,
}

#[derive(Deserialize)]
struct TokenizerModel {
    vocab: BTreeMap<String, u32>,
}

impl Vocabulary {
    /// Reads the tokenizer of a model directory.
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("tokenizer.json");
        let unusable = || format!("{} is no usable tokenizer", path.display());
        let bytes = std::fs::read(&path).with_context(unusable)?;
        let file: TokenizerFile = serde_json::from_slice(&bytes).with_context(unusable)?;
        let words = file
            .model
            .vocab
            .into_iter()
            .filter_map(|(token, id)| Some((id, word(&token)?)))
            .collect();
        Ok(Self { words })
    }

    /// The tokens' ids.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.words.keys().copied()
    }

    /// The tokens' texts, each with the space before it.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.words.values().map(String::as_str)
    }

    /// A token as text; one that is no word by its number.
    pub fn word(&self, token: u32) -> Cow<'_, str> {
        match self.words.get(&token) {
            Some(word) => Cow::Borrowed(word),
            None => Cow::Owned(format!(" {token}")),
        }
    }
}

/// The text of a token that is one lower-case word of at least three letters and the space
/// before it, which byte-level BPE writes as `Ġ`.
fn word(token: &str) -> Option<String> {
    let letters = token.strip_prefix('Ġ')?;
    let is_word = letters.len() >= 3 && letters.bytes().all(|byte| byte.is_ascii_lowercase());
    is_word.then(|| format!(" {letters}"))
}
