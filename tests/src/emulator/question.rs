//! What a client asks an emulated site, read from OpenAI's JSON.

use bytes::Bytes;
use kvgrid_sim::Request;
use serde::Deserialize;
use thiserror::Error;

use super::answer::AnswerKind;
use super::prompt::{PromptError, Prompter};

/// A request body, understood.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) model: String,
    pub(super) tokens: Vec<u32>,
    pub(super) max_tokens: u32,
    pub(super) namespace: Option<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// Whether the client wants the prompt's token ids back.
    pub(super) echo_ids: bool,
}

impl Question {
    pub(super) fn into_request(self) -> Request {
        Request {
            tokens: self.tokens,
            max_tokens: self.max_tokens,
            namespace: self.namespace.map(Into::into),
        }
    }
}

/// Why a body is no question. The client is at fault.
#[derive(Debug, Error)]
pub(super) enum QuestionError {
    /// Not the JSON that the endpoint takes.
    #[error("the body is not valid: {0}")]
    Body(#[from] serde_json::Error),
    /// Several prompts in one request.
    #[error("several prompts in one request are not supported here")]
    Several,
    /// A completion without a prompt.
    #[error("there is no prompt")]
    Missing,
    /// The prompt can't be made into tokens.
    #[error(transparent)]
    Prompt(#[from] PromptError),
}

#[derive(Deserialize)]
struct Body {
    model: String,
    prompt: Option<Prompt>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    nvext: Option<NvExt>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Default, Deserialize)]
struct NvExt {
    token_data: Option<Vec<u32>>,
    cache_salt: Option<String>,
    #[serde(default)]
    extra_fields: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    ManyIds(Vec<Vec<u32>>),
}

/// Reads a body; `max_tokens` is for a client that does not say.
pub(super) async fn read(
    kind: AnswerKind,
    bytes: &Bytes,
    tenant: Option<&str>,
    prompter: &Prompter,
    max_tokens: u32,
) -> Result<Question, QuestionError> {
    let body: Body = serde_json::from_slice(bytes)?;
    let nvext = body.nvext.unwrap_or_default();
    let tokens = match (nvext.token_data, kind) {
        (Some(ids), _) => ids,
        (None, AnswerKind::Chat) => prompter.chat(bytes).await?,
        (None, AnswerKind::Text) => prompt_tokens(body.prompt, prompter).await?,
    };
    Ok(Question {
        model: body.model,
        tokens,
        max_tokens: body
            .max_completion_tokens
            .or(body.max_tokens)
            .unwrap_or(max_tokens),
        namespace: tenant
            .map(Into::into)
            .or(nvext.cache_salt)
            .or(body.cache_salt),
        stream: body.stream,
        include_usage: body
            .stream_options
            .is_some_and(|options| options.include_usage),
        echo_ids: nvext
            .extra_fields
            .iter()
            .any(|field| field == "prompt_token_ids"),
    })
}

async fn prompt_tokens(
    prompt: Option<Prompt>,
    prompter: &Prompter,
) -> Result<Vec<u32>, QuestionError> {
    let only = QuestionError::Several;
    match prompt.ok_or(QuestionError::Missing)? {
        Prompt::Ids(ids) => Ok(ids),
        Prompt::Text(text) => Ok(prompter.text(&text).await?),
        Prompt::Texts(texts) => match <[String; 1]>::try_from(texts) {
            Ok([text]) => Ok(prompter.text(&text).await?),
            Err(_) => Err(only),
        },
        Prompt::ManyIds(prompts) => match <[Vec<u32>; 1]>::try_from(prompts) {
            Ok([ids]) => Ok(ids),
            Err(_) => Err(only),
        },
    }
}
