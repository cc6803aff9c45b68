//! A site's load: the parts relays report, and how they add up.
//!
//! - Engine parts are keyed (model, worker, rank). All relays of a site hear the same
//!   engines, so of several reports of a key the freshest wins.
//! - Where ranks don't tell, a frontend may tell of all of them at once. Such a part counts
//!   only while no rank's own is about as fresh, for both are of the same requests.
//! - Gateway parts count what passed through one relay. They are summed over relays.
//! - Foreign load is what reached the engines past every relay: engines minus gateways, both
//!   at the time of the scrape, for which the tracker keeps a short history of gateway parts.
//! - A part that is missing or too old is unknown, which is never the same as zero.
//!
//! Each sample echoes the highest number of the receiving edge's requests that it includes,
//! so that the edge adds its own younger ones exactly once.

use core::num::NonZeroU32;
use core::time::Duration;

use crate::id::{ModelId, RelayId};
use crate::time::Instant;

pub use tracker::{LoadError, LoadTracker};

mod tracker;

/// Whose load a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// That of one rank.
    Rank,
    /// That of all ranks of the site, as far as it passes by who tells it: a frontend, say.
    Site {
        /// How many ranks these are, where that is known.
        ranks: Option<NonZeroU32>,
    },
}

/// What one rank of one engine says of itself, or somebody of all of a site's ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineLoad {
    /// The model it serves.
    pub model: ModelId,
    /// The worker, as its source names it.
    pub worker: u64,
    /// The data-parallel rank within the worker.
    pub rank: u32,
    /// Whether it is that rank's own load.
    pub extent: Extent,
    /// When it was true.
    pub at: Instant,
    /// Requests being computed.
    pub running: u32,
    /// Requests that wait for a place; where that is not told, some may stand among the running.
    pub waiting: Option<u32>,
    /// Prompt tokens of those that wait: whole prompts, for an engine looks up what is cached of
    /// one when its turn comes.
    pub waiting_tokens: Option<u64>,
    /// Requests that it computes at once, at least one.
    pub max_requests: Option<u32>,
    /// Share of the KV cache that requests hold, 0 to 1.
    pub kv_use: Option<f32>,
    /// Share of the KV cache that is kept for reuse and gives way to requests, 0 to 1.
    pub kv_cached: Option<f32>,
    /// Tokens that the KV cache has room for, at least one.
    pub kv_tokens: Option<u64>,
}

/// What passes through one relay, or through all of a site's, for one model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GatewayLoad {
    /// Requests begun and not ended.
    pub in_flight: u32,
    /// Uncached prompt tokens of requests that have had no first byte yet.
    pub queued_tokens: u64,
    /// All prompt tokens of the same requests.
    pub queued_prompt_tokens: u64,
    /// Requests a second, from all edges.
    pub arrivals_per_s: f32,
    /// Prefill speed the relay has fitted; absent until it has data.
    pub prefill_ms_per_token: Option<f32>,
    /// How long requests are computed from the first byte of their answer on, in the mean;
    /// absent until one has ended.
    pub serving_ms: Option<f32>,
}

/// One relay's report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadSample {
    /// When the report was true.
    pub at: Instant,
    /// Its view of the engines.
    pub engines: Vec<EngineLoad>,
    /// What passes through it, per model.
    pub gateway: Vec<(ModelId, GatewayLoad)>,
    /// Highest number of the receiving edge's requests up to which all are included.
    pub echo: u64,
}

/// A site's load, merged over its relays: an immutable snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SiteLoad {
    /// What each relay has reported, by relay id.
    pub relays: Vec<RelayEcho>,
    /// Load per model, by model id.
    pub models: Vec<ModelLoad>,
}

/// How far a relay's last report goes.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayEcho {
    /// The relay.
    pub relay: RelayId,
    /// When its last report was true.
    pub at: Instant,
    /// The highest of this edge's request numbers that it includes.
    pub echo: u64,
}

/// A site's load of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLoad {
    /// The model.
    pub model: ModelId,
    /// Sum over engines; `None` while no engine has been heard of.
    pub engines: Option<EngineSum>,
    /// Sum over relays; `None` while no relay has reported.
    pub gateway: Option<GatewaySum>,
}

/// Engine parts of one model, summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSum {
    /// Ranks that the sum is of, at least one; `None` where only a frontend tells, which doesn't
    /// know.
    pub ranks: Option<u32>,
    /// The oldest part in the sum.
    pub at: Instant,
    /// Requests being computed.
    pub running: u32,
    /// Requests that wait for a place; `None` unless every rank tells.
    pub waiting: Option<u32>,
    /// Prompt tokens of those that wait; likewise.
    pub waiting_tokens: Option<u64>,
    /// Requests that all ranks together compute at once; likewise.
    pub max_requests: Option<u32>,
    /// Share of the KV cache that requests hold, of the ranks that tell: by the sizes of their
    /// caches, or the plain mean if one of them doesn't tell its size.
    pub kv_use: Option<f32>,
    /// Share of it that is kept for reuse, likewise.
    pub kv_cached: Option<f32>,
    /// Tokens that all KV caches together have room for; `None` unless every rank tells.
    pub kv_tokens: Option<u64>,
    /// Of the uncached prompt tokens that relays count as queued, those that engines have begun
    /// to compute: an answer that comes at its end only has its first byte then.
    pub begun_tokens: u64,
    /// The part that did not come through relays.
    pub foreign: ForeignLoad,
}

/// Load that reached the engines past every relay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForeignLoad {
    /// Requests, running or waiting.
    pub requests: u32,
    /// Of these, such as wait; `None` where the engines don't tell.
    pub waiting: Option<u32>,
    /// Prompt tokens of those that wait, where the engines tell.
    pub waiting_tokens: Option<u64>,
}

/// Gateway parts of one model, summed over relays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatewaySum {
    /// The sum; of the prefill speed and of the time of serving, the mean of those reported.
    pub load: GatewayLoad,
    /// The oldest report in the sum.
    pub at: Instant,
}

impl SiteLoad {
    /// The load of a model, if anything is known of it.
    pub fn model(&self, model: ModelId) -> Option<&ModelLoad> {
        let index = self
            .models
            .binary_search_by_key(&model, |load| load.model)
            .ok()?;
        self.models.get(index)
    }

    /// Up to which of this edge's request numbers a relay's last report goes; 0 without one.
    pub fn echo(&self, relay: &RelayId) -> u64 {
        let found = self.relays.iter().find(|part| part.relay == *relay);
        found.map_or(0, |part| part.echo)
    }
}

impl ModelLoad {
    /// Prompt tokens that are to be computed before another request's: of those that came by
    /// relays what isn't cached, of others whole prompts. `None` unless both are known.
    pub fn backlog_tokens(&self) -> Option<u64> {
        self.gateway.as_ref()?;
        let foreign = self.engines.as_ref()?.foreign.waiting_tokens?;
        Some(self.relayed_tokens().saturating_add(foreign))
    }

    /// Uncached prompt tokens that came by relays and that nothing has been computed of yet, as
    /// far as that is known.
    pub fn relayed_tokens(&self) -> u64 {
        let queued = self.gateway.as_ref().map(|sum| sum.load.queued_tokens);
        let begun = self.engines.as_ref().map(|sum| sum.begun_tokens);
        queued.unwrap_or(0).saturating_sub(begun.unwrap_or(0))
    }

    /// Requests that are there, computed or waiting, whichever way they came. `None` unless
    /// both engines and relays tell.
    pub fn requests(&self) -> Option<u32> {
        let relayed = self.gateway.as_ref()?.load.in_flight;
        let foreign = self.engines.as_ref()?.foreign.requests;
        Some(relayed.saturating_add(foreign))
    }

    /// What of it is not older than `stale_after`; the rest is unknown.
    pub fn fresh(&self, now: Instant, stale_after: Duration) -> Self {
        Self {
            model: self.model,
            engines: self.fresh_engines(now, stale_after).copied(),
            gateway: self.fresh_gateway(now, stale_after).copied(),
        }
    }

    /// The engine part, unless it is missing or older than `stale_after`.
    pub fn fresh_engines(&self, now: Instant, stale_after: Duration) -> Option<&EngineSum> {
        let fresh = |sum: &&EngineSum| now.saturating_since(sum.at) <= stale_after;
        self.engines.as_ref().filter(fresh)
    }

    /// The gateway part, unless it is missing or older than `stale_after`.
    pub fn fresh_gateway(&self, now: Instant, stale_after: Duration) -> Option<&GatewaySum> {
        let fresh = |sum: &&GatewaySum| now.saturating_since(sum.at) <= stale_after;
        self.gateway.as_ref().filter(fresh)
    }
}
