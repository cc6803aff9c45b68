//! An emulated site's side of tokens and text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use kvgrid_prompt::{Card, CardOptions, LoadOptions, Prompt};
use serde::Deserialize;

use super::answer::AnswerKind;
use super::question::QuestionError;

/// Bodies from this size on are read on a thread of their own: they take milliseconds, and
/// the engine's timers must not wait for them.
const LARGE: usize = 16 << 10;

/// Turns prompts into tokens and tokens into text.
pub(super) struct Prompter {
    /// Absent at a site that only takes token ids.
    model: Option<Arc<kvgrid_prompt::Prompter>>,
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
    pub(super) fn load(dir: &Path, model: &str, block_size: NonZeroU32) -> anyhow::Result<Self> {
        let unusable = || format!("{} is no usable model directory", dir.display());
        let card = Card::from_model_dir(dir, CardOptions::new(model, block_size))
            .with_context(unusable)?;
        let tokenizer: TokenizerFile = card
            .file("tokenizer.json")
            .context("it has no tokenizer.json")
            .and_then(|file| Ok(serde_json::from_slice(file)?))
            .with_context(unusable)?;
        let prompter =
            kvgrid_prompt::Prompter::load(&card, &LoadOptions::default()).with_context(unusable)?;
        let words = tokenizer
            .model
            .vocab
            .into_iter()
            .filter_map(|(token, id)| Some((id, word(&token)?)))
            .collect();
        Ok(Self {
            model: Some(Arc::new(prompter)),
            words,
        })
    }

    /// For a site that only takes token ids.
    pub(super) const fn without_model() -> Self {
        Self {
            model: None,
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

    /// The prompt of a request's body.
    pub(super) async fn prompt(
        &self,
        kind: AnswerKind,
        body: &Bytes,
        tenant: Option<&str>,
    ) -> Result<Prompt, QuestionError> {
        let Some(model) = &self.model else {
            return Err(QuestionError::NoTokenizer);
        };
        if body.len() < LARGE {
            return Ok(read(model, kind, body, tenant)?);
        }
        let (model, body, tenant) = (model.clone(), body.clone(), tenant.map(str::to_owned));
        let reading =
            tokio::task::spawn_blocking(move || read(&model, kind, &body, tenant.as_deref()));
        match reading.await {
            Ok(prompt) => Ok(prompt?),
            Err(error) => Err(QuestionError::Panicked(error)),
        }
    }
}

fn read(
    model: &kvgrid_prompt::Prompter,
    kind: AnswerKind,
    body: &[u8],
    tenant: Option<&str>,
) -> Result<Prompt, kvgrid_prompt::PromptError> {
    match kind {
        AnswerKind::Chat => model.chat(body, tenant),
        AnswerKind::Text => model.completion(body, tenant),
    }
}

/// The text of a token that is one lower-case word of at least three letters and the space
/// before it, which byte-level BPE writes as `Ġ`.
fn word(token: &str) -> Option<String> {
    let letters = token.strip_prefix('Ġ')?;
    let is_word = letters.len() >= 3 && letters.bytes().all(|byte| byte.is_ascii_lowercase());
    is_word.then(|| format!(" {letters}"))
}
