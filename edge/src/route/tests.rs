use std::num::NonZeroU32;
use std::time::Duration;

use kvgrid_core::block::{HashFormat, HashSeed};
use kvgrid_core::label::Labels;
use kvgrid_core::load::SiteLoad;
use kvgrid_core::routing::Refusal;
use kvgrid_core::view::{CardDigest, CardInfo, ModelView, RelayView, SiteView};

use super::*;
use crate::open::OpenRequests;

fn relay(name: &str) -> RelayId {
    RelayId::new(&format!("{name}-1")).unwrap()
}

fn model() -> ModelName {
    ModelName::new("m").unwrap()
}

fn site(name: &str, rtt_ms: u64) -> SiteView {
    SiteView {
        site: SiteId::new(name).unwrap(),
        region: None,
        labels: Labels::new(),
        alive: true,
        relays: vec![RelayView {
            id: relay(name),
            connected: true,
            draining: false,
            serves: vec![model().id()],
            rtt: Duration::from_millis(rtt_ms),
            path_rate: None,
            window: None,
        }],
        models: vec![ModelView {
            aliases: Vec::new(),
            apart: Vec::new(),
            id: model().id(),
            name: model(),
            ready: true,
            card: None,
        }],
        known_by: None,
        pools: Vec::new(),
        load: SiteLoad::default(),
    }
}

fn router() -> Router {
    let sites = vec![site("fra", 4), site("iad", 90)];
    let view = Arc::new(ArcSwap::from_pointee(GridView::new(sites)));
    let (metrics, _) = Metrics::new(Arc::clone(&view), OpenRequests::default());
    let retry = RetryTable {
        failures: 2,
        breaker_min: Duration::from_secs(3600),
        breaker_max: Duration::from_secs(3600),
        ..RetryTable::default()
    };
    let config = RouterConfig {
        retry,
        ..RouterConfig::default()
    };
    Router::new(view, config, (Clock::start(), 1), metrics)
}

fn input() -> RouteInput {
    RouteInput {
        model: model(),
        chains: Chains::new(HashSeed::new(None, None)),
        complete: true,
        kind: Kind::PLAIN,
        body_bytes: 400,
        affinity: None,
        rules: Vec::new(),
    }
}

/// Routes a request and begins it.
fn send(router: &Router) -> (Choice, Dispatch) {
    let choice = router.route(&mut input(), (&[], &[])).outcome.unwrap();
    let dispatch = router.dispatch(&choice, &input()).unwrap();
    (choice, dispatch)
}

#[test]
fn requests_to_a_relay_are_numbered_from_one() {
    let router = router();

    let numbers: Vec<u64> = (0..3).map(|_| send(&router).1.number()).collect();

    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_request_counts_from_its_dispatch_until_it_is_dropped() {
    let router = router();

    let (choice, dispatch) = send(&router);
    assert_eq!(router.open_requests(&choice.relay), 1);

    drop(dispatch);
    assert_eq!(router.open_requests(&choice.relay), 0);
}

#[test]
fn own_requests_in_the_queue_make_a_site_cost_more() {
    let router = router();
    let mut long = input();
    // 4,300 tokens of prefill take as long as the way to the other site.
    long.body_bytes = 4 * 4500;
    let choice = router.route(&mut long, (&[], &[])).outcome.unwrap();
    let mut first = router.dispatch(&choice, &input()).unwrap();

    let during = router.route(&mut input(), (&[], &[])).outcome.unwrap();
    first.first_byte();
    let after = router.route(&mut input(), (&[], &[])).outcome.unwrap();

    assert_eq!(during.site.as_str(), "iad");
    assert_eq!(after.site.as_str(), "fra");
}

#[test]
fn a_relay_that_keeps_failing_gets_no_requests() {
    let router = router();

    for _ in 0..2 {
        let (choice, mut dispatch) = send(&router);
        assert_eq!(choice.site.as_str(), "fra");
        dispatch.failed();
    }

    assert_eq!(send(&router).0.site.as_str(), "iad");
    assert!(
        !router
            .breakers()
            .allows(&relay("fra"), model().id(), router.now())
    );
}

#[test]
fn a_success_between_failures_keeps_the_breaker_closed() {
    let router = router();

    for _ in 0..4 {
        send(&router).1.failed();
        send(&router).1.succeeded();
    }

    assert_eq!(send(&router).0.site.as_str(), "fra");
}

#[test]
fn requests_that_end_undecided_count_for_nothing() {
    let router = router();

    for _ in 0..10 {
        drop(send(&router));
    }

    assert_eq!(send(&router).0.site.as_str(), "fra");
}

#[test]
fn tried_sites_are_passed_over_until_none_is_left() {
    let router = router();
    let tried: Vec<SiteId> = ["fra", "iad"]
        .iter()
        .map(|site| SiteId::new(site).unwrap())
        .collect();

    let second = router
        .route(&mut input(), (&tried[..1], &[]))
        .outcome
        .unwrap();
    assert_eq!(second.site, tried[1]);
    let none = router.route(&mut input(), (&tried, &[])).outcome;
    assert_eq!(none, Err(Refusal::Unavailable));
}

#[test]
fn decisions_draw_from_different_generators() {
    let router = router();
    let draws: std::collections::BTreeSet<u64> = (0..10)
        .map(|_| rand::Rng::next_u64(&mut router.generator()))
        .collect();

    assert_eq!(draws.len(), 10);
}

/// A router whose sites can be tokenised for, and publish nothing of what they have cached.
fn eventless() -> Router {
    let router = router();
    let card = CardInfo {
        digest: CARD,
        block_size: NonZeroU32::new(16).unwrap(),
        format: HashFormat::Standard,
        capacity_blocks: None,
        context_length: None,
        usable: true,
    };
    let sites = ["fra", "iad"].map(|name| {
        let mut site = site(name, 4);
        site.models[0].card = Some(card.clone());
        site
    });
    router.0.view.store(Arc::new(GridView::new(sites.into())));
    router
}

const CARD: CardDigest = CardDigest([1; 32]);

fn prompt(seed: u32) -> RouteInput {
    let mut input = input();
    let tokens: Vec<u32> = (0..10_000).map(|token| token ^ seed << 16).collect();
    input.chains.insert(CARD, tokens.into());
    input
}

#[test]
fn a_prompt_goes_back_to_where_it_was_sent_until_that_failed() {
    let router = eventless();
    let mut twins = [prompt(1), prompt(1)];
    let route = |input: &mut RouteInput| router.route(input, (&[], &[])).outcome.unwrap();

    let first = route(&mut twins[0]);
    let mut dispatch = router.dispatch(&first, &twins[0]).unwrap();
    assert_eq!(first.overlap_tokens, 0);
    let second = route(&mut twins[1]);
    assert_eq!(second.site, first.site);
    assert_eq!(second.overlap_tokens, 9_984);
    assert_eq!(route(&mut prompt(2)).overlap_tokens, 0);

    dispatch.first_byte();
    dispatch.computed();
    drop(dispatch);
    assert_eq!(route(&mut twins[1]).overlap_tokens, 9_984);

    let mut own = prompt(4);
    let canary = route(&mut own);
    let _running = router.dispatch_own(&canary, &own).unwrap();
    assert_eq!(route(&mut own).overlap_tokens, 0);

    let mut other = prompt(3);
    let lost = route(&mut other);
    let mut dispatch = router.dispatch(&lost, &other).unwrap();
    dispatch.failed();
    drop(dispatch);
    assert_eq!(route(&mut other).overlap_tokens, 0);
}
