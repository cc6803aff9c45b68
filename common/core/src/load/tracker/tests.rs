use proptest::prelude::*;

use super::*;

const MODEL: ModelId = ModelId(7);

fn at(ms: u64) -> Instant {
    Instant::from_micros(ms * 1000)
}

fn relay(name: &str) -> RelayId {
    RelayId::new(name).unwrap()
}

fn engine(worker: u64, ms: u64, running: u32, waiting: u32) -> EngineLoad {
    EngineLoad {
        model: MODEL,
        worker,
        rank: 0,
        at: at(ms),
        running,
        waiting,
        waiting_tokens: None,
        kv_use: None,
    }
}

fn gateway(in_flight: u32, queued_tokens: u64) -> Vec<(ModelId, GatewayLoad)> {
    let load = GatewayLoad {
        in_flight,
        queued_tokens,
        ..GatewayLoad::default()
    };
    vec![(MODEL, load)]
}

fn sample(ms: u64, engines: Vec<EngineLoad>, gateway: Vec<(ModelId, GatewayLoad)>) -> LoadSample {
    LoadSample {
        at: at(ms),
        engines,
        gateway,
        echo: ms,
    }
}

/// Feeds samples, each at its own time, and reads the model's load.
fn merged(samples: Vec<(&str, LoadSample)>) -> ModelLoad {
    let mut tracker = LoadTracker::default();
    for (from, sample) in samples {
        let now = sample.at;
        tracker.handle_sample(&relay(from), sample, now).unwrap();
    }
    tracker.snapshot().model(MODEL).unwrap().clone()
}

#[test]
fn the_freshest_report_of_an_engine_wins() {
    let load = merged(vec![
        ("a", sample(20, vec![engine(1, 20, 5, 0)], vec![])),
        (
            "b",
            sample(21, vec![engine(1, 10, 9, 0), engine(2, 11, 1, 0)], vec![]),
        ),
    ]);

    let engines = load.engines.unwrap();
    assert_eq!((engines.ranks, engines.running), (2, 6));
    assert_eq!(engines.at, at(11));
}

#[test]
fn gateways_of_all_relays_are_summed() {
    let load = merged(vec![
        ("a", sample(20, vec![], gateway(2, 100))),
        ("b", sample(30, vec![], gateway(3, 50))),
    ]);

    let gateway = load.gateway.unwrap();
    assert_eq!(
        (gateway.load.in_flight, gateway.load.queued_tokens),
        (5, 150)
    );
    assert_eq!(gateway.at, at(20));
}

#[test]
fn foreign_load_subtracts_the_gateway_at_scrape_time() {
    let load = merged(vec![
        ("a", sample(100, vec![], gateway(4, 0))),
        ("a", sample(200, vec![], gateway(1, 0))),
        ("a", sample(300, vec![engine(1, 140, 8, 2)], gateway(0, 0))),
    ]);

    let foreign = load.engines.unwrap().foreign;
    assert_eq!((foreign.requests, foreign.waiting), (6, 2));
}

#[test]
fn foreign_tokens_are_unknown_unless_every_engine_tells() {
    let telling = |worker, tokens| EngineLoad {
        waiting_tokens: tokens,
        ..engine(worker, 10, 0, 3)
    };
    let tokens = |engines| {
        let load = merged(vec![("a", sample(10, engines, gateway(1, 400)))]);
        load.engines.unwrap().foreign.waiting_tokens
    };

    assert_eq!(tokens(vec![telling(1, Some(1000))]), Some(600));
    assert_eq!(tokens(vec![telling(1, Some(1000)), telling(2, None)]), None);
}

#[test]
fn nothing_reported_is_unknown_and_not_zero() {
    let load = merged(vec![("a", sample(10, vec![], gateway(0, 0)))]);

    assert_eq!(load.engines, None);
    assert!(load.gateway.is_some());
}

#[test]
fn a_relay_that_left_no_longer_counts() {
    let mut tracker = LoadTracker::default();
    for name in ["a", "b"] {
        let sample = sample(10, vec![], gateway(3, 0));
        tracker.handle_sample(&relay(name), sample, at(10)).unwrap();
    }

    tracker.handle_relay_gone(&relay("a"));

    let load = tracker.snapshot();
    assert_eq!(
        load.model(MODEL).unwrap().gateway.unwrap().load.in_flight,
        3
    );
    assert_eq!((load.echo(&relay("a")), load.echo(&relay("b"))), (0, 10));
}

#[test]
fn an_engine_that_nobody_reports_is_forgotten() {
    let load = merged(vec![
        ("a", sample(0, vec![engine(1, 0, 5, 0)], vec![])),
        ("a", sample(11_000, vec![engine(2, 11_000, 1, 0)], vec![])),
    ]);

    assert_eq!(load.engines.unwrap().ranks, 1);
}

#[test]
fn too_many_parts_are_refused_and_change_nothing() {
    let mut tracker = LoadTracker::default();
    let many = (0..2000).map(|worker| engine(worker, 1, 1, 0)).collect();

    let refused = tracker.handle_sample(&relay("a"), sample(1, many, vec![]), at(1));

    assert!(refused.is_err());
    assert_eq!(tracker.snapshot(), SiteLoad::default());
}

proptest! {
    /// A plain model: of each engine the newest report, of each relay the last.
    #[test]
    fn merging_equals_a_plain_model(
        reports in prop::collection::vec((0_u8..3, 0_u64..4, 0_u64..500, 0_u32..9, 0_u32..9), 1..60)
    ) {
        let mut tracker = LoadTracker::default();
        let mut engines: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        let mut gateways: BTreeMap<u8, u32> = BTreeMap::new();

        for (relay_index, worker, scraped, running, in_flight) in reports {
            let sample = sample(500, vec![engine(worker, scraped, running, 0)], gateway(in_flight, 0));
            tracker.handle_sample(&relay(&relay_index.to_string()), sample, at(500)).unwrap();
            let known = engines.entry(worker).or_insert((scraped, running));
            if known.0 <= scraped {
                *known = (scraped, running);
            }
            gateways.insert(relay_index, in_flight);
        }

        let load = tracker.snapshot().model(MODEL).unwrap().clone();
        let running: u32 = engines.values().map(|(_, running)| running).sum();
        let in_flight: u32 = gateways.values().sum();
        prop_assert_eq!(load.engines.unwrap().running, running);
        prop_assert_eq!(load.gateway.unwrap().load.in_flight, in_flight);
    }
}
