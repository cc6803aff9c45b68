use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::block::HashFormat;
use crate::ckf::Naming;
use crate::event::Tier;
use crate::id::ModelName;
use crate::label::Labels;
use crate::load::SiteLoad;
use crate::replication::ReplicaView;
use crate::view::{CardInfo, ModelView, PoolView, SiteView};

mod pools;

const CONFIG: ParityConfig = ParityConfig {
    tokens: AgreementConfig {
        window: 8,
        differing: 3,
        agreeing: 3,
        back: 5,
    },
    cached: AgreementConfig {
        window: 16,
        differing: 8,
        agreeing: 5,
        back: 8,
    },
    matching: MatchingConfig {
        requests: 20,
        span: Duration::from_secs(10),
    },
    max_entries: 10,
};

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn site(name: &str) -> SiteId {
    SiteId::new(name).unwrap()
}

fn forecast(kind: Kind) -> Forecast {
    Forecast {
        site: site("fra"),
        model: ModelId(1),
        kind,
        card: CardDigest([1; 32]),
        prompt_tokens: 100,
        complete: true,
        source: Some("engines".into()),
        overlap_tokens: 64,
        block_size: 16,
        beginning: Some(7),
        pools: vec![(PoolId(1), 64)],
    }
}

fn usage(prompt_tokens: u32, cached_tokens: u32) -> Usage {
    Usage {
        prompt_tokens: Some(prompt_tokens),
        cached_tokens: Some(cached_tokens),
        same_ids: None,
    }
}

/// What the site is when it is as the forecast says.
fn view_of(forecast: &Forecast) -> GridView {
    let block_size = forecast.block_size.try_into().unwrap();
    let pool = |(id, _): &(PoolId, u32)| PoolView {
        id: *id,
        model: forecast.model,
        source: "engines".into(),
        block_size,
        format: HashFormat::Standard,
        naming: Naming::Chain,
        tier: Tier::Device,
        closed: true,
        eviction_age: None,
        replica: ReplicaView::default(),
        facts: None,
    };
    let card = CardInfo {
        digest: forecast.card,
        block_size,
        format: HashFormat::Standard,
        capacity_blocks: None,
        context_length: None,
        usable: true,
    };
    GridView::new(vec![SiteView {
        site: forecast.site.clone(),
        region: None,
        labels: Labels::new(),
        alive: true,
        relays: Vec::new(),
        models: vec![ModelView {
            aliases: Vec::new(),
            apart: Vec::new(),
            id: forecast.model,
            name: ModelName::new("m").unwrap(),
            ready: true,
            card: Some(card),
        }],
        known_by: None,
        pools: forecast.pools.iter().map(pool).collect(),
        load: SiteLoad::default(),
    }])
}

impl Parity {
    /// What an answer changes that comes while the site is as it was at the decision.
    fn noted(&mut self, forecast: &Forecast, usage: Usage, now: Instant) -> Vec<Change> {
        self.note(forecast, usage, &view_of(forecast), now).changes
    }
}

fn tools() -> Kind {
    Kind::PLAIN.with(Trait::Tools)
}

fn accord(parity: &Parity, kind: Kind) -> Accord {
    let mut kinds = parity.kinds(&site("fra"), ModelId(1));
    let found = kinds.find(|(of, _)| *of == kind);
    found.map_or(Accord::Unknown, |(_, entry)| entry.tokens.accord())
}

#[test]
fn only_the_kind_that_differs_is_set_aside_and_it_comes_back() {
    let mut parity = Parity::new(CONFIG);

    let mut changes = Vec::new();
    for _ in 0..3 {
        changes.extend(parity.noted(&forecast(Kind::PLAIN), usage(100, 64), at(0)));
        changes.extend(parity.noted(&forecast(tools()), usage(107, 64), at(0)));
    }
    assert_eq!(changes, [Change::SetAside]);
    assert_eq!(accord(&parity, Kind::PLAIN), Accord::Agrees);
    assert_eq!(accord(&parity, tools()), Accord::Differs);

    for _ in 0..4 {
        assert_eq!(parity.noted(&forecast(tools()), usage(100, 64), at(1)), []);
    }
    let last = parity.noted(&forecast(tools()), usage(100, 64), at(1));
    assert_eq!(last, [Change::Back]);
    assert_eq!(parity.aside(), Aside::default());
}

#[test]
fn what_a_site_does_not_say_is_neither_equal_nor_different() {
    let mut parity = Parity::new(CONFIG);
    let cached_only = Usage {
        cached_tokens: Some(64),
        ..Usage::default()
    };

    for _ in 0..50 {
        parity.noted(&forecast(Kind::PLAIN), Usage::default(), at(0));
    }
    assert!(parity.is_empty());
    for _ in 0..50 {
        parity.noted(&forecast(Kind::PLAIN), cached_only, at(0));
    }

    assert_eq!(accord(&parity, Kind::PLAIN), Accord::Unknown);
}

#[test]
fn of_a_prompt_with_media_only_the_beginning_must_fit() {
    let mut parity = Parity::new(CONFIG);
    let media = Kind::PLAIN.with(Trait::Media);
    let beginning = Forecast {
        complete: false,
        ..forecast(media)
    };

    for _ in 0..10 {
        parity.noted(&beginning, usage(900, 64), at(0));
    }
    assert_eq!(accord(&parity, media), Accord::Agrees);
    for _ in 0..3 {
        parity.noted(&beginning, usage(90, 64), at(0));
    }

    assert_eq!(accord(&parity, media), Accord::Differs);
}

#[test]
fn ids_tell_apart_what_is_as_long() {
    let mut parity = Parity::new(CONFIG);
    let told = |same| Usage {
        same_ids: Some(same),
        ..usage(100, 64)
    };

    let changes: Vec<_> = (0..3)
        .flat_map(|_| parity.noted(&forecast(tools()), told(false), at(0)))
        .collect();
    assert_eq!(changes, [Change::SetAside]);
    let changes: Vec<_> = (0..5)
        .flat_map(|_| parity.noted(&forecast(tools()), told(true), at(0)))
        .collect();

    assert_eq!(changes, [Change::Back]);
}

#[test]
fn lengths_that_agree_do_not_undo_ids_that_differed_until_ids_agree() {
    let mut parity = Parity::new(CONFIG);
    let told = |same_ids| Usage {
        same_ids,
        ..usage(100, 64)
    };
    for _ in 0..3 {
        parity.noted(&forecast(tools()), told(Some(false)), at(0));
    }

    for _ in 0..50 {
        let noted = parity.note(
            &forecast(tools()),
            told(None),
            &view_of(&forecast(tools())),
            at(1),
        );
        assert_eq!(noted, Noted::default());
    }
    assert_eq!(accord(&parity, tools()), Accord::Differs);

    assert_eq!(
        parity.noted(&forecast(tools()), told(Some(true)), at(2)),
        []
    );
    let changes: Vec<_> = (0..4)
        .flat_map(|_| parity.noted(&forecast(tools()), told(None), at(2)))
        .collect();
    assert_eq!(changes, [Change::Back]);
}

#[test]
fn lengths_that_agree_vouch_for_no_kind_whose_ids_differed_but_once() {
    let mut parity = Parity::new(CONFIG);
    let other_ids = Usage {
        same_ids: Some(false),
        ..usage(100, 64)
    };

    parity.noted(&forecast(tools()), other_ids, at(0));
    for _ in 0..50 {
        parity.noted(&forecast(tools()), usage(100, 64), at(0));
    }

    assert_eq!(accord(&parity, tools()), Accord::Unknown);
}

#[test]
fn another_card_starts_anew() {
    let mut parity = Parity::new(CONFIG);
    for _ in 0..3 {
        parity.noted(&forecast(tools()), usage(107, 64), at(0));
    }
    let other = Forecast {
        card: CardDigest([2; 32]),
        ..forecast(tools())
    };

    let changes = parity.noted(&other, usage(100, 64), at(0));

    assert_eq!(changes, [Change::OtherCard]);
    assert_eq!(accord(&parity, tools()), Accord::Unknown);
    assert_eq!(parity.aside(), Aside::default());
}

#[test]
fn an_answer_by_a_card_that_the_site_has_no_more_tells_nothing() {
    let mut parity = Parity::new(CONFIG);
    for _ in 0..3 {
        parity.noted(&forecast(tools()), usage(107, 64), at(0));
    }
    let old = Forecast {
        card: CardDigest([2; 32]),
        ..forecast(tools())
    };

    let late = parity.note(&old, usage(100, 64), &view_of(&forecast(tools())), at(1));

    assert_eq!(late, Noted::default());
    assert_eq!(accord(&parity, tools()), Accord::Differs);
}

#[test]
fn a_cache_that_differs_now_and_then_agrees_and_one_that_does_for_long_is_told() {
    let mut parity = Parity::new(CONFIG);
    let plain = forecast(Kind::PLAIN);

    let mut changes = Vec::new();
    for round in 0..50 {
        // Every third one was routed to another worker, or had its blocks evicted.
        let cached = if round % 3 == 0 { 0 } else { 64 };
        changes.extend(parity.noted(&plain, usage(100, cached), at(round)));
    }
    assert_eq!(changes, []);
    for round in 0..8 {
        changes.extend(parity.noted(&plain, usage(100, 0), at(50 + round)));
    }

    assert_eq!(changes, [Change::CacheDiffers]);
    assert_eq!(accord(&parity, Kind::PLAIN), Accord::Agrees);
}

#[test]
fn of_a_site_without_pools_more_may_be_cached_than_was_sent_there() {
    let mut parity = Parity::new(CONFIG);
    let eventless = Forecast {
        source: None,
        pools: Vec::new(),
        ..forecast(Kind::PLAIN)
    };

    for _ in 0..20 {
        assert_eq!(parity.noted(&eventless, usage(100, 96), at(0)), []);
    }
    let changes: Vec<_> = (0..8)
        .flat_map(|_| parity.noted(&eventless, usage(100, 0), at(1)))
        .collect();

    assert_eq!(changes, [Change::CacheDiffers]);
}

fn kinds() -> impl Strategy<Value = Kind> {
    let traits = prop::collection::vec(0..Trait::ALL.len(), 0..4);
    traits.prop_map(|traits| {
        let traits = traits.into_iter().map(|place| Trait::ALL[place]);
        traits.fold(Kind::PLAIN, Kind::with)
    })
}

proptest! {
    #[test]
    fn nothing_is_set_aside_while_all_agree(
        samples in prop::collection::vec((kinds(), 1..10_000_u32, 0..10_000_u32), 0..200),
    ) {
        let mut parity = Parity::new(CONFIG);
        for (kind, tokens, cached) in samples {
            let expected = Forecast { prompt_tokens: tokens, ..forecast(kind) };
            parity.noted(&expected, usage(tokens, cached), at(0));
        }
        prop_assert_eq!(parity.aside(), Aside::default());
    }

    #[test]
    fn a_kind_is_set_aside_exactly_as_the_last_samples_say(
        agree in prop::collection::vec(any::<bool>(), 0..200),
    ) {
        let mut parity = Parity::new(CONFIG);
        let (mut aside, mut since) = (false, 0);
        for (place, agrees) in agree.iter().enumerate() {
            parity.noted(&forecast(tools()), usage(if *agrees { 100 } else { 101 }, 0), at(0));
            // The same by looking back over all of it.
            let seen = &agree[since..=place];
            if aside {
                let row = seen.iter().rev().take_while(|agrees| **agrees).count();
                if row >= 5 {
                    (aside, since) = (false, place + 1);
                }
            } else {
                let differing = seen.iter().rev().take(8).filter(|agrees| !**agrees).count();
                aside = differing >= 3;
            }
            prop_assert_eq!(accord(&parity, tools()) == Accord::Differs, aside, "at {}", place);
        }
    }

    #[test]
    fn whatever_came_before_it_is_set_aside_in_time_and_comes_back_in_time(
        before in prop::collection::vec(any::<bool>(), 0..50),
    ) {
        let mut parity = Parity::new(CONFIG);
        let mut note = |agrees: bool| {
            parity.noted(&forecast(tools()), usage(if agrees { 100 } else { 99 }, 0), at(0));
            accord(&parity, tools())
        };
        for agrees in before {
            note(agrees);
        }
        let differing: Vec<Accord> = (0..3).map(|_| note(false)).collect();
        prop_assert_eq!(differing[2], Accord::Differs);
        let agreeing: Vec<Accord> = (0..5).map(|_| note(true)).collect();
        prop_assert_eq!(agreeing[3], Accord::Differs);
        prop_assert_eq!(agreeing[4], Accord::Agrees);
    }

    #[test]
    fn what_is_remembered_has_a_bound_and_what_was_seen_last_is_there(
        samples in prop::collection::vec((0..20_u8, kinds(), 0..100_u64), 1..200),
    ) {
        let mut parity = Parity::new(CONFIG);
        for (place, (name, kind, model)) in samples.into_iter().enumerate() {
            let expected = Forecast {
                site: site(&format!("site-{name}")),
                model: ModelId(model),
                ..forecast(kind)
            };
            parity.noted(&expected, usage(100, 0), at(place as u64));
            prop_assert!(parity.len() <= CONFIG.max_entries);
            prop_assert!(parity.pools.len() <= CONFIG.max_entries);
            let mut known = parity.kinds(&expected.site, expected.model);
            prop_assert!(known.any(|(of, _)| of == kind));
        }
    }
}
