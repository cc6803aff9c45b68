//! What the page says of how busy a site is.

use kvgrid_core::Instant;
use kvgrid_core::load::{EngineSum, GatewaySum, ModelLoad, RelayEcho};
use kvgrid_core::view::SiteView;
use serde::Serialize;

use super::{age_ms, model_name};
use crate::route::Router;

/// A site's load, as its relays told it.
#[derive(Serialize)]
pub(super) struct Load<'a> {
    relays: Vec<Echo<'a>>,
    models: Vec<LoadOfModel>,
}

#[derive(Serialize)]
struct Echo<'a> {
    id: &'a str,
    age_ms: f64,
    echo: u64,
}

#[derive(Serialize)]
struct LoadOfModel {
    model: String,
    requests: Option<u32>,
    backlog_tokens: Option<u64>,
    engines: Option<Engines>,
    gateway: Option<Gateway>,
}

#[derive(Serialize)]
struct Engines {
    ranks: Option<u32>,
    age_ms: f64,
    running: u32,
    waiting: Option<u32>,
    waiting_tokens: Option<u64>,
    max_requests: Option<u32>,
    kv_use: Option<f32>,
    kv_cached: Option<f32>,
    kv_tokens: Option<u64>,
    begun_tokens: u64,
    foreign: Foreign,
}

#[derive(Serialize)]
struct Foreign {
    requests: u32,
    waiting: Option<u32>,
    waiting_tokens: Option<u64>,
}

#[derive(Serialize)]
struct Gateway {
    age_ms: f64,
    in_flight: u32,
    queued_tokens: u64,
    queued_prompt_tokens: u64,
    arrivals_per_s: f32,
    prefill_ms_per_token: Option<f32>,
    serving_ms: Option<f32>,
}

impl<'a> Load<'a> {
    pub(super) fn of(site: &'a SiteView, router: &Router, now: Instant) -> Self {
        let echo = |part: &'a RelayEcho| Echo {
            id: part.relay.as_str(),
            age_ms: age_ms(part.at, now),
            echo: part.echo,
        };
        let of_model = |load: &ModelLoad| LoadOfModel {
            model: model_name(site, load.model),
            requests: load.requests(),
            backlog_tokens: load.backlog_tokens(),
            engines: load.engines.map(|sum| Engines::of(&sum, now)),
            gateway: load.gateway.map(|sum| Gateway::of(&sum, now)),
        };
        Self {
            relays: site.load.relays.iter().map(echo).collect(),
            models: router.fresh_load(site).iter().map(of_model).collect(),
        }
    }
}

impl Engines {
    fn of(sum: &EngineSum, now: Instant) -> Self {
        Self {
            ranks: sum.ranks,
            age_ms: age_ms(sum.at, now),
            running: sum.running,
            waiting: sum.waiting,
            waiting_tokens: sum.waiting_tokens,
            max_requests: sum.max_requests,
            kv_use: sum.kv_use,
            kv_cached: sum.kv_cached,
            kv_tokens: sum.kv_tokens,
            begun_tokens: sum.begun_tokens,
            foreign: Foreign {
                requests: sum.foreign.requests,
                waiting: sum.foreign.waiting,
                waiting_tokens: sum.foreign.waiting_tokens,
            },
        }
    }
}

impl Gateway {
    fn of(sum: &GatewaySum, now: Instant) -> Self {
        Self {
            age_ms: age_ms(sum.at, now),
            in_flight: sum.load.in_flight,
            queued_tokens: sum.load.queued_tokens,
            queued_prompt_tokens: sum.load.queued_prompt_tokens,
            arrivals_per_s: sum.load.arrivals_per_s,
            prefill_ms_per_token: sum.load.prefill_ms_per_token,
            serving_ms: sum.load.serving_ms,
        }
    }
}
