//! `GET /kvgrid/v1/sites`: what this edge knows of each site and pool.
//!
//! ```json
//! {
//!   "edge": "eu-1",
//!   "sites": [{
//!     "site": "fra",
//!     "region": "eu",
//!     "labels": {"country": "de"},
//!     "alive": true,
//!     "breaker": "closed",
//!     "relays": [{
//!       "id": "fra-1", "connected": true, "draining": false, "serves": ["tiny-chat"],
//!       "rtt_ms": 4.1,
//!       "path_bytes_per_s": null, "window_bytes": 14720,
//!       "breaker": "closed", "in_flight": 0
//!     }],
//!     "models": [{
//!       "name": "tiny-chat", "aliases": [], "ready": true,
//!       "card": {
//!         "digest": "6ca1...", "usable": true, "block_size": 16, "format": "standard",
//!         "capacity_blocks": 4096, "context_length": 8192
//!       },
//!       "parity": [{
//!         "kind": "plain", "set_aside": false, "age_ms": 210.0,
//!         "tokens": {
//!           "state": "agrees", "compared": 12, "different": 0, "expected": 65, "told": 65,
//!           "same_ids": null
//!         },
//!         "caches": [{
//!           "source": "engines", "state": "agrees", "compared": 12, "different": 0,
//!           "overlap_tokens": 528, "cached_tokens": 528
//!         }]
//!       }],
//!       "apart": [{
//!         "place": "prod/backend/generate", "workers": 1, "differs": ["kv_cache_block_size"]
//!       }]
//!     }],
//!     "known_by": "fra-1",
//!     "pools": [{
//!       "id": "0c5d2ae1a07d7bbf", "model": "tiny-chat", "source": "engines",
//!       "block_size": 16, "format": "standard", "naming": "chain", "tier": "device",
//!       "closed": true, "form": "filter", "eviction_age_ms": 90500.0,
//!       "state": "live", "stale_ms": null,
//!       "epoch": "4f2a0001", "sequence": 17, "blocks": 1250, "completeness": "whole",
//!       "applied": [{"publisher": "0000000000000001", "sequence": 311}],
//!       "syncing": null,
//!       "facts": {
//!         "accepted_blocks": 1250, "refused_events": {"block_size": 2}, "refused_blocks": 0,
//!         "copies": 1250, "orphans": 0, "gaps": 0, "repairs": 0, "last_event_age_ms": 130.0
//!       },
//!       "matching": {"requests": 12, "matched": 11, "missed": 0, "warning": null}
//!     }],
//!     "load": {
//!       "relays": [{"id": "fra-1", "age_ms": 52.0, "echo": 12}],
//!       "models": [{
//!         "model": "tiny-chat", "requests": 10, "backlog_tokens": 6301,
//!         "engines": {
//!           "ranks": 1, "age_ms": 110.0, "running": 4, "waiting": 6, "waiting_tokens": 6301,
//!           "max_requests": 4, "kv_use": 0.12, "kv_cached": 0.61, "kv_tokens": 65536,
//!           "begun_tokens": 4240,
//!           "foreign": {"requests": 0, "waiting": 0, "waiting_tokens": 0}
//!         },
//!         "gateway": {
//!           "age_ms": 52.0, "in_flight": 10, "queued_tokens": 10541,
//!           "queued_prompt_tokens": 10541, "arrivals_per_s": 0.5,
//!           "prefill_ms_per_token": null, "serving_ms": 2400.0
//!         }
//!       }]
//!     }
//!   }]
//! }
//! ```
//!
//! - 64-bit names (pool, publisher) are 16 hexadecimal digits and epochs hexadecimal without
//!   leading zeros, since JSON readers round large numbers; sequences are numbers.
//! - `state` is `empty`, `syncing`, `live` or `stale`; `completeness` is `whole`, `partial`,
//!   `incomplete` or `none`.
//! - `naming` is by what a pool knows its blocks: `chain` (their hashes), `ckf-v1` (the classes
//!   of Dynamo's own filter), or `unknown` here, so that the pool is not searched.
//! - `form` is how much is known here of each block's hash: `filter` (a fingerprint, so that a
//!   depth may be a block too large), or `exact` (all of it); `null` while nothing can be searched.
//! - `breaker` is `closed`, `half_open` (the next request is a trial) or `open`: of a relay the
//!   worst over the site's models, of a site the best over its relays.
//! - `known_by` is the relay by which the pools are known; all tell of the same workers.
//! - `applied` says of each of the source's publishers the last sequence that can be searched
//!   here: whatever it published up to that is in the replica.
//! - A model whose name the site's catalog does not tell is shown by its id, as digits.
//! - `parity` is told by answers' `usage` ([`kvgrid_core::parity`]), for each kind of request:
//!   its traits, joined by `+`, or `plain`. `tokens` says whether prompts are as long as was
//!   counted here, with the last two lengths compared, and whether the token ids that the site
//!   gave a canary last were ours; a kind that is `set_aside` is routed to the site without
//!   tokens. `caches` says for each source whether as much was cached as its
//!   pools said, with the sums of both. Their `state` is `unknown`, `agrees` or `differs`.
//! - `facts` are what the relay counts since its start: events it could not use, by reason, and
//!   blocks that it refused as it had reached a limit. `matching` says how often a pool held
//!   some of a prompt of two blocks or more that was sent to its site; `missed` are those since
//!   the last match that it should have held: the site said that blocks were cached, or, where it
//!   says nothing of that, the prompt began as earlier ones. `warning` says which of the two in
//!   words, once they are many. A kind that is set aside counts for no pool.
//! - `load` is told by model. `engines` are what engines say, or frontends of them; `gateway`
//!   is what passes through relays, and `foreign` what came past them. `requests` and
//!   `backlog_tokens` are both together: all requests that are there, and all prompt tokens that
//!   are to be computed before another's, of which those of foreign requests may be cached, and
//!   of the others' `queued_tokens` the `begun_tokens` are computed already.
//!   `max_requests` is how many the ranks compute at once. `kv_use` and `kv_cached` are shares
//!   of the KV cache: what requests hold, and what is kept for reuse. Reports older than the
//!   policy's `load_stale_after` are not shown.
//! - `apart` are workers of a model with another card than the one that the site serves by, and
//!   the fields in which that differs: what they have cached is not told.
//! - What is not known is `null`, never zero. Ages are as of the answer.

use std::collections::BTreeMap;
use std::time::Duration;

use kvgrid_core::block::HashFormat;
use kvgrid_core::ckf::Naming;
use kvgrid_core::replication::{Completeness, ReplicaState};
use kvgrid_core::view::{CardInfo, ModelView, PoolView, RelayView, SiteView, WorkersApart};
use kvgrid_core::{EdgeId, Instant, ModelId, ModelName};
use serde::Serialize;

use crate::route::Router;
use facts::Facts;
use load::Load;
use parity::{KindParity, PoolMatching};

mod facts;
mod load;
mod parity;

/// The page as JSON.
pub(super) fn page(edge: &EdgeId, router: &Router) -> String {
    let view = router.view();
    let now = router.now();
    let page = Page {
        edge: edge.as_str(),
        sites: view
            .sites()
            .iter()
            .map(|site| Site::of(site, router, now))
            .collect(),
    };
    serde_json::to_string(&page).expect("the page is plain data with text keys")
}

#[derive(Serialize)]
struct Page<'a> {
    edge: &'a str,
    sites: Vec<Site<'a>>,
}

#[derive(Serialize)]
struct Site<'a> {
    site: &'a str,
    region: Option<&'a str>,
    labels: BTreeMap<&'a str, &'a str>,
    alive: bool,
    breaker: Breaker,
    relays: Vec<Relay<'a>>,
    models: Vec<Model<'a>>,
    known_by: Option<&'a str>,
    pools: Vec<Pool<'a>>,
    load: Load<'a>,
}

#[derive(Serialize)]
struct Relay<'a> {
    id: &'a str,
    connected: bool,
    draining: bool,
    serves: Vec<String>,
    rtt_ms: f64,
    path_bytes_per_s: Option<f64>,
    window_bytes: Option<u64>,
    breaker: Breaker,
    in_flight: u32,
}

#[derive(Serialize)]
struct Model<'a> {
    name: &'a str,
    aliases: Vec<&'a str>,
    ready: bool,
    card: Option<Card>,
    parity: Vec<KindParity>,
    apart: Vec<Apart<'a>>,
}

#[derive(Serialize)]
struct Apart<'a> {
    place: &'a str,
    workers: u32,
    differs: Vec<&'a str>,
}

#[derive(Serialize)]
struct Card {
    digest: String,
    usable: bool,
    block_size: u32,
    format: &'static str,
    capacity_blocks: Option<u64>,
    context_length: Option<u32>,
}

#[derive(Serialize)]
struct Pool<'a> {
    id: String,
    model: String,
    source: &'a str,
    block_size: u32,
    format: &'static str,
    naming: &'static str,
    tier: &'static str,
    closed: bool,
    form: Option<&'static str>,
    eviction_age_ms: Option<f64>,
    state: &'static str,
    stale_ms: Option<f64>,
    epoch: Option<String>,
    sequence: u64,
    blocks: u64,
    completeness: &'static str,
    applied: Vec<Applied>,
    syncing: Option<Transfer>,
    facts: Option<Facts<'a>>,
    matching: Option<PoolMatching>,
}

#[derive(Serialize)]
struct Applied {
    publisher: String,
    sequence: u64,
}

#[derive(Serialize)]
struct Transfer {
    epoch: String,
    missing_chunks: u32,
    chunks: u32,
}

impl<'a> Site<'a> {
    fn of(site: &'a SiteView, router: &Router, now: Instant) -> Self {
        let relays: Vec<Relay<'a>> = site
            .relays
            .iter()
            .map(|relay| Relay::of(relay, site, router, now))
            .collect();
        Self {
            site: site.site.as_str(),
            region: site.region.as_ref().map(|region| region.as_str()),
            labels: site.labels.iter().collect(),
            alive: site.alive,
            // The best of its relays', which are what a request can choose from.
            breaker: relays
                .iter()
                .map(|relay| relay.breaker)
                .min()
                .unwrap_or(Breaker::Closed),
            relays,
            models: site
                .models
                .iter()
                .map(|model| Model::of(model, site, router, now))
                .collect(),
            known_by: site.known_by.as_ref().map(|relay| relay.as_str()),
            pools: site
                .pools
                .iter()
                .map(|pool| Pool::of(pool, site, router, now))
                .collect(),
            load: Load::of(site, router, now),
        }
    }
}

impl<'a> Relay<'a> {
    fn of(relay: &'a RelayView, site: &SiteView, router: &Router, now: Instant) -> Self {
        Self {
            id: relay.id.as_str(),
            connected: relay.connected,
            draining: relay.draining,
            serves: relay
                .serves
                .iter()
                .map(|id| model_name(site, *id))
                .collect(),
            rtt_ms: relay.rtt.as_secs_f64() * 1000.0,
            path_bytes_per_s: relay.path_rate,
            window_bytes: relay.window,
            breaker: breaker(relay, site, router, now),
            in_flight: router.open_requests(&relay.id),
        }
    }
}

impl<'a> Model<'a> {
    fn of(model: &'a ModelView, site: &SiteView, router: &Router, now: Instant) -> Self {
        Self {
            name: model.name.as_str(),
            aliases: model.aliases.iter().map(ModelName::as_str).collect(),
            ready: model.ready,
            card: model.card.as_ref().map(Card::of),
            parity: parity::kinds(model, &site.site, router, now),
            apart: model.apart.iter().map(Apart::of).collect(),
        }
    }
}

impl<'a> Apart<'a> {
    fn of(apart: &'a WorkersApart) -> Self {
        Self {
            place: &apart.place,
            workers: apart.workers,
            differs: apart.differs.iter().map(|field| &**field).collect(),
        }
    }
}

impl Card {
    fn of(card: &CardInfo) -> Self {
        Self {
            digest: card.digest.to_string(),
            usable: card.usable,
            block_size: card.block_size.get(),
            format: format_name(card.format),
            capacity_blocks: card.capacity_blocks,
            context_length: card.context_length.map(|tokens| tokens.get()),
        }
    }
}

impl<'a> Pool<'a> {
    fn of(pool: &'a PoolView, site: &SiteView, router: &Router, now: Instant) -> Self {
        let replica = &pool.replica;
        let stale_ms = match replica.state {
            ReplicaState::Stale { since } => Some(age_ms(since, now)),
            ReplicaState::Empty | ReplicaState::Syncing | ReplicaState::Live => None,
        };
        let applied = |(publisher, sequence): &(u64, u64)| Applied {
            publisher: format!("{publisher:016x}"),
            sequence: *sequence,
        };
        Self {
            id: format!("{:016x}", pool.id.0),
            model: model_name(site, pool.model),
            source: &pool.source,
            block_size: pool.block_size.get(),
            format: format_name(pool.format),
            naming: naming_name(pool.naming),
            tier: pool.tier.name(),
            closed: pool.closed,
            form: replica.filter.as_ref().map(|filter| filter.form().name()),
            eviction_age_ms: pool.eviction_age.map(millis),
            state: state_name(replica.state),
            stale_ms,
            epoch: replica.epoch.map(|epoch| epoch.to_string()),
            sequence: replica.seq.0,
            blocks: replica.blocks,
            completeness: completeness_name(replica.completeness),
            applied: replica.applied.iter().map(applied).collect(),
            syncing: replica.syncing.map(|syncing| Transfer {
                epoch: syncing.epoch.to_string(),
                missing_chunks: syncing.missing,
                chunks: syncing.chunks,
            }),
            facts: pool.facts.as_deref().map(|facts| Facts::of(facts, now)),
            matching: parity::matching(pool, site, router),
        }
    }
}

/// A breaker's state, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Breaker {
    Closed,
    HalfOpen,
    Open,
}

/// The worst of a relay's breakers, over the models that its site lists.
fn breaker(relay: &RelayView, site: &SiteView, router: &Router, now: Instant) -> Breaker {
    let breakers = router.breakers();
    let state = |model: &ModelView| match breakers.until(&relay.id, model.id) {
        None => Breaker::Closed,
        Some(until) if until <= now => Breaker::HalfOpen,
        Some(_) => Breaker::Open,
    };
    site.models
        .iter()
        .map(state)
        .max()
        .unwrap_or(Breaker::Closed)
}

fn age_ms(at: Instant, now: Instant) -> f64 {
    millis(now.saturating_since(at))
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn model_name(site: &SiteView, model: ModelId) -> String {
    match site.model(model) {
        Some(model) => model.name.to_string(),
        None => format!("{:016x}", model.0),
    }
}

const fn format_name(format: HashFormat) -> &'static str {
    match format {
        HashFormat::Standard => "standard",
        HashFormat::Eagle => "eagle",
    }
}

const fn naming_name(naming: Naming) -> &'static str {
    match naming {
        Naming::Chain => "chain",
        Naming::Ckf(_) => "ckf-v1",
        Naming::Unknown => "unknown",
    }
}

const fn state_name(state: ReplicaState) -> &'static str {
    match state {
        ReplicaState::Empty => "empty",
        ReplicaState::Syncing => "syncing",
        ReplicaState::Live => "live",
        ReplicaState::Stale { .. } => "stale",
    }
}

const fn completeness_name(completeness: Completeness) -> &'static str {
    match completeness {
        Completeness::Whole => "whole",
        Completeness::Partial => "partial",
        Completeness::Incomplete => "incomplete",
        Completeness::None => "none",
    }
}

#[cfg(test)]
mod tests;
