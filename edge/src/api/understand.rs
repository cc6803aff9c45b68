//! What a request asks for: its model, and its prompt in tokens for each kind of site.
//!
//! The prompt is tokenised once for each card among the sites that serve the model, mostly
//! one. What isn't known is left out and the router decides without it; whether a request
//! is valid is for the site to say, but for what this edge can't route at all.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use kvgrid_core::block::HashSeed;
use kvgrid_core::id::ModelName;
use kvgrid_core::parity::Kind;
use kvgrid_core::routing::Chains;
use kvgrid_core::view::{CardDigest, GridView};
use kvgrid_prompt::{Cards, Prompt, PromptError, Prompter, Source, cache_namespace};
use serde::Deserialize;
use tracing::{debug, error};
use xxhash_rust::xxh3::xxh3_64;

use super::Api;
use super::error::ApiError;
use super::sites::Sites;
use crate::route::RouteInput;

/// Bodies up to this size are understood where they arrive; larger ones would hold up other
/// requests of that thread, and go to another.
const INLINE_BYTES: usize = 32 << 10;
/// Headers that name a session, the most telling first.
const SESSION_HEADERS: [&str; 2] = ["x-dynamo-session-id", "x-session-id"];
const TENANT_HEADER: &str = "x-tenant-id";

/// What kind of generation a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// A request, understood.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// What the router must know.
    pub(super) input: RouteInput,
    /// How its tokens were found, or why not, in one word for the metrics.
    pub(super) tokens: &'static str,
}

/// The fields that routing needs; the rest is skipped, but must be JSON.
#[derive(Deserialize)]
struct Skim<'a> {
    #[serde(default, borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    prompt_cache_key: Option<Cow<'a, str>>,
}

/// What of the headers matters.
#[derive(Clone, Debug, Default)]
struct Hints {
    tenant: Option<String>,
    session: Option<String>,
}

impl<S: Sites> Api<S> {
    /// Understands a request. Large bodies wait for a thread, but no longer than the
    /// deadline: past it the request is routed without tokens.
    pub(super) async fn understand(
        &self,
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Asked, ApiError> {
        let hints = Hints::of(headers);
        let view = Arc::clone(&self.0.router.view());
        if body.len() <= INLINE_BYTES {
            return understand(&self.0.cards, &view, endpoint, &hints, body);
        }
        let (cards, copy, same) = (Arc::clone(&self.0.cards), body.clone(), hints.clone());
        let elsewhere = async {
            let thread = Arc::clone(&self.0.tokenisers).acquire_owned().await.ok()?;
            let job = tokio::task::spawn_blocking(move || {
                let _thread = thread;
                understand(&cards, &view, endpoint, &same, &copy)
            });
            job.await.ok()
        };
        let deadline = self.0.config.prompt_deadline;
        match tokio::time::timeout(deadline, elsewhere).await {
            Ok(Some(asked)) => asked,
            Ok(None) | Err(_) => {
                debug!(bytes = body.len(), "Prompt not tokenised in time");
                skim(&hints, body).map(|asked| Asked {
                    tokens: "late",
                    ..asked
                })
            }
        }
    }
}

impl Hints {
    fn of(headers: &HeaderMap) -> Self {
        let texts = |name: &str| {
            let values = headers.get_all(name).iter();
            values.filter_map(|value| value.to_str().ok())
        };
        let session = SESSION_HEADERS
            .iter()
            .find_map(|name| texts(name).find(|text| !text.is_empty()));
        Self {
            tenant: cache_namespace(texts(TENANT_HEADER)).map(str::to_owned),
            session: session.map(str::to_owned),
        }
    }
}

fn skim(hints: &Hints, body: &[u8]) -> Result<Asked, ApiError> {
    let malformed = |message: String, param| ApiError::Malformed { message, param };
    let skim: Skim<'_> = serde_json::from_slice(body).map_err(|error| {
        malformed(
            format!("the request body is no valid request: {error}"),
            None,
        )
    })?;
    let model = skim
        .model
        .filter(|model| !model.is_empty())
        .ok_or_else(|| malformed("you must provide a model parameter".into(), Some("model")))?;
    let model =
        ModelName::new(&model).map_err(|error| malformed(error.to_string(), Some("model")))?;
    let session = hints
        .session
        .as_deref()
        .or(skim.prompt_cache_key.as_deref());
    let input = RouteInput {
        model,
        chains: Chains::new(HashSeed::new(None, None)),
        complete: true,
        kind: Kind::PLAIN,
        body_bytes: u64::try_from(body.len()).unwrap_or(u64::MAX),
        affinity: session.map(|session| xxh3_64(session.as_bytes())),
        rules: Vec::new(),
    };
    Ok(Asked {
        input,
        tokens: "no_card",
    })
}

fn understand(
    cards: &Cards,
    view: &GridView,
    endpoint: Endpoint,
    hints: &Hints,
    body: &[u8],
) -> Result<Asked, ApiError> {
    let mut asked = skim(hints, body)?;
    let tenant = hints.tenant.as_deref();
    let mut seed = None;
    for digest in digests(view, &asked.input.model) {
        let Some(prompter) = cards.get(&digest.0) else {
            asked.tokens = "card_not_usable";
            continue;
        };
        let prompt = match tokenise(&prompter, endpoint, body, tenant) {
            Ok(prompt) => prompt,
            Err(reason) => {
                asked.tokens = reason;
                continue;
            }
        };
        let of_prompt = HashSeed::new(prompt.lora.as_deref(), prompt.namespace.as_deref());
        // Sites whose adapters are named otherwise than the first one's have other hashes.
        if *seed.get_or_insert(of_prompt) != of_prompt {
            continue;
        }
        asked.input.complete &= prompt.complete;
        asked.input.kind = prompt.kind;
        if prompt.source == Source::Client {
            asked.tokens = "client";
            asked.input.chains = Chains::of_every_site(prompt.tokens, of_prompt);
            break;
        }
        asked.tokens = "tokenised";
        if asked.input.chains.is_empty() {
            asked.input.chains = Chains::new(of_prompt);
        }
        asked.input.chains.insert(digest, prompt.tokens);
    }
    let model = asked.input.model.id();
    asked.input.chains.hash_for(view, model);
    Ok(asked)
}

/// The cards of the sites that serve a model, each once.
fn digests(view: &GridView, model: &ModelName) -> Vec<CardDigest> {
    let of_site = |site: &kvgrid_core::view::SiteView| {
        let card = site.model(model.id())?.card.as_ref()?;
        Some(card.digest)
    };
    let mut digests: Vec<_> = view.sites().iter().filter_map(of_site).collect();
    digests.sort_unstable();
    digests.dedup();
    digests
}

/// The prompt's tokens by one card, or why they can't be known; the request goes on.
fn tokenise(
    prompter: &Prompter,
    endpoint: Endpoint,
    body: &[u8],
    tenant: Option<&str>,
) -> Result<Prompt, &'static str> {
    let prompt = || match endpoint {
        Endpoint::Chat => prompter.chat(body, tenant),
        Endpoint::Completion => prompter.completion(body, tenant),
    };
    let model = prompter.model();
    match catch_unwind(AssertUnwindSafe(prompt)) {
        Ok(Ok(prompt)) => Ok(prompt),
        Ok(Err(error)) => {
            debug!(model, %error, "Prompt not tokenised");
            Err(reason(&error))
        }
        Err(_) => {
            error!(model, "Tokenising panicked");
            Err("panic")
        }
    }
}

const fn reason(error: &PromptError) -> &'static str {
    match error {
        PromptError::Malformed(_) => "malformed",
        PromptError::Several(_) => "several_prompts",
        PromptError::Untokenised(_) => "no_text",
        PromptError::NoTemplate => "no_template",
        PromptError::ForeignClock { .. } => "foreign_clock",
        PromptError::Template(_) => "template",
        PromptError::Tokenizer(_) => "tokenizer",
    }
}
