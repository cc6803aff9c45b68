//! A site's load: the parts relays report, and how they add up.
//!
//! - Engine parts are keyed (model, worker, rank). All relays of a site scrape the same
//!   engines, so of several reports of a key the freshest wins.
//! - Gateway parts count what passed through one relay. They are summed over relays.
//! - Foreign load is what reached the engines past every relay: engines minus gateways, both
//!   at the time of the scrape, for which the tracker keeps a short history of gateway parts.
//! - A part that is missing or too old is unknown, which is never the same as zero.
//!
//! Each sample echoes the highest number of the receiving edge's requests that it includes,
//! so that the edge adds its own younger ones exactly once.

use core::time::Duration;

use crate::id::{ModelId, RelayId};
use crate::time::Instant;

pub use tracker::{LoadError, LoadTracker};

mod tracker;

/// What one rank of one engine says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineLoad {
    /// The model it serves.
    pub model: ModelId,
    /// The worker, as its source names it.
    pub worker: u64,
    /// The data-parallel rank within the worker.
    pub rank: u32,
    /// When it was scraped.
    pub at: Instant,
    /// Requests being computed.
    pub running: u32,
    /// Requests that wait for a place; where that is not told, some may stand among the running.
    pub waiting: Option<u32>,
    /// Uncached prompt tokens of those that wait.
    pub waiting_tokens: Option<u64>,
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
    /// Requests a second, from all edges.
    pub arrivals_per_s: f32,
    /// Prefill speed the relay has fitted; absent until it has data.
    pub prefill_ms_per_token: Option<f32>,
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
    /// Ranks heard of, at least one.
    pub ranks: u32,
    /// The oldest scrape in the sum.
    pub at: Instant,
    /// Requests being computed.
    pub running: u32,
    /// Requests that wait for a place; `None` unless every rank tells.
    pub waiting: Option<u32>,
    /// Share of the KV cache that requests hold, of the ranks that tell: by the sizes of their
    /// caches, or the plain mean if one of them doesn't tell its size.
    pub kv_use: Option<f32>,
    /// Share of it that is kept for reuse, likewise.
    pub kv_cached: Option<f32>,
    /// Tokens that all KV caches together have room for; `None` unless every rank tells.
    pub kv_tokens: Option<u64>,
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
    /// Uncached prompt tokens that wait, where the engines tell.
    pub waiting_tokens: Option<u64>,
}

/// Gateway parts of one model, summed over relays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatewaySum {
    /// The sum; the prefill speed is the mean of those reported.
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
