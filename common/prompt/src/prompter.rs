//! A loaded card: request bodies in, token ids out.

use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;

use dynamo_protocols::types::Prompt as PromptField;
use dynamo_renderer::RenderedPrompt;
use kvgrid_core::parity::{Kind, Trait};
use thiserror::Error;

use crate::card::{Card, Unsupported, local_time_zone};
use crate::chat::ChatFormat;
use crate::encoder::{EncoderKind, TextEncoder};
use crate::kind;
use crate::media;
use crate::memo::MemoStats;
use crate::prompt::{Prompt, PromptError, Source};
use crate::request::{self, ChatExtensions, CompletionBody, NvExt};

/// How to load a card.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Bytes for the segment memo; 0 turns it off.
    pub memo_bytes: usize,
    /// This process's time zone, which templates that print the date will show.
    pub time_zone: String,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            memo_bytes: 64 << 20,
            time_zone: local_time_zone(),
        }
    }
}

/// Why a card can't be used. Nothing was changed; requests go without tokens.
#[derive(Debug, Error)]
pub enum LoadError {
    /// This build can't predict the site's tokens.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The card lacks a file; whoever made it is at fault.
    #[error("the card has no {0}, and nothing is fetched")]
    MissingFile(&'static str),
    /// The tokenizer can't be loaded; the model's fault.
    #[error("the tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template or its configuration can't be loaded; the model's fault.
    #[error("{0}")]
    Template(String),
    /// The files can't be laid out for loading; this machine's fault.
    #[error("a scratch directory for the tokenizer: {0}")]
    Scratch(io::Error),
}

/// Renders and tokenises requests for one model as its site does.
pub struct Prompter {
    encoder: TextEncoder,
    chat: Option<ChatFormat>,
    model: String,
    lora: Option<String>,
    block_size: NonZeroU32,
    eagle: bool,
}

impl Prompter {
    /// Loads a card. Takes seconds for a large vocabulary; not for the request path.
    pub fn load(card: &Card, options: &LoadOptions) -> Result<Self, LoadError> {
        card.supported()?;
        if card.file("tokenizer.json").is_none() {
            return Err(LoadError::MissingFile("tokenizer.json"));
        }
        let dir = tempfile::Builder::new()
            .prefix("kvgrid-card-")
            .tempdir()
            .map_err(LoadError::Scratch)?;
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            if let Some(file) = card.file(name) {
                fs::write(dir.path().join(name), file).map_err(LoadError::Scratch)?;
            }
        }
        let encoder = TextEncoder::load(dir.path(), card.tokenizer_backend, options.memo_bytes)
            .map_err(LoadError::Tokenizer)?;
        let chat = ChatFormat::load(card, &options.time_zone).map_err(LoadError::Template)?;
        Ok(Self {
            encoder,
            chat,
            model: card.model.clone(),
            lora: card.lora.clone(),
            block_size: card.block_size,
            eagle: card.eagle,
        })
    }

    /// The prompt of a chat completion request. `tenant` is the namespace that its headers
    /// name: see [`crate::cache_namespace`].
    pub fn chat(&self, body: &[u8], tenant: Option<&str>) -> Result<Prompt, PromptError> {
        let (mut request, mut extensions) = request::chat(body)?;
        let namespace = request::namespace(
            tenant,
            extensions.nvext.as_ref(),
            extensions.cache_salt.as_ref(),
        );
        let kind = kind::of_chat(&request, &extensions);
        if let Some(tokens) = take_token_data(&mut extensions.nvext) {
            return Ok(self.prompt((tokens, Source::Client), kind, namespace));
        }
        let format = self.chat.as_ref().ok_or(PromptError::NoTemplate)?;
        let rendered = format.render(&request, &extensions)?;
        let Some(place) = media::first(&request.messages) else {
            let tokens = self.encode(&rendered)?;
            return Ok(self.prompt((tokens, Source::Tokenised), kind, namespace));
        };
        media::mark(&mut request.messages, place);
        let tokens = self.before_media(format, &rendered, &request, &extensions)?;
        Ok(Prompt {
            complete: false,
            ..self.prompt((tokens, Source::Tokenised), kind, namespace)
        })
    }

    /// The prompt of a completion request.
    pub fn completion(&self, body: &[u8], tenant: Option<&str>) -> Result<Prompt, PromptError> {
        let mut body: CompletionBody = serde_json::from_slice(body)?;
        let namespace = request::namespace(tenant, body.nvext.as_ref(), body.cache_salt.as_ref());
        if body.prompt_embeds.is_some() {
            return Err(PromptError::Untokenised("the prompt is embeddings"));
        }
        let (tokens, source) = match body.prompt {
            PromptField::String(text) => match take_token_data(&mut body.nvext) {
                Some(tokens) => (tokens, Source::Client),
                None => (self.encode_text(&text)?, Source::Tokenised),
            },
            PromptField::StringArray(texts) => {
                let [text] = one(texts)?;
                (self.encode_text(&text)?, Source::Tokenised)
            }
            PromptField::IntegerArray(tokens) => (tokens, Source::Client),
            PromptField::ArrayOfIntegerArray(prompts) => {
                let [tokens] = one(prompts)?;
                (tokens, Source::Client)
            }
        };
        let kind = Kind::PLAIN.with(Trait::Text);
        Ok(self.prompt((tokens, source), kind, namespace))
    }

    fn before_media(
        &self,
        format: &ChatFormat,
        whole: &RenderedPrompt,
        marked: &dynamo_protocols::types::CreateChatCompletionRequest,
        extensions: &ChatExtensions,
    ) -> Result<Vec<u32>, PromptError> {
        let ends = ChatExtensions {
            continue_final_message: None,
            add_generation_prompt: extensions.add_generation_prompt,
            chat_template_args: extensions.chat_template_args.clone(),
            thinking: extensions.thinking.clone(),
            ..ChatExtensions::default()
        };
        let Ok(marked) = format.render(marked, &ends) else {
            return Ok(Vec::new());
        };
        if whole.segments().is_some() {
            return Ok(Vec::new());
        }
        let beginning = media::shared(whole.as_str(), marked.as_str());
        let mut tokens = self.encode_text(beginning)?;
        // The last tokens before the cut may have grown together with what follows it.
        let all = self.encode_text(whole.as_str())?;
        let same = tokens.iter().zip(&all).take_while(|(a, b)| a == b).count();
        tokens.truncate(same);
        Ok(tokens)
    }

    fn prompt(
        &self,
        (tokens, source): (Vec<u32>, Source),
        kind: Kind,
        namespace: Option<String>,
    ) -> Prompt {
        let kind = kind.with_if(Trait::Ids, source == Source::Client);
        Prompt {
            tokens: tokens.into(),
            complete: true,
            source,
            kind: kind.with_if(Trait::Adapter, self.lora.is_some()),
            lora: self.lora.clone(),
            namespace,
        }
    }

    fn encode(&self, prompt: &RenderedPrompt) -> Result<Vec<u32>, PromptError> {
        self.encoder
            .encode_prompt(prompt)
            .map_err(PromptError::Tokenizer)
    }

    fn encode_text(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        self.encoder.encode(text).map_err(PromptError::Tokenizer)
    }

    /// The name clients ask for.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Tokens per block at the site.
    pub fn block_size(&self) -> NonZeroU32 {
        self.block_size
    }

    /// Whether the site's blocks overlap by one token (EAGLE).
    pub fn eagle(&self) -> bool {
        self.eagle
    }

    /// Which tokenizer implementation is used, and why not the fast one.
    pub fn encoder(&self) -> &EncoderKind {
        self.encoder.kind()
    }

    /// The segment memo's counters, or why this model has no memo.
    pub fn memo_stats(&self) -> Result<MemoStats, &str> {
        self.encoder.memo_stats()
    }
}

impl std::fmt::Debug for Prompter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prompter")
            .field("model", &self.model)
            .field("encoder", self.encoder())
            .finish_non_exhaustive()
    }
}

fn take_token_data(nvext: &mut Option<NvExt>) -> Option<Vec<u32>> {
    nvext.as_mut()?.token_data.take()
}

fn one<T>(prompts: Vec<T>) -> Result<[T; 1], PromptError> {
    <[T; 1]>::try_from(prompts).map_err(|prompts| PromptError::Several(prompts.len()))
}

/// A prompter that several threads use.
pub(crate) type SharedPrompter = Arc<Prompter>;

#[cfg(test)]
mod tests;
