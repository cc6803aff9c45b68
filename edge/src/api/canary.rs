//! The edge's own requests, by which parity is known where clients don't ask for usage.
//!
//! A canary is a fixed text, for one model at one site, of one kind; nothing that clients sent
//! is in it. It is sent twice: the first answer says how many tokens the site makes of it, and
//! the second must find cached what the first has left there, at the site and in its pools.
//! Where a site gives them, the prompt's token ids are compared themselves, and not only counted.
//! It asks for one token, at low priority, and goes only where nobody waits: to sites that a
//! client's request could go to, whose breakers are closed and whose queues are empty. Its
//! failures count for no breaker, its tokens are not counted as clients', and it is expected
//! nowhere.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Limited};
use kvgrid_core::SiteId;
use kvgrid_core::parity::Usage;
use kvgrid_core::routing::Choice;
use serde::Deserialize;
use tracing::debug;

use super::Api;
use super::sites::{SiteRequest, Sites};
use super::understand::{Asked, Endpoint};
use super::usage::{Reading, UsageReader};
use crate::config::CanaryTable;
use plan::{Canary, Ids, Plan, Shape};

mod plan;

/// So long a site may take for its answer, whose one token takes a moment.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between the two requests: events of the first have come by then.
const SETTLE: Duration = Duration::from_secs(2);
/// Most bytes of an answer that are read.
const ANSWER_BYTES: usize = 64 << 10;

/// What came of a canary whose ids the site has given.
const IDS_EQUAL: &str = "ids_equal";
const IDS_DIFFER: &str = "ids_differ";

/// Marks canaries for the site's operator; clients can't send it.
const CANARY: HeaderName = HeaderName::from_static("x-kvgrid-canary");
/// Dynamo's: higher is more important, and 0 is usual.
const PRIORITY: HeaderName = HeaderName::from_static("x-dynamo-request-priority");

impl<S: Sites> Api<S> {
    /// Sends canaries, one pair after the other, for ever; ends by being dropped.
    pub(crate) async fn run_canaries(self, config: CanaryTable) {
        let mut plan = Plan::new(config.renew_after);
        loop {
            tokio::time::sleep(config.every).await;
            let router = &self.0.router;
            let due = router.parity(|parity| plan.next(&router.view(), parity, router.now()));
            if let Some(canary) = due {
                let outcome = self.send_canary(&canary).await;
                debug!(site = %canary.site, model = %canary.model, shape = ?canary.shape, outcome, "Canary");
                self.0.metrics.canary(&canary.site, outcome);
            }
        }
    }

    /// Sends a canary twice; says in one word what came of it.
    async fn send_canary(&self, canary: &Canary) -> &'static str {
        let text = plan::text(canary.words, rand::random());
        let mut body = canary.body(&text, Ids::Wanted);
        let Some(asked) = self.understand_canary(&body).await else {
            return "not_tokenised";
        };
        if canary.shape == Shape::Reasoning {
            let plain = Canary {
                shape: Shape::Plain,
                ..canary.clone()
            };
            let plain = plain.body(&text, Ids::Unwanted);
            let plain = self.understand_canary(&plain).await;
            let length = |asked: &Asked| asked.input.chains.longest();
            if plain.as_ref().and_then(length) == length(&asked) {
                // The template knows nothing of reasoning.
                return "no_such_kind";
            }
        }
        let mut first = self.ask_canary(canary, asked.clone(), &body).await;
        if first == "refused" {
            // It may be strict about fields that are not OpenAI's.
            body = canary.body(&text, Ids::Unwanted);
            first = self.ask_canary(canary, asked, &body).await;
        }
        if !matches!(first, "told" | IDS_EQUAL | IDS_DIFFER) {
            return first;
        }
        tokio::time::sleep(SETTLE).await;
        match self.understand_canary(&body).await {
            Some(asked) => self.ask_canary(canary, asked, &body).await,
            None => "not_tokenised",
        }
    }

    async fn understand_canary(&self, body: &Bytes) -> Option<Asked> {
        let headers = HeaderMap::new();
        let asked = self.understand(Endpoint::Chat, &headers, body).await;
        asked.ok().filter(|asked| !asked.input.chains.is_empty())
    }

    /// Sends it once.
    async fn ask_canary(&self, canary: &Canary, mut asked: Asked, body: &Bytes) -> &'static str {
        let router = &self.0.router;
        let others = self.sites_but(&canary.site);
        let decision = router.consider(&mut asked.input, (&others, &[]));
        let is_idle = router.is_idle(&decision, &canary.site);
        let Ok(choice) = decision.outcome else {
            return "not_eligible";
        };
        if !is_idle {
            return "busy";
        }
        let model = asked.input.model.id();
        if router.breakers().until(&choice.relay, model).is_some() {
            return "not_eligible";
        }
        let Some(mut dispatch) = router.dispatch_own(&choice, &asked.input) else {
            return "not_eligible";
        };
        let request = request(dispatch.number(), &choice, &asked, body);
        let asking = ask(&self.0.sites, &choice, request);
        let Ok(answer) = tokio::time::timeout(PATIENCE, asking).await else {
            return "late";
        };
        let (reading, ids) = match answer {
            Ok(answer) => answer,
            Err(failure) => return failure,
        };
        let same_ids = ids.and_then(|ids| Some(self.expected(&choice, &asked)? == ids));
        dispatch.told(Usage {
            same_ids,
            ..reading.usage()
        });
        match same_ids {
            Some(true) => IDS_EQUAL,
            Some(false) => IDS_DIFFER,
            None => reading.name(),
        }
    }

    /// The ids that the site should make of the prompt.
    fn expected(&self, choice: &Choice, asked: &Asked) -> Option<Vec<u32>> {
        let view = self.0.router.view();
        let model = view.site(&choice.site)?.model(asked.input.model.id())?;
        let tokens = asked.input.chains.tokens(&model.card.as_ref()?.digest)?;
        Some(tokens.to_vec())
    }

    fn sites_but(&self, site: &SiteId) -> Vec<SiteId> {
        let view = self.0.router.view();
        let sites = view.sites().iter().map(|view| &view.site);
        sites.filter(|other| *other != site).cloned().collect()
    }
}

fn request(number: u64, choice: &Choice, asked: &Asked, body: &Bytes) -> SiteRequest {
    let json = HeaderValue::from_static("application/json");
    let headers = [
        (http::header::CONTENT_TYPE, json),
        (CANARY, HeaderValue::from_static("1")),
        (PRIORITY, HeaderValue::from_static("-1")),
    ];
    SiteRequest {
        method: Method::POST,
        target: "/v1/chat/completions".into(),
        headers: headers.into_iter().collect(),
        number,
        model: asked.input.model.id(),
        prompt_tokens: choice.prompt_tokens.unwrap_or(0),
        overlap_tokens: choice.overlap_tokens,
        body: body.clone(),
    }
}

/// The prompt's token ids, as Dynamo gives them to who asks for them.
#[derive(Deserialize)]
struct WithIds {
    nvext: Option<NvExt>,
}

#[derive(Deserialize)]
struct NvExt {
    prompt_token_ids: Option<Vec<u32>>,
}

/// The answer's usage and the prompt's ids, if it has them, or in one word why there is none.
async fn ask<S: Sites>(
    sites: &S,
    choice: &Choice,
    request: SiteRequest,
) -> Result<(Reading, Option<Vec<u32>>), &'static str> {
    let sent = sites.send(&choice.relay, request).await;
    let answer = sent.map_err(|error| error.reason)?;
    let (head, body) = answer.into_parts();
    if !head.status.is_success() {
        return Err("refused");
    }
    let mut usage = UsageReader::new(&head.headers, false);
    let body = Limited::new(body.map_err(|error| error.to_string()), ANSWER_BYTES);
    let whole = body.collect().await.map_err(|_| "broken")?.to_bytes();
    usage.feed(&whole);
    let ids = serde_json::from_slice::<WithIds>(&whole).ok();
    let ids = ids.and_then(|with| with.nvext?.prompt_token_ids);
    Ok((usage.reading(), ids))
}
