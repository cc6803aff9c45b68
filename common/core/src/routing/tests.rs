use core::num::NonZeroU32;
use core::time::Duration;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;
use crate::block::HashSeed;
use crate::id::Region;
use crate::label::{Labels, SiteRules};
use grid::{BLOCK, CARD, MODEL, NOW, Site, ms, tokens};

mod aside;
mod evicted;
mod grid;
mod herd;
mod predicted;
mod properties;
mod walked;

/// A decision's inputs, as most tests need them.
struct Case {
    view: GridView,
    chains: Chains,
    policy: Policy,
    inflight: Inflight,
    breakers: Breakers,
    predicted: Option<Predicted>,
    exclude: Vec<SiteId>,
    exclude_relays: Vec<RelayId>,
    affinity: Option<u64>,
    rules: Vec<SiteRules>,
    aside: Vec<SiteId>,
    body_bytes: u64,
}

impl Case {
    /// A prompt of `prompt_tokens` tokens at these sites.
    fn new(prompt_tokens: u32, sites: Vec<Site>) -> Self {
        let mut chains = Chains::new(HashSeed::new(None, None));
        chains.insert(CARD, tokens(prompt_tokens));
        Self {
            view: GridView::new(sites.into_iter().map(Site::build).collect()),
            chains,
            policy: Policy::default(),
            inflight: Inflight::default(),
            breakers: Breakers::default(),
            predicted: None,
            exclude: Vec::new(),
            exclude_relays: Vec::new(),
            affinity: None,
            rules: Vec::new(),
            aside: Vec::new(),
            body_bytes: 0,
        }
    }

    /// The same without tokens.
    fn blind(body_bytes: u64, sites: Vec<Site>) -> Self {
        Self {
            chains: Chains::new(HashSeed::new(None, None)),
            body_bytes,
            ..Self::new(0, sites)
        }
    }

    fn decide(&self, seed: u64) -> Decision {
        let model = ModelName::new(MODEL).unwrap();
        let mut chains = self.chains.clone();
        chains.hash_for(&self.view, model.id());
        let rules: Vec<&SiteRules> = self.rules.iter().collect();
        let request = RouteRequest {
            model: &model,
            chains: &chains,
            body_bytes: self.body_bytes,
            affinity: self.affinity,
            exclude: &self.exclude,
            exclude_relays: &self.exclude_relays,
            rules: &rules,
            aside: &self.aside,
        };
        let local = Local {
            policy: &self.policy,
            inflight: &self.inflight,
            breakers: &self.breakers,
            predicted: self.predicted.as_ref(),
        };
        let mut rng = SmallRng::seed_from_u64(seed);
        decide(&self.view, &request, &local, NOW, &mut rng)
    }

    /// The name of the site that is chosen.
    fn chosen(&self) -> String {
        let choice = self.decide(1).outcome.unwrap();
        choice.site.as_str().to_owned()
    }

    /// How many of `draws` decisions each of the named sites gets.
    fn drawn(&self, draws: u64, sites: [&str; 2]) -> [usize; 2] {
        let chosen: Vec<SiteId> = (0..draws)
            .map(|seed| self.decide(seed).outcome.unwrap().site)
            .collect();
        sites.map(|site| {
            chosen
                .iter()
                .filter(|chosen| chosen.as_str() == site)
                .count()
        })
    }

    fn exclusion(&self, site: &str) -> String {
        let decision = self.decide(1);
        let candidate = decision.candidate(&SiteId::new(site).unwrap());
        match candidate.unwrap().verdict {
            Verdict::Excluded(exclusion) => exclusion.to_string(),
            Verdict::Scored(_) => panic!("{site} is not excluded"),
        }
    }

    fn score(&self, site: &str) -> Score {
        let decision = self.decide(1);
        let candidate = decision.candidate(&SiteId::new(site).unwrap());
        candidate.unwrap().score().unwrap().clone()
    }
}

fn relay_of(site: &str) -> RelayId {
    RelayId::new(&format!("{site}-1")).unwrap()
}

#[test]
fn near_wins_when_nothing_is_warm() {
    let case = Case::new(2000, vec![Site::new("fra", 4), Site::new("iad", 90)]);

    assert_eq!(case.chosen(), "fra");
}

#[test]
fn a_warm_prefix_wins_over_a_near_site() {
    // 20,000 tokens of prefill are 400 ms, the ocean 86.
    let case = Case::new(
        20_000,
        vec![Site::new("fra", 4), Site::new("iad", 90).warm(1200)],
    );

    assert_eq!(case.chosen(), "iad");
    assert_eq!(case.decide(1).outcome.unwrap().overlap_tokens, 19_200);
}

#[test]
fn a_pool_is_searched_by_the_names_that_it_has() {
    let near = Site::new("fra", 4).warm(50);
    let far = Site::new("iad", 90).warm_by_classes(2000, &[]);
    let holed = Site::new("icn", 90).warm_by_classes(2000, &[700]);
    let unknown = Site::new("sin", 4).warm(2000).of_unknown_names();
    let case = Case::new(40_000, vec![near, far, holed, unknown]);

    let depth = |site| case.score(site).overlap.depth;

    assert_eq!(case.chosen(), "iad");
    assert_eq!((depth("fra"), depth("iad"), depth("sin")), (50, 2000, 0));
    assert_eq!(depth("icn"), 700, "it is confirmed block by block");
}

#[test]
fn the_ocean_outweighs_a_short_warm_prefix() {
    let case = Case::new(
        2000,
        vec![Site::new("fra", 4), Site::new("iad", 90).warm(120)],
    );

    assert_eq!(case.chosen(), "fra");
}

#[test]
fn the_deepest_overlap_wins_within_the_band() {
    // 64 tokens are 1.3 ms: less than the path's 3, more than nothing.
    let case = Case::new(1000, vec![Site::new("fra", 4), Site::new("par", 7).warm(4)]);

    let choice = case.decide(1).outcome.unwrap();
    assert_eq!((choice.site.as_str(), choice.pick), ("par", Pick::Deepest));
}

#[test]
fn a_fully_cached_prompt_computes_its_last_block_again() {
    let overlap = |prompt_tokens| {
        let case = Case::new(prompt_tokens, vec![Site::new("fra", 4).warm(5)]);
        case.decide(1).outcome.unwrap().overlap_tokens
    };

    assert_eq!([16, 17, 64, 65, 80].map(overlap), [0, 16, 48, 64, 64]);
}

#[test]
fn equal_sites_share_the_requests() {
    let case = Case::new(1000, vec![Site::new("fra", 4), Site::new("par", 4)]);

    let [fra, par] = case.drawn(1000, ["fra", "par"]);
    assert_eq!(fra + par, 1000);
    assert!((400..600).contains(&fra), "{fra}");
}

#[test]
fn of_equal_sites_the_emptier_gets_more() {
    let case = Case::new(
        1000,
        vec![
            Site::new("fra", 4).kv_use(0.9),
            Site::new("par", 4).kv_use(0.1),
        ],
    );

    let [fra, par] = case.drawn(1000, ["fra", "par"]);
    assert!(par > 4 * fra, "{fra} and {par}");
}

#[test]
fn arrivals_since_the_report_widen_the_draw_between_peers() {
    let sites = |arrivals, rtt_ms| {
        let busy = |site: Site| site.arrivals(arrivals).reported(100);
        vec![
            busy(Site::new("fra", 4)),
            busy(Site::new("par", rtt_ms).queued(400)),
        ]
    };
    let drawn = |arrivals, rtt_ms| {
        let case = Case::new(1000, sites(arrivals, rtt_ms));
        case.drawn(1000, ["fra", "par"])
    };

    // 400 tokens in the queue are 8 ms.
    assert_eq!(drawn(0.0, 4), [1000, 0]);
    let [fra, par] = drawn(2.0, 4);
    assert!(fra > par && par > 300, "{fra} and {par}");
    assert_eq!(drawn(2.0, 20), [1000, 0]);
}

#[test]
fn a_session_without_tokens_keeps_to_its_site() {
    let sites = || vec![Site::new("fra", 4), Site::new("par", 4)];
    let chosen = |session| {
        let mut case = Case::blind(400, sites());
        case.affinity = Some(session);
        let drawn = case.drawn(20, ["fra", "par"]);
        assert!(drawn.contains(&20), "{drawn:?}");
        drawn[0] == 20
    };

    let at_fra = (0..200).filter(|session| chosen(*session)).count();
    assert!((60..140).contains(&at_fra), "{at_fra}");
}

#[test]
fn without_tokens_the_queue_still_counts() {
    let case = Case::blind(
        4000,
        vec![Site::new("fra", 4).queued(5000), Site::new("par", 20)],
    );

    assert_eq!(case.chosen(), "par");
    assert_eq!(case.score("par").prompt_tokens, 1000);
    assert_eq!(case.decide(1).outcome.unwrap().prompt_tokens, None);
}

#[test]
fn unknown_load_is_not_taken_for_idle() {
    let silent = Case::new(
        100,
        vec![Site::new("fra", 4).silent(), Site::new("par", 20)],
    );
    let old = Case::new(
        100,
        vec![Site::new("fra", 4).reported(60_000), Site::new("par", 20)],
    );

    assert_eq!(silent.chosen(), "par");
    assert_eq!(old.chosen(), "par");
    assert!(!silent.score("fra").load_known);
}

#[test]
fn an_old_report_of_a_long_queue_still_counts() {
    let case = Case::new(
        100,
        vec![Site::new("fra", 4).queued(50_000).reported(60_000)],
    );

    assert_eq!(case.score("fra").cost.queue_ms.round(), 1000.0);
}

#[test]
fn a_site_at_the_very_edge_of_the_band_is_still_a_choice() {
    // They cost 5 ms more or less than each other, the width of the band, but for rounding.
    let deep = Site::new("fra", 8).warm(3).queued(128);
    let cheap = Site::new("par", 2).warm(1).queued(146);

    let decision = Case::new(416, vec![deep, cheap]).decide(0);

    assert_eq!(decision.outcome.unwrap().site.as_str(), "fra");
}

#[test]
fn engines_that_do_not_say_how_many_wait_are_not_taken_for_idle() {
    let case = Case::new(100, vec![Site::new("fra", 4).without_queue()]);

    let score = case.score("fra");

    assert!(!score.load_known);
    assert!(score.cost.queue_ms > 0.0);
}

#[test]
fn foreign_requests_that_wait_are_part_of_the_queue() {
    let case = Case::new(100, vec![Site::new("fra", 4).foreign_waiting(3)]);

    assert_eq!(case.score("fra").cost.queue_ms.round(), 60.0);
}

#[test]
fn a_request_waits_for_a_place_where_all_are_taken() {
    let queue_ms = |site: Site| {
        let case = Case::new(100, vec![site.places(4).serving(800.0)]);
        case.score("fra").cost.queue_ms.round()
    };
    let fra = || Site::new("fra", 4);

    assert_eq!(queue_ms(fra().in_flight(3)), 0.0);
    assert_eq!(queue_ms(fra().in_flight(4)), 200.0);
    // Three wait already, one of them past the relays.
    assert_eq!(queue_ms(fra().in_flight(6).foreign_waiting(1)), 800.0);
    // The queue's tokens take longer than that.
    assert_eq!(queue_ms(fra().in_flight(4).queued(50_000)), 1000.0);
}

#[test]
fn a_full_site_is_left_for_one_with_places() {
    let busy = || Site::new("fra", 4).warm(6).in_flight(8);
    let other = || Site::new("par", 20);

    let unknown = Case::new(100, vec![busy(), other()]);
    let full = Case::new(100, vec![busy().places(8), other().places(8)]);
    let roomy = Case::new(100, vec![busy().places(16), other().places(8)]);

    assert_eq!(unknown.chosen(), "fra");
    assert_eq!(full.chosen(), "par");
    assert_eq!(roomy.chosen(), "fra");
}

#[test]
fn among_equals_those_with_places_get_more() {
    let half = Site::new("fra", 4).kv_use(0.0).places(8).in_flight(7);
    let empty = Site::new("par", 4).kv_use(0.0).places(8);

    let [fra, par] = Case::new(1000, vec![half, empty]).drawn(1000, ["fra", "par"]);

    assert!(par > 4 * fra, "{fra} and {par}");
}

#[test]
fn own_requests_count_until_the_relay_includes_them() {
    let queue_ms = |echo| {
        let mut case = Case::new(100, vec![Site::new("fra", 4).queued(1000).echo(echo)]);
        case.inflight.open(&relay_of("fra"), 1);
        let lane = case.inflight.lane(&relay_of("fra")).unwrap();
        lane.begin(ModelName::new(MODEL).unwrap().id(), 500);
        case.score("fra").cost.queue_ms.round()
    };

    assert_eq!(queue_ms(0), 30.0);
    assert_eq!(queue_ms(1), 20.0);
}

#[test]
fn simultaneous_long_prompts_spread_over_equal_sites() {
    let mut case = Case::new(8000, vec![Site::new("fra", 4), Site::new("par", 4)]);
    let model = ModelName::new(MODEL).unwrap().id();
    for site in ["fra", "par"] {
        case.inflight.open(&relay_of(site), 1);
    }

    let mut sent = [0_i32; 2];
    for seed in 0..64 {
        let choice = case.decide(seed).outcome.unwrap();
        sent[usize::from(choice.site.as_str() == "par")] += 1;
        let lane = case.inflight.lane(&choice.relay).unwrap();
        lane.begin(model, choice.uncached_tokens);
    }

    assert!((sent[0] - sent[1]).abs() <= 2, "{sent:?}");
}

#[test]
fn a_deeper_disk_pool_can_be_worth_less_than_a_gpu_pool() {
    let site = Site::new("fra", 4).warm(50).warm_on_disk(100);
    let case = Case::new(2000, vec![site]);

    assert_eq!(case.score("fra").overlap.tokens, 800);
}

#[test]
fn a_far_site_pays_for_the_upload() {
    let case = |bytes| Case {
        body_bytes: bytes,
        ..Case::new(100, vec![Site::new("icn", 239)])
    };

    assert_eq!(case(10_000).score("icn").cost.upload_ms, 0.0);
    let first_prompt = case(380_000).score("icn").cost.upload_ms;
    assert!((700.0..1500.0).contains(&first_prompt), "{first_prompt}");
}

#[test]
fn each_obstacle_is_named() {
    let fra = || Site::new("fra", 4);
    let exclusion = |site: Site| Case::new(100, vec![site]).exclusion("fra");

    assert_eq!(exclusion(fra().serves("other")), "model not served");
    assert_eq!(exclusion(fra().dead()), "not connected");
    assert_eq!(exclusion(fra().disconnected()), "not connected");
    assert_eq!(exclusion(fra().not_ready()), "model not ready");
    assert_eq!(exclusion(fra().draining()), "draining");
    assert_eq!(exclusion(fra().context(100)), "100 tokens do not fit 100");
}

#[test]
fn a_site_that_was_tried_is_not_tried_again() {
    let mut case = Case::new(100, vec![Site::new("fra", 4), Site::new("iad", 90)]);
    case.exclude = vec![SiteId::new("fra").unwrap()];

    assert_eq!(case.chosen(), "iad");
    assert_eq!(case.exclusion("fra"), "already tried");
}

#[test]
fn an_open_breaker_keeps_requests_away_until_its_time() {
    let mut case = Case::new(100, vec![Site::new("fra", 4), Site::new("iad", 90)]);
    let model = ModelName::new(MODEL).unwrap().id();
    case.breakers.open(&relay_of("fra"), model, NOW + ms(1));
    assert_eq!(case.exclusion("fra"), "breaker open");

    case.breakers.open(&relay_of("fra"), model, NOW);
    assert_eq!(case.chosen(), "fra");
}

#[test]
fn a_breaker_of_one_model_does_not_concern_another() {
    let mut case = Case::new(100, vec![Site::new("fra", 4), Site::new("iad", 90)]);
    let other = ModelName::new("other").unwrap().id();

    case.breakers.open(&relay_of("fra"), other, NOW + ms(1));

    assert_eq!(case.chosen(), "fra");
}

#[test]
fn rules_of_policy_and_request_both_hold() {
    let region = |name: &str| SiteRules {
        regions: Some([Region::new(name).unwrap()].into()),
        labels: Vec::new(),
    };
    let sites = || {
        vec![
            Site::new("fra", 4).region("eu"),
            Site::new("iad", 90).region("us"),
        ]
    };
    let mut by_policy = Case::new(100, sites());
    by_policy.policy.rules = region("us");
    let mut by_both = Case::new(100, sites());
    by_both.policy.rules = region("us");
    by_both.rules = vec![region("eu")];

    assert_eq!(by_policy.chosen(), "iad");
    assert_eq!(by_policy.exclusion("fra"), "region not allowed");
    assert_eq!(by_both.decide(1).outcome, Err(Refusal::Unavailable));
}

#[test]
fn a_refusal_says_whether_waiting_could_help() {
    let refusal = |sites| Case::new(100, sites).decide(1).outcome.unwrap_err();

    assert_eq!(refusal(vec![]), Refusal::Unavailable);
    assert_eq!(
        refusal(vec![Site::new("fra", 4).serves("other")]),
        Refusal::UnknownModel
    );
    assert_eq!(
        refusal(vec![Site::new("fra", 4).not_ready()]),
        Refusal::Unavailable
    );
    assert_eq!(
        refusal(vec![
            Site::new("fra", 4).context(50),
            Site::new("iad", 90).context(80)
        ]),
        Refusal::TooLong { limit: 80 }
    );
    assert_eq!(
        refusal(vec![
            Site::new("fra", 4).context(50),
            Site::new("iad", 90).dead()
        ]),
        Refusal::Unavailable
    );
}

#[test]
fn a_site_whose_card_gives_other_tokens_has_its_own_depth() {
    let other = crate::view::CardDigest([2; 32]);
    let mut case = Case::new(
        1000,
        vec![
            Site::new("fra", 4).warm(10),
            Site::new("par", 4).warm(10).card(other),
        ],
    );
    let shifted: Arc<[u32]> = (500..1500).collect();
    case.chains.insert(other, shifted);

    assert_eq!(case.score("fra").overlap.depth, 10);
    assert_eq!(case.score("par").overlap.depth, 0);
}

#[test]
fn the_clients_own_tokens_hold_for_every_card() {
    let mut case = Case::new(
        0,
        vec![
            Site::new("fra", 4).warm(10),
            Site::new("par", 4).warm(20).without_card(),
        ],
    );
    case.chains = Chains::of_every_site(tokens(1000), HashSeed::new(None, None));

    assert_eq!(case.score("fra").overlap.depth, 10);
    assert_eq!(case.score("par").overlap.depth, 20);
}

#[test]
fn a_session_keeps_to_one_relay_of_a_site() {
    let sites = || vec![Site::new("fra", 4).relays(3)];
    let relay = |session: u64, seed| {
        let mut case = Case::new(100, sites());
        case.affinity = Some(session);
        case.decide(seed).outcome.unwrap().relay
    };

    let relays: std::collections::BTreeSet<RelayId> = (0..50).map(|s| relay(s, s)).collect();
    assert_eq!(relays.len(), 3);
    assert!((0..20).all(|seed| relay(7, seed) == relay(7, 0)));
}

#[test]
fn a_prompts_beginning_keeps_to_one_relay_where_no_session_is_known() {
    let relay = |first: u32| {
        let mut case = Case::new(0, vec![Site::new("fra", 4).relays(3)]);
        let prompt: Vec<u32> = (first..first + 100).collect();
        case.chains.insert(CARD, prompt.into());
        case.decide(1).outcome.unwrap().relay
    };

    let relays: std::collections::BTreeSet<RelayId> = (0..50).map(|n| relay(n * 1000)).collect();
    assert_eq!(relays.len(), 3);
    assert_eq!(relay(5000), relay(5000));
}

#[test]
fn a_relay_with_more_than_its_share_is_left_by_its_sessions() {
    let mut case = Case::new(100, vec![Site::new("fra", 4).relays(2)]);
    case.affinity = Some(7);
    let model = ModelName::new(MODEL).unwrap().id();
    let home = case.decide(1).outcome.unwrap().relay;
    case.inflight.open(&home, 1);

    let mut sent = 0;
    while case.decide(1).outcome.unwrap().relay == home {
        case.inflight.lane(&home).unwrap().begin(model, 0);
        sent += 1;
        assert!(sent < 50, "it is never left");
    }

    assert!(sent > 4, "{sent}");
}

#[test]
fn a_relay_that_was_tried_or_does_not_serve_the_model_is_passed_over() {
    let id = |name| RelayId::new(name).unwrap();
    let mut case = Case::new(100, vec![Site::new("fra", 4).relays(2).unserved(1)]);

    assert_eq!(case.decide(1).outcome.unwrap().relay, id("fra-1"));
    case.exclude_relays = vec![id("fra-1")];
    assert_eq!(case.exclusion("fra"), "already tried");
}

#[test]
fn a_decision_explains_itself_in_one_line() {
    let case = Case::new(
        1000,
        vec![
            Site::new("fra", 4).warm(10).stale(0),
            Site::new("iad", 90),
            Site::new("icn", 239).dead(),
        ],
    );

    assert_eq!(
        case.decide(1).to_string(),
        "fra via fra-1, cheapest: \
         fra 20.8 ms (rtt 4.0 + upload 0.0 + queue 0.0 + prefill 16.8), \
         overlap 160 stale of 1000 tokens; \
         iad 110.0 ms (rtt 90.0 + upload 0.0 + queue 0.0 + prefill 20.0), \
         overlap 0 of 1000 tokens; \
         icn excluded, not connected"
    );
}

#[test]
fn labels_of_a_site_decide_about_rules() {
    let mut case = Case::new(
        100,
        vec![
            Site::new("fra", 4).labels(Labels::from_pairs([("country", "de")]).unwrap()),
            Site::new("par", 4),
        ],
    );
    case.policy.rules.labels = vec!["country=de".parse().unwrap()];

    assert_eq!(case.chosen(), "fra");
    assert_eq!(case.exclusion("par"), "label not country=de");
}

#[test]
fn of_two_sites_with_one_id_the_view_keeps_the_last() {
    let view = GridView::new(vec![
        Site::new("fra", 4).build(),
        Site::new("iad", 4).build(),
        Site::new("fra", 9).build(),
    ]);

    assert_eq!(view.sites().len(), 2);
    let fra = view.site(&SiteId::new("fra").unwrap()).unwrap();
    assert_eq!(fra.relays[0].rtt, Duration::from_millis(9));
}

#[test]
fn block_size_of_the_tests_is_that_of_the_pools() {
    assert_eq!(NonZeroU32::new(16).unwrap(), BLOCK);
}
