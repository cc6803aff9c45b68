//! Which sites may serve a request at all.
//!
//! Every check is hard: a site that fails one is not weighed. The first that fails is the
//! one the explanation names, so the checks run from the lasting to the passing.

use std::collections::BTreeMap;
use std::fmt;

use crate::id::{ModelId, RelayId};
use crate::label::Violation;
use crate::time::Instant;
use crate::view::{ModelView, RelayView, SiteView};

use super::RouteRequest;
use super::policy::Policy;

/// Why a site is not a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// The site does not list the model.
    NotServed,
    /// A rule of the policy, the tenant or the request forbids it.
    Forbidden(Violation),
    /// The prompt does not fit the model's context there.
    ContextLength {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens that fit, the answer's included.
        limit: u32,
    },
    /// None of its relays is connected.
    NotConnected,
    /// The site lists the model but cannot serve it now.
    NotReady,
    /// All its connected relays are leaving.
    Draining,
    /// Requests to it have failed of late.
    BreakerOpen,
    /// This request has been there already.
    Tried,
}

/// Models at relays that requests are kept from, and until when; immutable, a shell publishes
/// a new one when a breaker changes. What is not listed is let through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakers(BTreeMap<RelayId, BTreeMap<ModelId, Instant>>);

impl Breakers {
    /// Keeps requests for a model from a relay until a time.
    pub fn open(&mut self, relay: &RelayId, model: ModelId, until: Instant) {
        let models = self.0.entry(relay.clone()).or_default();
        models.insert(model, until);
    }

    /// Lets requests through again.
    pub fn close(&mut self, relay: &RelayId, model: ModelId) {
        if let Some(models) = self.0.get_mut(relay) {
            models.remove(&model);
        }
        self.0.retain(|_, models| !models.is_empty());
    }

    /// Until when requests are kept back; `None` while the breaker is closed. A time that has
    /// passed means that it is half open.
    pub fn until(&self, relay: &RelayId, model: ModelId) -> Option<Instant> {
        self.0.get(relay)?.get(&model).copied()
    }

    /// Whether a relay may be sent a request for a model.
    pub fn allows(&self, relay: &RelayId, model: ModelId, now: Instant) -> bool {
        self.until(relay, model).is_none_or(|until| until <= now)
    }
}

/// The model and the relay through which a site may serve the request.
pub(super) fn eligible<'a>(
    site: &'a SiteView,
    request: &RouteRequest<'_>,
    policy: &Policy,
    breakers: &Breakers,
    now: Instant,
) -> Result<(&'a ModelView, &'a RelayView), Exclusion> {
    let model = site.model(request.model.id()).ok_or(Exclusion::NotServed)?;
    for rules in core::iter::once(&policy.rules).chain(request.rules.iter().copied()) {
        rules
            .check(site.region.as_ref(), &site.labels)
            .map_err(Exclusion::Forbidden)?;
    }
    fits(model, request)?;
    if request.exclude.contains(&site.site) {
        return Err(Exclusion::Tried);
    }
    if !site.alive {
        return Err(Exclusion::NotConnected);
    }
    if !model.ready {
        return Err(Exclusion::NotReady);
    }
    relay(site, request, breakers, now).map(|relay| (model, relay))
}

/// An engine needs a place for at least one token of its answer.
fn fits(model: &ModelView, request: &RouteRequest<'_>) -> Result<(), Exclusion> {
    let card = model.card.as_ref();
    let limit = card.and_then(|card| card.context_length);
    let prompt_tokens = request.chains.prompt_tokens(card.map(|card| &card.digest));
    match (prompt_tokens, limit) {
        (Some(prompt_tokens), Some(limit)) if prompt_tokens >= limit.get() => {
            Err(Exclusion::ContextLength {
                prompt_tokens,
                limit: limit.get(),
            })
        }
        _ => Ok(()),
    }
}

/// The relay that a session keeps to, by rendezvous hashing, among those that can be used.
fn relay<'a>(
    site: &'a SiteView,
    request: &RouteRequest<'_>,
    breakers: &Breakers,
    now: Instant,
) -> Result<&'a RelayView, Exclusion> {
    let mut obstacle = Exclusion::NotConnected;
    let mut usable = Vec::new();
    for relay in &site.relays {
        if !relay.connected {
            continue;
        }
        if relay.draining {
            if obstacle == Exclusion::NotConnected {
                obstacle = Exclusion::Draining;
            }
        } else if breakers.allows(&relay.id, request.model.id(), now) {
            usable.push(relay);
        } else {
            obstacle = Exclusion::BreakerOpen;
        }
    }
    let key = request.affinity.unwrap_or(0);
    let best = usable
        .into_iter()
        .max_by_key(|relay| super::rendezvous(key, relay.id.as_str()));
    best.ok_or(obstacle)
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServed => f.write_str("model not served"),
            Self::Forbidden(violation) => violation.fmt(f),
            Self::ContextLength {
                prompt_tokens,
                limit,
            } => write!(f, "{prompt_tokens} tokens do not fit {limit}"),
            Self::NotConnected => f.write_str("not connected"),
            Self::NotReady => f.write_str("model not ready"),
            Self::Draining => f.write_str("draining"),
            Self::BreakerOpen => f.write_str("breaker open"),
            Self::Tried => f.write_str("already tried"),
        }
    }
}
