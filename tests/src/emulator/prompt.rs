//! An emulated site's side of tokens and text.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use kvgrid_prompt::{Card, CardOptions, LoadOptions, Prompt};

use super::answer::AnswerKind;
use super::question::QuestionError;
use super::vocabulary::Vocabulary;

/// Bodies from this size on are read on a thread of their own: they take milliseconds, and
/// the engine's timers must not wait for them.
const LARGE: usize = 16 << 10;

/// Turns prompts into tokens and tokens into text.
pub(super) struct Prompter {
    /// Absent at a site that only takes token ids.
    model: Option<Arc<kvgrid_prompt::Prompter>>,
    vocabulary: Vocabulary,
}

impl Prompter {
    /// Reads a model directory.
    pub(super) fn load(dir: &Path, model: &str, block_size: NonZeroU32) -> anyhow::Result<Self> {
        let unusable = || format!("{} is no usable model directory", dir.display());
        let card = Card::from_model_dir(dir, CardOptions::new(model, block_size))
            .with_context(unusable)?;
        let prompter =
            kvgrid_prompt::Prompter::load(&card, &LoadOptions::default()).with_context(unusable)?;
        Ok(Self {
            model: Some(Arc::new(prompter)),
            vocabulary: Vocabulary::load(dir)?,
        })
    }

    /// For a site that only takes token ids.
    pub(super) fn without_model() -> Self {
        Self {
            model: None,
            vocabulary: Vocabulary::default(),
        }
    }

    /// What answers are made of.
    pub(super) const fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
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
