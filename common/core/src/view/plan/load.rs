//! A site's load of one model, without what no decision looks at.

use core::num::NonZeroU32;

use crate::load::{EngineSum, GatewaySum, ModelLoad};
use crate::time::Instant;

/// What is known of it; times say how old.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// What engines tell.
    pub(crate) engines: Option<Engines>,
    /// What relays tell.
    pub(crate) gateway: Option<Gateway>,
    /// Uncached prompt tokens that came by relays and that nothing has been computed of yet.
    pub(crate) relayed_tokens: f64,
    /// Requests that are there, computed or waiting, whichever way they came.
    pub(crate) requests: u32,
}

/// What engines tell.
#[derive(Clone, Debug)]
pub(crate) struct Engines {
    pub(crate) at: Instant,
    /// At least one.
    pub(crate) ranks: f64,
    /// What waits past the relays.
    pub(crate) backlog: Backlog,
    /// Requests computed at once, where that is known.
    pub(crate) places: Option<NonZeroU32>,
    /// Share of the KV cache that requests hold.
    pub(crate) kv_use: Option<f32>,
}

/// Prompts that wait in the engines past the relays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Backlog {
    /// Nobody tells.
    Unknown,
    /// So many tokens.
    Tokens(f64),
    /// So many requests, of which no tokens are told.
    Requests(f64),
}

/// What relays tell.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    pub(crate) at: Instant,
    pub(crate) arrivals_per_s: f32,
    pub(crate) prefill_ms_per_token: Option<f32>,
    pub(crate) serving_ms: Option<f32>,
}

impl Load {
    pub(super) fn of(load: Option<&ModelLoad>) -> Self {
        let Some(load) = load else {
            return Self::default();
        };
        let foreign = load.engines.as_ref().map_or(0, |sum| sum.foreign.requests);
        let relayed = load.gateway.as_ref().map_or(0, |sum| sum.load.in_flight);
        Self {
            engines: load.engines.as_ref().map(Engines::of),
            gateway: load.gateway.as_ref().map(Gateway::of),
            relayed_tokens: load.relayed_tokens() as f64,
            requests: foreign.saturating_add(relayed),
        }
    }
}

impl Engines {
    fn of(sum: &EngineSum) -> Self {
        let foreign = &sum.foreign;
        Self {
            at: sum.at,
            ranks: f64::from(sum.ranks.unwrap_or(1).max(1)),
            backlog: match (foreign.waiting_tokens, foreign.waiting) {
                (Some(tokens), _) => Backlog::Tokens(tokens as f64),
                (None, Some(waiting)) => Backlog::Requests(waiting.into()),
                (None, None) => Backlog::Unknown,
            },
            places: sum.max_requests.and_then(NonZeroU32::new),
            kv_use: sum.kv_use,
        }
    }
}

impl Gateway {
    const fn of(sum: &GatewaySum) -> Self {
        Self {
            at: sum.at,
            arrivals_per_s: sum.load.arrivals_per_s,
            prefill_ms_per_token: sum.load.prefill_ms_per_token,
            serving_ms: sum.load.serving_ms,
        }
    }
}
