//! One request, one site after the other, until an answer has begun.
//!
//! Until the first byte of an answer has come, nothing was told to the client, and another
//! site can be asked instead: when a site can't be reached, breaks off, says that it is
//! overloaded or down, or doesn't have the model after all. If no other takes it either, the
//! client gets what the last of those said that were overloaded or down.
//!
//! Each relay is asked once, at most two of a site, and no other of it where the answer holds
//! for the whole site. A site that only takes its time is not replaced: the next one would be
//! asked to do the same work while the first one goes on with it.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use http::response::Parts as AnswerHead;
use http_body_util::BodyExt;
use kvgrid_core::routing::{Choice, Decision, Refusal};
use kvgrid_core::{RelayId, SiteId};
use tracing::{debug, warn};

use super::Api;
use super::error::ApiError;
use super::headers;
use super::sites::{FailureKind, SendError, SiteRequest, Sites};
use super::understand::Asked;
use crate::route::Dispatch;

/// What Dynamo says when all its workers are busy; no standard code.
const OVERLOADED: u16 = 529;

/// Relays of one site that a request is sent to: a second one, as the first may be gone alone.
const RELAYS_OF_SITE: usize = 2;

/// An answer that has begun.
pub(super) struct Begun<B> {
    /// Which site gives it.
    pub(super) choice: Choice,
    /// The prompt's length, if the client may be told.
    pub(super) prompt_tokens: Option<u32>,
    /// Why that site, if the client may be told.
    pub(super) decision: Option<String>,
    /// Counts the request until it is dropped.
    pub(super) dispatch: Dispatch,
    /// Status and headers.
    pub(super) head: AnswerHead,
    /// The first bytes; `None` if there are none at all.
    pub(super) first: Option<Bytes>,
    /// The rest.
    pub(super) body: B,
}

/// A site that gave no answer worth passing on, unless no other gives one.
struct PassedOver<B> {
    site: SiteId,
    why: SendError,
    /// What it said itself of why not.
    own: Option<Begun<B>>,
}

/// What is to be told when no site is left.
struct Tried<B> {
    /// Sites that are not asked again.
    sites: Vec<SiteId>,
    /// How often each site was asked.
    asked: BTreeMap<SiteId, usize>,
    relays: Vec<RelayId>,
    last: Option<SendError>,
    /// What all failures had in common, if anything.
    common: Option<FailureKind>,
    /// The last answer of a site that said that it is overloaded or down.
    own: Option<Begun<B>>,
}

impl<S: Sites> Api<S> {
    /// Asks sites until one's answer has begun.
    pub(super) async fn try_sites(
        &self,
        head: &Parts,
        body: Bytes,
        mut asked: Asked,
    ) -> Result<Begun<S::Body>, ApiError> {
        let shared = &self.0;
        let passed_on = headers::to_site(&head.headers);
        let mut tried = Tried::new();
        loop {
            let decision = shared
                .router
                .route(&mut asked.input, (&tried.sites, &tried.relays));
            let explained = shared.config.explain.then(|| explain(&decision, &asked));
            let choice = match decision.outcome {
                Ok(choice) => choice,
                Err(refusal) => return tried.refused(refusal, &decision, &asked),
            };
            if !tried.may_ask(&choice.site, shared.config.sites) {
                return tried.exhausted(&asked);
            }
            tried.relays.push(choice.relay.clone());
            let Some(dispatch) = shared.router.dispatch(&choice, &asked.input) else {
                continue;
            };
            let request = SiteRequest {
                method: head.method.clone(),
                target: head
                    .uri
                    .path_and_query()
                    .map_or_else(String::new, ToString::to_string),
                headers: passed_on.clone(),
                number: dispatch.number(),
                model: dispatch.model(),
                prompt_tokens: choice.prompt_tokens.unwrap_or(0),
                overlap_tokens: choice.overlap_tokens,
                body: body.clone(),
            };
            let complete = asked.input.complete;
            let told = |begun: Begun<S::Body>| Begun {
                prompt_tokens: begun.prompt_tokens.filter(|_| complete),
                decision: explained,
                ..begun
            };
            match self.ask(choice, dispatch, request).await? {
                Ok(begun) => return Ok(told(begun)),
                Err(over) => {
                    let PassedOver { site, why, own } = over;
                    shared.metrics.passed_over(&site, why.reason);
                    let SendError {
                        reason,
                        detail,
                        may_have_run,
                        ..
                    } = &why;
                    warn!(%site, reason, detail, may_have_run, "Site passed over");
                    tried.note(PassedOver {
                        site,
                        why,
                        own: own.map(told),
                    });
                }
            }
        }
    }

    /// Asks one site. The outer error ends the request, the inner one only this try.
    async fn ask(
        &self,
        choice: Choice,
        mut dispatch: Dispatch,
        request: SiteRequest,
    ) -> Result<Result<Begun<S::Body>, PassedOver<S::Body>>, ApiError> {
        let begin = begin(&self.0.sites, &choice, request);
        let answered = tokio::time::timeout(self.0.config.answer_timeout, begin).await;
        let Ok(answered) = answered else {
            dispatch.failed();
            warn!(site = %choice.site, "Site did not answer in time");
            return Err(ApiError::Timeout);
        };
        let (head, first, body) = match answered {
            Ok(answer) => answer,
            Err(why) => {
                if why.kind == FailureKind::Fault {
                    dispatch.failed();
                }
                let site = choice.site;
                let own = None;
                return Ok(Err(PassedOver { site, why, own }));
            }
        };
        let why = unwanted(head.status);
        match &why {
            None => {
                dispatch.first_byte();
                if head.status.is_success() {
                    dispatch.computed();
                }
                dispatch.succeeded();
            }
            Some(why) => {
                if why.kind == FailureKind::Fault {
                    dispatch.failed();
                }
                // What it said is kept while others are asked.
                dispatch.end();
            }
        }
        let site = choice.site.clone();
        let begun = Begun {
            prompt_tokens: choice.prompt_tokens,
            decision: None,
            choice,
            dispatch,
            head,
            first,
            body,
        };
        Ok(match why {
            None => Ok(begun),
            Some(why) => {
                let own = is_own_word(begun.head.status).then_some(begun);
                Err(PassedOver { site, why, own })
            }
        })
    }
}

/// Sends a request and waits for the first bytes of an answer.
async fn begin<S: Sites>(
    sites: &S,
    choice: &Choice,
    request: SiteRequest,
) -> Result<(AnswerHead, Option<Bytes>, S::Body), SendError> {
    let answer = sites.send(&choice.relay, request).await?;
    let (head, mut body) = answer.into_parts();
    if unwanted(head.status).is_some() {
        // What it says besides is only of use if no other site has an answer.
        return Ok((head, None, body));
    }
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(bytes)) if bytes.is_empty() => {}
            Ok(Ok(bytes)) => return Ok((head, Some(bytes), body)),
            Ok(Err(_trailers)) => {}
            Err(error) => {
                return Err(SendError {
                    reason: "reset",
                    detail: error.to_string(),
                    kind: FailureKind::Fault,
                    may_have_run: true,
                });
            }
        }
    }
    Ok((head, None, body))
}

/// Whether another site may have a better answer than one with this status.
fn unwanted(status: StatusCode) -> Option<SendError> {
    let (reason, kind) = match status.as_u16() {
        502 => ("bad_gateway", FailureKind::Fault),
        503 => ("unavailable", FailureKind::Fault),
        504 => ("gateway_timeout", FailureKind::Fault),
        // It is alive and says so: more requests would be answered once it has room again.
        OVERLOADED => ("overloaded", FailureKind::Refusal),
        // The paths are known to exist, so it is the model that it lacks.
        404 => ("model_not_found", FailureKind::LacksModel),
        _ => return None,
    };
    Some(SendError {
        reason,
        detail: format!("the site answered {status}"),
        kind,
        may_have_run: false,
    })
}

/// Whether a site's answer with this status is its own word that it takes nothing now; others
/// come from what stands between it and its relay.
pub(super) fn is_own_word(status: StatusCode) -> bool {
    matches!(status.as_u16(), 503 | OVERLOADED)
}

impl<B> Tried<B> {
    const fn new() -> Self {
        Self {
            sites: Vec::new(),
            asked: BTreeMap::new(),
            relays: Vec::new(),
            last: None,
            common: None,
            own: None,
        }
    }

    /// Whether the site is among the first so many.
    fn may_ask(&self, site: &SiteId, sites: usize) -> bool {
        self.asked.contains_key(site) || self.asked.len() < sites
    }

    fn note(&mut self, over: PassedOver<B>) {
        let PassedOver {
            site,
            why: over,
            own,
        } = over;
        self.own = own.or(self.own.take());
        let asked = self.asked.entry(site.clone()).or_default();
        *asked += 1;
        let enough = *asked >= RELAYS_OF_SITE;
        match over.kind {
            // Of the relay or its frontend: the site may have others.
            FailureKind::Fault | FailureKind::RelayRefusal if !enough => {}
            // Of the workers behind all of them, or twice in a row.
            _ => self.sites.push(site),
        }
        let first = self.last.is_none();
        self.common = self.common.filter(|kind| *kind == over.kind);
        if first {
            self.common = Some(over.kind);
        }
        self.last = Some(over);
    }

    /// No site is left to be asked, or none was to begin with.
    fn refused(
        self,
        refusal: Refusal,
        decision: &Decision,
        asked: &Asked,
    ) -> Result<Begun<B>, ApiError> {
        if self.last.is_some() {
            return self.exhausted(asked);
        }
        debug!(%decision, "No site for the request");
        Err(match refusal {
            Refusal::UnknownModel => ApiError::UnknownModel(asked.input.model.to_string()),
            Refusal::TooLong { limit } => ApiError::TooLong { limit },
            Refusal::Unavailable => ApiError::Unavailable(refusal.to_string()),
        })
    }

    fn exhausted(self, asked: &Asked) -> Result<Begun<B>, ApiError> {
        if let Some(own) = self.own {
            return Ok(own);
        }
        let Some(last) = &self.last else {
            let reason = "every site is being tried out by another";
            return Err(ApiError::Unavailable(reason.into()));
        };
        Err(match self.common {
            Some(FailureKind::LacksModel) => ApiError::UnknownModel(asked.input.model.to_string()),
            Some(FailureKind::TooLarge) => ApiError::TooLargeForSites,
            Some(FailureKind::Fault | FailureKind::Refusal | FailureKind::RelayRefusal) | None => {
                let asked = count(self.relays.len());
                ApiError::Unavailable(format!("{asked} asked, the last one: {}", last.reason))
            }
        })
    }
}

/// Why a request goes where it goes, in one line.
fn explain(decision: &Decision, asked: &Asked) -> String {
    if asked.input.chains.is_empty() {
        return format!("{decision}; prompt not tokenised: {}", asked.tokens);
    }
    decision.to_string()
}

fn count(relays: usize) -> String {
    if relays == 1 {
        "1 relay was".into()
    } else {
        format!("{relays} relays were")
    }
}
