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
        extent: Extent::Rank,
        at: at(ms),
        running,
        waiting: Some(waiting),
        waiting_tokens: None,
        max_requests: None,
        kv_use: None,
        kv_cached: None,
        kv_tokens: None,
    }
}

fn gateway(in_flight: u32, queued_tokens: u64) -> Vec<(ModelId, GatewayLoad)> {
    let load = GatewayLoad {
        in_flight,
        queued_tokens,
        queued_prompt_tokens: queued_tokens,
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
    assert_eq!((engines.ranks, engines.running), (Some(2), 6));
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
    assert_eq!((foreign.requests, foreign.waiting), (6, Some(2)));
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
fn a_sum_is_unknown_where_a_part_is() {
    let silent = EngineLoad {
        waiting: None,
        ..engine(2, 10, 4, 0)
    };
    let sized = EngineLoad {
        kv_tokens: Some(100),
        ..engine(1, 10, 1, 3)
    };

    let load = merged(vec![("a", sample(10, vec![sized, silent], vec![]))]);

    let engines = load.engines.unwrap();
    assert_eq!((engines.running, engines.waiting), (5, None));
    assert_eq!(engines.foreign.waiting, None);
    assert_eq!((engines.kv_use, engines.kv_tokens), (None, None));
}

#[test]
fn the_use_of_caches_is_weighed_by_their_sizes() {
    let with = |worker, kv_use, kv_tokens| EngineLoad {
        kv_use: Some(kv_use),
        kv_tokens,
        ..engine(worker, 10, 0, 0)
    };
    let overall = |engines| {
        let load = merged(vec![("a", sample(10, engines, vec![]))]);
        load.engines.unwrap()
    };

    let sized = overall(vec![with(1, 1.0, Some(100)), with(2, 0.0, Some(300))]);
    let unsized_ = overall(vec![with(1, 1.0, Some(100)), with(2, 0.0, None)]);

    assert_eq!((sized.kv_use, sized.kv_tokens), (Some(0.25), Some(400)));
    assert_eq!((unsized_.kv_use, unsized_.kv_tokens), (Some(0.5), None));
    assert_eq!(
        sized.kv_cached, None,
        "what requests hold is not what is kept"
    );
}

#[test]
fn ranks_compute_as_many_requests_as_all_of_them_and_unknown_if_one_is_silent() {
    let with = |worker, max_requests| EngineLoad {
        max_requests,
        ..engine(worker, 10, 0, 0)
    };
    let of = |engines| {
        let load = merged(vec![("a", sample(10, engines, vec![]))]);
        load.engines.unwrap().max_requests
    };

    assert_eq!(of(vec![with(1, Some(4)), with(2, Some(8))]), Some(12));
    assert_eq!(of(vec![with(1, Some(4)), with(2, None)]), None);
}

/// What a frontend tells of `ranks` ranks.
fn frontend(worker: u64, ms: u64, running: u32, ranks: u32) -> EngineLoad {
    EngineLoad {
        extent: Extent::Site {
            ranks: NonZeroU32::new(ranks),
        },
        max_requests: Some(8),
        kv_tokens: Some(1000),
        ..engine(worker, ms, running, 0)
    }
}

#[test]
fn frontends_count_their_own_requests_and_tell_of_the_same_ranks() {
    let load = merged(vec![
        ("a", sample(20, vec![frontend(1, 20, 5, 2)], vec![])),
        ("b", sample(20, vec![frontend(2, 20, 3, 0)], vec![])),
    ]);

    let engines = load.engines.unwrap();
    assert_eq!((engines.running, engines.ranks), (8, Some(2)));
    assert_eq!(
        (engines.max_requests, engines.kv_tokens),
        (Some(8), Some(1000))
    );
}

#[test]
fn a_frontend_counts_only_while_its_ranks_are_silent() {
    let of = |own_ms, told_ms| {
        let parts = vec![engine(1, own_ms, 4, 0), frontend(9, told_ms, 7, 0)];
        let load = merged(vec![("a", sample(told_ms, parts, vec![]))]);
        let engines = load.engines.unwrap();
        (engines.running, engines.ranks)
    };

    assert_eq!(of(1000, 2900), (4, Some(1)));
    assert_eq!(of(1000, 3100), (7, None));
}

#[test]
fn what_waits_in_all_is_unknown_unless_engines_and_relays_tell() {
    let telling = |tokens| EngineLoad {
        waiting_tokens: tokens,
        ..engine(1, 10, 2, 3)
    };
    let queued = GatewayLoad {
        in_flight: 4,
        queued_tokens: 300,
        queued_prompt_tokens: 400,
        ..GatewayLoad::default()
    };
    let of = |tokens, gateway: Vec<_>| {
        let load = merged(vec![("a", sample(10, vec![telling(tokens)], gateway))]);
        (load.backlog_tokens(), load.requests())
    };

    // Of 1,000 tokens that wait, 400 came by the relay, which knows 100 of them to be cached.
    assert_eq!(of(Some(1000), vec![(MODEL, queued)]), (Some(900), Some(5)));
    assert_eq!(of(None, vec![(MODEL, queued)]), (None, Some(5)));
}

#[test]
fn prompts_that_engines_have_begun_with_wait_no_longer() {
    let telling = |running, waiting, tokens| EngineLoad {
        waiting_tokens: tokens,
        ..engine(1, 10, running, waiting)
    };
    let relayed = |engine| {
        let load = merged(vec![("a", sample(10, vec![engine], gateway(10, 1000)))]);
        load.relayed_tokens()
    };

    assert_eq!(relayed(telling(8, 2, Some(200))), 200);
    assert_eq!(relayed(telling(10, 0, None)), 0);
    assert_eq!(
        relayed(telling(8, 2, None)),
        1000,
        "nobody says how much waits"
    );
    assert_eq!(
        relayed(telling(5, 2, Some(200))),
        1000,
        "three are not seen"
    );
}

#[test]
fn what_engines_had_begun_with_is_not_taken_from_what_waits_since() {
    let scraped = engine(1, 1_000, 10, 0);
    let waiting = |reports: &[(u64, u64)]| {
        let first = sample(1_000, vec![scraped], gateway(10, 1_000));
        let later = reports.iter().map(|&(ms, tokens)| {
            let gateway = gateway(10, tokens);
            ("a", sample(ms, vec![scraped], gateway))
        });
        merged(core::iter::once(("a", first)).chain(later).collect()).relayed_tokens()
    };

    assert_eq!(waiting(&[(1_100, 1_000)]), 0);
    assert_eq!(
        waiting(&[(1_100, 0), (1_200, 700)]),
        700,
        "the queue was empty"
    );
    assert_eq!(
        waiting(&[(1_100, 1_000), (3_100, 1_000)]),
        1_000,
        "it was long ago"
    );
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

    assert_eq!(load.engines.unwrap().ranks, Some(1));
}

#[test]
fn too_many_parts_are_refused_and_change_nothing() {
    let mut tracker = LoadTracker::default();
    let many = (0..2000).map(|worker| engine(worker, 1, 1, 0)).collect();

    let refused = tracker.handle_sample(&relay("a"), sample(1, many, vec![]), at(1));

    assert!(refused.is_err());
    assert_eq!(tracker.snapshot(), SiteLoad::default());
}

/// What a rank may say of itself.
fn any_engine() -> impl Strategy<Value = EngineLoad> {
    let share = || prop::option::of((0_u8..=10).prop_map(|tenths| f32::from(tenths) / 10.0));
    let counts = (
        0_u32..9,
        prop::option::of(0_u32..9),
        prop::option::of(0_u64..999),
    );
    let size = prop::option::of(1_u64..999);
    let extent = prop_oneof![
        Just(Extent::Rank),
        (0_u32..4).prop_map(|ranks| Extent::Site {
            ranks: NonZeroU32::new(ranks)
        }),
    ];
    let sizes = (size, prop::option::of(1_u32..9));
    (
        0_u64..3,
        0_u64..40,
        counts,
        share(),
        share(),
        (sizes, extent),
    )
        .prop_map(
            |(worker, ms, (running, waiting, waiting_tokens), kv_use, kv_cached, rest)| {
                let ((kv_tokens, max_requests), extent) = rest;
                EngineLoad {
                    extent,
                    max_requests,
                    waiting,
                    waiting_tokens,
                    kv_use,
                    kv_cached,
                    kv_tokens,
                    ..engine(worker, ms, running, 0)
                }
            },
        )
}

proptest! {
    #[test]
    fn what_relays_report_merges_alike_in_whatever_order_they_come(
        reports in prop::collection::vec(
            (prop::collection::vec(any_engine(), 0..4), 0_u32..9, 0_u64..999),
            1..8,
        ),
        seed: u64,
    ) {
        let merge = |order: &[usize]| {
            let mut tracker = LoadTracker::default();
            for at in order {
                let (engines, in_flight, tokens) = reports[*at].clone();
                let sample = sample(40, engines, gateway(in_flight, tokens));
                tracker.handle_sample(&relay(&at.to_string()), sample, Instant::from_micros(40_000)).unwrap();
            }
            tracker.snapshot()
        };
        let told: Vec<usize> = (0..reports.len()).collect();
        let mut shuffled = told.clone();
        shuffled.sort_by_key(|at| (*at as u64 + 1).wrapping_mul(seed | 1).rotate_left(17));

        let load = merge(&told);

        prop_assert_eq!(&merge(&shuffled), &load);
        for engines in load.models.iter().filter_map(|model| model.engines) {
            let foreign = engines.foreign;
            let all = engines.running + engines.waiting.unwrap_or(0);
            prop_assert!(foreign.requests <= all);
            prop_assert!(foreign.waiting <= engines.waiting);
            for share in [engines.kv_use, engines.kv_cached].into_iter().flatten() {
                prop_assert!((0.0..=1.0).contains(&share));
            }
        }
    }

    /// Requests come by relays or past them, and engines count both.
    #[test]
    fn a_request_is_counted_once_whichever_way_it_came(
        by_relay in prop::collection::vec(0_u32..9, 1..4),
        past in 0_u32..9,
        ranks in 1_u32..4,
        waiting in 0_u32..20,
    ) {
        let through: u32 = by_relay.iter().sum();
        let all = through + past;
        let waiting = waiting.min(all);
        let share = |of: u32, rank| of / ranks + u32::from(rank < of % ranks);
        let engines = |rank: u32| engine(rank.into(), 20, share(all - waiting, rank), share(waiting, rank));
        let engines: Vec<_> = (0..ranks).map(engines).collect();
        let mut tracker = LoadTracker::default();
        for (at, in_flight) in by_relay.iter().enumerate() {
            // Each relay of the site scrapes all engines.
            let sample = sample(20, engines.clone(), gateway(*in_flight, 0));
            tracker.handle_sample(&relay(&at.to_string()), sample, Instant::from_micros(20_000)).unwrap();
        }

        let load = tracker.snapshot().model(MODEL).unwrap().clone();

        let foreign = load.engines.unwrap().foreign;
        prop_assert_eq!(load.gateway.unwrap().load.in_flight + foreign.requests, all);
        prop_assert_eq!(foreign.waiting, Some(past.min(waiting)));
    }

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
            // Of two reports of one scrape the larger one counts, whichever comes first.
            *known = (*known).max((scraped, running));
            gateways.insert(relay_index, in_flight);
        }

        let load = tracker.snapshot().model(MODEL).unwrap().clone();
        let running: u32 = engines.values().map(|(_, running)| running).sum();
        let in_flight: u32 = gateways.values().sum();
        prop_assert_eq!(load.engines.unwrap().running, running);
        prop_assert_eq!(load.gateway.unwrap().load.in_flight, in_flight);
    }
}
