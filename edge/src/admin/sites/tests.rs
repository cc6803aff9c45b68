use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kvgrid_core::block::HashSeed;
use kvgrid_core::event::Tier;
use kvgrid_core::filter::{Form, Geometry, MixKey, Writer};
use kvgrid_core::id::{ModelName, PoolId, Region, RelayId, SiteId};
use kvgrid_core::label::Labels;
use kvgrid_core::load::{
    EngineSum, ForeignLoad, GatewayLoad, GatewaySum, ModelLoad, RelayEcho, SiteLoad,
};
use kvgrid_core::parity::Kind;
use kvgrid_core::replication::{Epoch, ReplicaFilter, ReplicaView, Seq};
use kvgrid_core::routing::Chains;
use kvgrid_core::view::{CardDigest, GridView, PoolFacts};
use kvgrid_runtime::Clock;
use serde_json::{Value, json};

use super::*;
use crate::config::RetryTable;
use crate::metrics::Metrics;
use crate::open::OpenRequests;
use crate::route::{RouteInput, RouterConfig};

fn model() -> ModelName {
    ModelName::new("tiny-chat").unwrap()
}

fn block_size() -> NonZeroU32 {
    NonZeroU32::new(16).unwrap()
}

fn site() -> SiteView {
    let relay = RelayId::new("fra-1").unwrap();
    SiteView {
        site: SiteId::new("fra").unwrap(),
        region: Some(Region::new("eu").unwrap()),
        labels: Labels::from_pairs([("country", "de")]).unwrap(),
        alive: true,
        relays: vec![RelayView {
            id: relay.clone(),
            connected: true,
            draining: false,
            serves: vec![model().id()],
            rtt: Duration::from_micros(4500),
            path_rate: None,
            window: Some(14_720),
        }],
        models: vec![ModelView {
            aliases: vec![ModelName::new("chat").unwrap()],
            apart: vec![WorkersApart {
                place: "prod/backend/generate".into(),
                workers: 2,
                differs: vec!["tokenizer".into()],
            }],
            id: model().id(),
            name: model(),
            ready: true,
            card: Some(CardInfo {
                digest: CardDigest([0xab; 32]),
                block_size: block_size(),
                format: HashFormat::Standard,
                capacity_blocks: Some(4096),
                context_length: None,
                usable: true,
            }),
        }],
        known_by: Some(relay.clone()),
        pools: vec![pool()],
        load: SiteLoad {
            relays: vec![RelayEcho {
                relay,
                at: Instant::ZERO,
                echo: 12,
            }],
            models: vec![load()],
        },
    }
}

fn pool() -> PoolView {
    let key = Arc::new(MixKey::from_bytes(&[1; 32]));
    let geometry = Geometry::for_capacity(2_000, key.id()).with_form(Form::Exact);
    PoolView {
        id: PoolId(0xc5d),
        model: model().id(),
        source: "engines".into(),
        block_size: block_size(),
        format: HashFormat::Standard,
        naming: Naming::Chain,
        tier: Tier::Device,
        closed: true,
        eviction_age: Some(Duration::from_millis(90_500)),
        replica: ReplicaView {
            state: ReplicaState::Live,
            epoch: Epoch::from_bits(0x4f2a_0001),
            seq: Seq(17),
            applied: [(1, 311)].into(),
            blocks: 1250,
            completeness: Completeness::Whole,
            filter: Some(ReplicaFilter {
                reader: Writer::new(geometry).reader(),
                key,
            }),
            ..ReplicaView::default()
        },
        facts: Some(Arc::new(PoolFacts {
            accepted: Some(1250),
            refused: vec![("block_size".into(), 2)],
            refused_blocks: Some(3),
            copies: None,
            orphans: Some(0),
            gaps: Some(0),
            repairs: None,
            heard_at: Some(Instant::ZERO),
        })),
    }
}

fn load() -> ModelLoad {
    ModelLoad {
        model: model().id(),
        engines: Some(EngineSum {
            ranks: Some(1),
            at: Instant::ZERO,
            running: 2,
            waiting: Some(1),
            waiting_tokens: None,
            max_requests: Some(16),
            kv_use: Some(0.25),
            kv_cached: Some(0.5),
            kv_tokens: None,
            begun_tokens: 0,
            foreign: ForeignLoad {
                requests: 1,
                ..ForeignLoad::default()
            },
        }),
        gateway: Some(GatewaySum {
            load: GatewayLoad {
                in_flight: 3,
                queued_tokens: 500,
                queued_prompt_tokens: 700,
                arrivals_per_s: 0.5,
                prefill_ms_per_token: None,
                serving_ms: Some(750.0),
            },
            at: Instant::ZERO,
        }),
    }
}

fn config() -> RouterConfig {
    RouterConfig {
        retry: RetryTable {
            failures: 1,
            ..RetryTable::default()
        },
        ..RouterConfig::default()
    }
}

fn router(site: SiteView) -> Router {
    router_with(site, config())
}

fn router_with(site: SiteView, config: RouterConfig) -> Router {
    let view = Arc::new(ArcSwap::from_pointee(GridView::new(vec![site])));
    let (metrics, _) = Metrics::new(Arc::clone(&view), OpenRequests::default());
    Router::new(view, config, (Clock::start(), 1), metrics)
}

/// What the page shows of its one site, without ages, which differ from run to run.
fn shown(router: &Router) -> Value {
    let text = page(&EdgeId::new("eu-1").unwrap(), router);
    let mut page: Value = serde_json::from_str(&text).unwrap();
    let mut site = page["sites"][0].take();
    for part in [
        "/load/relays/0",
        "/load/models/0/engines",
        "/load/models/0/gateway",
    ] {
        let part = site.pointer_mut(part).unwrap().as_object_mut().unwrap();
        assert!(part.remove("age_ms").unwrap().as_f64().unwrap() >= 0.0);
    }
    let facts = site["pools"][0]["facts"].as_object_mut().unwrap();
    let age = facts.remove("last_event_age_ms").unwrap();
    assert!(age.as_f64().unwrap() >= 0.0);
    site
}

#[test]
fn a_site_is_shown_with_all_that_is_known_of_it() {
    let expected = json!({
        "site": "fra",
        "region": "eu",
        "labels": {"country": "de"},
        "alive": true,
        "breaker": "closed",
        "relays": [{
            "id": "fra-1", "connected": true, "draining": false, "serves": ["tiny-chat"], "rtt_ms": 4.5,
            "path_bytes_per_s": null, "window_bytes": 14720,
            "breaker": "closed", "in_flight": 0,
        }],
        "models": [{
            "name": "tiny-chat", "aliases": ["chat"], "ready": true,
            "card": {
                "digest": "ab".repeat(32), "usable": true, "block_size": 16,
                "format": "standard", "capacity_blocks": 4096, "context_length": null,
            },
            "parity": [],
            "apart": [{
                "place": "prod/backend/generate", "workers": 2, "differs": ["tokenizer"],
            }],
        }],
        "known_by": "fra-1",
        "pools": [{
            "id": "0000000000000c5d", "model": "tiny-chat", "source": "engines",
            "block_size": 16, "format": "standard", "naming": "chain", "tier": "device",
            "closed": true, "form": "exact",
            "eviction_age_ms": 90_500.0,
            "state": "live", "stale_ms": null,
            "epoch": "4f2a0001", "sequence": 17, "blocks": 1250, "completeness": "whole",
            "applied": [{"publisher": "0000000000000001", "sequence": 311}],
            "syncing": null,
            "facts": {
                "accepted_blocks": 1250, "refused_events": {"block_size": 2},
                "refused_blocks": 3, "copies": null, "orphans": 0, "gaps": 0, "repairs": null,
            },
            "matching": null,
        }],
        "load": {
            "relays": [{"id": "fra-1", "echo": 12}],
            "models": [{
                "model": "tiny-chat", "requests": 4, "backlog_tokens": null,
                "engines": {
                    "ranks": 1, "running": 2, "waiting": 1, "waiting_tokens": null,
                    "max_requests": 16, "kv_use": 0.25, "kv_cached": 0.5, "kv_tokens": null,
                    "begun_tokens": 0,
                    "foreign": {"requests": 1, "waiting": null, "waiting_tokens": null},
                },
                "gateway": {
                    "in_flight": 3, "queued_tokens": 500, "queued_prompt_tokens": 700,
                    "arrivals_per_s": 0.5, "prefill_ms_per_token": null, "serving_ms": 750.0,
                },
            }],
        },
    });

    assert_eq!(shown(&router(site())), expected);
}

#[test]
fn a_load_that_is_too_old_is_not_shown() {
    let load_of = |stale_after| {
        let mut config = config();
        config.policy.load_stale_after = stale_after;
        let router = router_with(site(), config);
        let text = page(&EdgeId::new("eu-1").unwrap(), &router);
        let page: Value = serde_json::from_str(&text).unwrap();
        page["sites"][0]["load"]["models"][0].clone()
    };

    let fresh = load_of(Duration::from_secs(60));
    let old = load_of(Duration::from_nanos(1));

    assert_eq!(fresh["requests"], 4);
    let gone = ["requests", "backlog_tokens", "engines", "gateway"];
    assert!(gone.iter().all(|name| old[name].is_null()), "{old}");
}

#[test]
fn own_requests_and_breakers_are_shown() {
    let router = router(site());
    let mut input = RouteInput {
        model: model(),
        chains: Chains::new(HashSeed::new(None, None)),
        complete: true,
        kind: Kind::PLAIN,
        body_bytes: 1,
        affinity: None,
        rules: Vec::new(),
    };
    let choice = router.route(&mut input, (&[], &[])).outcome.unwrap();

    let mut dispatch = router.dispatch(&choice, &input).unwrap();
    assert_eq!(shown(&router)["relays"][0]["in_flight"], 1);
    dispatch.failed();
    drop(dispatch);

    let shown = shown(&router);
    assert_eq!(shown["relays"][0]["in_flight"], 0);
    assert_eq!(shown["relays"][0]["breaker"], "open");
    assert_eq!(shown["breaker"], "open");
}

#[test]
fn a_stale_replica_says_since_when() {
    let mut site = site();
    site.pools[0].replica.state = ReplicaState::Stale {
        since: Instant::ZERO,
    };

    let shown = shown(&router(site));

    assert_eq!(shown["pools"][0]["state"], "stale");
    assert!(shown["pools"][0]["stale_ms"].is_number());
}
