//! What a client asks an emulated site, read from OpenAI's JSON.

use bytes::Bytes;
use kvgrid_prompt::PromptError;
use kvgrid_sim::Request;
use serde::Deserialize;
use thiserror::Error;

use super::answer::AnswerKind;
use super::prompt::Prompter;

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
    /// Whether tools are offered.
    pub(super) has_tools: bool,
}

impl Question {
    /// Repeats the first token so often.
    pub(super) fn lengthen(&mut self, tokens: u32) {
        let first = self.tokens.first().copied();
        let more = first.into_iter().cycle().take(tokens as usize);
        self.tokens.splice(0..0, more);
    }

    pub(super) fn into_request(self) -> Request {
        Request {
            tokens: self.tokens,
            max_tokens: self.max_tokens,
            namespace: self.namespace.map(Into::into),
        }
    }
}

/// Why a body is no question. But for the last one, the client is at fault.
#[derive(Debug, Error)]
pub(super) enum QuestionError {
    /// Not the JSON that the endpoint takes.
    #[error("the body is not valid: {0}")]
    Body(#[from] serde_json::Error),
    /// Text for a site without a model directory.
    #[error("this site has no tokenizer: send one prompt of token ids")]
    NoTokenizer,
    /// The prompt can't be made into tokens.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The tokenizer broke down.
    #[error("the tokenizer panicked: {0}")]
    Panicked(tokio::task::JoinError),
}

#[derive(Deserialize)]
struct Body {
    model: String,
    /// Read again by the prompter when it is text.
    prompt: Option<Prompt>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    nvext: Option<NvExt>,
    tools: Option<Vec<serde::de::IgnoredAny>>,
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
    Ids(Vec<u32>),
    Other(serde::de::IgnoredAny),
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
    let ids = match (nvext.token_data, body.prompt) {
        (Some(ids), _) | (None, Some(Prompt::Ids(ids))) => Some(ids),
        (None, Some(Prompt::Other(_)) | None) => None,
    };
    // Ids need no tokenizer, so a site without one still serves them.
    let (tokens, namespace) = match ids {
        Some(ids) => {
            let salt = nvext.cache_salt.or(body.cache_salt);
            let namespace = tenant.map(str::to_owned).or(salt);
            (ids, namespace.filter(|namespace| !namespace.is_empty()))
        }
        None => {
            let prompt = prompter.prompt(kind, bytes, tenant).await?;
            (prompt.tokens.to_vec(), prompt.namespace)
        }
    };
    Ok(Question {
        model: body.model,
        tokens,
        max_tokens: body
            .max_completion_tokens
            .or(body.max_tokens)
            .unwrap_or(max_tokens),
        namespace,
        stream: body.stream,
        include_usage: body
            .stream_options
            .is_some_and(|options| options.include_usage),
        echo_ids: nvext
            .extra_fields
            .iter()
            .any(|field| field == "prompt_token_ids"),
        has_tools: body.tools.is_some_and(|tools| !tools.is_empty()),
    })
}
