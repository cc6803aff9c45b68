//! An emulated site's side of tokens and text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use serde::Deserialize;
use thiserror::Error;

/// Why a prompt can't be made into tokens. The client is at fault.
#[derive(Debug, Error)]
pub(super) enum PromptError {
    /// The site has no tokenizer.
    #[error("this site has no tokenizer: send token ids")]
    NoTokenizer,
}

/// Turns prompts into tokens and tokens into text.
pub(super) struct Prompter {
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

impl Prompter {
    /// Reads a model directory.
    pub(super) fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("tokenizer.json");
        let words = std::fs::read(&path)
            .map_err(anyhow::Error::from)
            .and_then(|bytes| Ok(serde_json::from_slice::<TokenizerFile>(&bytes)?))
            .with_context(|| format!("{} can't be read", path.display()))?
            .model
            .vocab
            .into_iter()
            .filter_map(|(token, id)| Some((id, word(&token)?)))
            .collect();
        Ok(Self { words })
    }

    /// For a site that only takes token ids.
    pub(super) const fn without_model() -> Self {
        Self {
            words: BTreeMap::new(),
        }
    }

    /// Ids that are whole words: text made of them becomes the same ids again, so that an
    /// answer's blocks are found when it comes back as part of the next prompt.
    pub(super) fn vocabulary(&self) -> Vec<u32> {
        self.words.keys().copied().collect()
    }

    /// A token of [`vocabulary`](Self::vocabulary) as text.
    pub(super) fn word(&self, token: u32) -> Cow<'_, str> {
        match self.words.get(&token) {
            Some(word) => Cow::Borrowed(word),
            None => Cow::Owned(format!(" {token}")),
        }
    }

    /// Tokens of a chat request's body.
    pub(super) async fn chat(&self, _body: &Bytes) -> Result<Vec<u32>, PromptError> {
        Err(PromptError::NoTokenizer)
    }

    /// Tokens of a completion's prompt.
    pub(super) async fn text(&self, _text: &str) -> Result<Vec<u32>, PromptError> {
        Err(PromptError::NoTokenizer)
    }
}

/// The text of a token that is one lower-case word of at least three letters and the space
/// before it, which byte-level BPE writes as `Ġ`.
fn word(token: &str) -> Option<String> {
    let letters = token.strip_prefix('Ġ')?;
    let is_word = letters.len() >= 3 && letters.bytes().all(|byte| byte.is_ascii_lowercase());
    is_word.then(|| format!(" {letters}"))
}
