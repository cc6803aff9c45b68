//! Decisions go by a view's plan. Here sites are weighed once more by the view itself, one by
//! one and as it is said on paper, and nothing may differ.

use core::time::Duration;

use proptest::prelude::*;

use self::sites::site;
use super::super::depth::{best_after, overlap_tokens};
use super::super::inflight::OwnLoad;
use super::super::score::upload_ms;
use super::*;
use crate::eviction::survival;
use crate::filter::{MixKey, confirm};
use crate::prediction::{PredictionConfig, Predictions};
use crate::replication::ReplicaState;
use crate::view::plan::Path;
use crate::view::{ModelView, PoolView, RelayView, SiteView};

mod sites;

const PROMPT: u32 = 800;

/// What a decision is made of, and what it has to come to.
struct Walk<'a>(&'a Case);

impl Walk<'_> {
    fn verdict(&self, site: &SiteView) -> Verdict {
        match self.way(site) {
            Ok((model, relay)) => Verdict::Scored(self.score(site, model, relay)),
            Err(exclusion) => Verdict::Excluded(exclusion),
        }
    }

    fn aside(&self, site: &SiteView) -> bool {
        self.0.aside.contains(&site.site)
    }

    fn length(&self, model: &ModelView) -> Option<u32> {
        let card = model.card.as_ref().map(|card| &card.digest);
        self.0.chains.prompt_tokens(card)
    }

    fn way<'v>(&self, site: &'v SiteView) -> Result<(&'v ModelView, usize), Exclusion> {
        let case = self.0;
        let asked = ModelName::new(MODEL).unwrap().id();
        let model = site.model(asked).ok_or(Exclusion::NotServed)?;
        for rules in core::iter::once(&case.policy.rules).chain(&case.rules) {
            let check = rules.check(site.region.as_ref(), &site.labels);
            check.map_err(Exclusion::Forbidden)?;
        }
        let limit = model.card.as_ref().and_then(|card| card.context_length);
        if let (Some(prompt_tokens), Some(limit)) = (self.length(model), limit)
            && !self.aside(site)
            && prompt_tokens >= limit.get()
        {
            let limit = limit.get();
            return Err(Exclusion::ContextLength {
                prompt_tokens,
                limit,
            });
        }
        if case.exclude.contains(&site.site) {
            return Err(Exclusion::Tried);
        }
        if !site.alive {
            return Err(Exclusion::NotConnected);
        }
        if !model.ready {
            return Err(Exclusion::NotReady);
        }
        let fit = |relay: &RelayView| match relay {
            _ if !relay.connected => Err((0, Exclusion::NotConnected)),
            _ if relay.draining => Err((1, Exclusion::Draining)),
            _ if !relay.serves.contains(&model.id) => Err((2, Exclusion::NotReady)),
            _ if case.exclude_relays.contains(&relay.id) => Err((4, Exclusion::Tried)),
            _ if !case.breakers.allows(&relay.id, model.id, NOW) => {
                Err((3, Exclusion::BreakerOpen))
            }
            _ => Ok(()),
        };
        let relays = site.relays.iter().enumerate();
        let usable: Vec<usize> = relays
            .filter(|(_, relay)| fit(relay).is_ok())
            .map(|(place, _)| place)
            .collect();
        let open = |at: usize| {
            self.0
                .inflight
                .lane(&site.relays[at].id)
                .map_or(0, |it| it.open_requests())
        };
        let all: u32 = usable.iter().map(|at| open(*at)).sum();
        let share = 4 + all * 5 / (4 * u32::try_from(usable.len().max(1)).unwrap());
        let home = case.affinity.unwrap();
        let chosen = usable.into_iter().max_by_key(|at| {
            let id = site.relays[*at].id.as_str();
            (open(*at) <= share, rendezvous(home, id))
        });
        let obstacles = site.relays.iter().filter_map(|relay| fit(relay).err());
        let passing = obstacles.max_by_key(|(passing, _)| *passing);
        chosen
            .map(|relay| (model, relay))
            .ok_or_else(|| passing.unwrap().1)
    }

    fn score(&self, site: &SiteView, model: &ModelView, relay: usize) -> Score {
        let policy = &self.0.policy;
        let load = site.load.model(model.id);
        let engines = load.and_then(|load| load.engines);
        let gateway = load.and_then(|load| load.gateway);
        let old = |at| NOW.saturating_since(at) > policy.load_stale_after;
        let told = engines.map(|sum| sum.foreign).and_then(|foreign| {
            let requests = foreign
                .waiting
                .map(|it| f64::from(it) * policy.assumed_request_tokens);
            foreign
                .waiting_tokens
                .map(|tokens| tokens as f64)
                .or(requests)
        });
        let load_known = told.is_some()
            && engines.is_some_and(|sum| !old(sum.at))
            && gateway.is_some_and(|sum| !old(sum.at));
        let ms_per_token = policy.prior_prefill_ms_per_token;
        let reported = load.map_or(0.0, |load| load.relayed_tokens() as f64) + told.unwrap_or(0.0);
        let reported = (reported * ms_per_token).max(if load_known {
            0.0
        } else {
            policy.unknown_queue_ms
        });
        let own = self.own(site, model);
        let queue = reported + own.queued_tokens as f64 * ms_per_token;
        let in_flight = gateway.map_or(0, |sum| sum.load.in_flight);
        let places = engines.and_then(|sum| sum.max_requests).map(f64::from);
        let there =
            f64::from(engines.map_or(0, |sum| sum.foreign.requests) + in_flight + own.requests);
        let serving = gateway
            .and_then(|sum| sum.load.serving_ms)
            .map_or(policy.prior_serving_ms, f64::from);
        let place = places.filter(|places| there >= *places);
        let place = place.map_or(0.0, |places| (there - places + 1.0) * serving / places);
        let path = Path::to(&site.relays[relay]);
        let upload = upload_ms(self.0.body_bytes, &path);
        let queue = queue.max(place);
        let wait = Duration::from_secs_f64((path.rtt_ms / 2.0 + upload + queue) / 1000.0);
        let overlap = best_after(&self.overlaps(site, model), || wait);
        let length = self
            .length(model)
            .or_else(|| self.0.chains.longest())
            .unwrap();
        let uncached = length.saturating_sub(overlap.expected_tokens);
        let cost = Cost {
            rtt_ms: path.rtt_ms,
            upload_ms: upload,
            queue_ms: queue,
            prefill_ms: f64::from(uncached) * ms_per_token,
        };
        let kv_use = engines.and_then(|sum| sum.kv_use).map_or(0.5, f64::from);
        let used = places.map_or(kv_use, |places| kv_use.max(there / places));
        let age_ms = gateway.map_or(0.0, |sum| {
            NOW.saturating_since(sum.at).as_secs_f64() * 1000.0
        });
        let arrivals = gateway.map_or(0.0, |sum| f64::from(sum.load.arrivals_per_s));
        Score {
            relay,
            cost,
            total_ms: cost.total_ms(&policy.weights),
            fixed_ms: Cost {
                queue_ms: 0.0,
                ..cost
            }
            .total_ms(&policy.weights),
            overlap,
            prompt_tokens: length,
            uncached_tokens: uncached,
            load_known,
            spare: (1.0 - used.clamp(0.0, 1.0)).max(0.01),
            growth_ms: arrivals * (age_ms + path.rtt_ms / 2.0) / 1000.0 * cost.prefill_ms,
            aside: self.aside(site),
        }
    }

    fn own(&self, site: &SiteView, model: &ModelView) -> OwnLoad {
        let mut own = OwnLoad::default();
        for relay in &site.relays {
            if let Some(lane) = self.0.inflight.lane(&relay.id) {
                let above = lane.above(model.id, site.load.echo(&relay.id));
                own.requests += above.requests;
                own.queued_tokens += above.queued_tokens;
            }
        }
        own
    }

    fn overlaps(&self, site: &SiteView, model: &ModelView) -> Vec<Overlap> {
        let known = |pool: &PoolView| self.overlap(pool, model);
        let pools = site.pools_of(model.id).filter(|_| !self.aside(site));
        let mut all: Vec<Overlap> = pools.filter_map(known).collect();
        if all.is_empty() {
            all.push(Overlap::default());
        }
        let card = model.card.as_ref().filter(|_| !self.aside(site));
        let (Some(predicted), Some(card)) = (&self.0.predicted, card) else {
            return all;
        };
        let place = predicted.place(&site.site, model.id);
        let best = all.iter_mut().max_by_key(|it| it.expected_tokens).unwrap();
        let chain = sent_beyond(site, model.id, &self.0.chains, 0);
        assert_eq!(card.digest, CARD);
        let depth = predicted.extend(&place, chain, best.tokens / 16);
        let tokens = overlap_tokens(depth, PROMPT, 16);
        if tokens > best.tokens {
            best.predicted = tokens;
            best.eviction_age = None;
            best.expected_tokens += tokens - best.tokens;
        }
        all
    }

    fn overlap(&self, pool: &PoolView, model: &ModelView) -> Option<Overlap> {
        let length = self.length(model)?;
        let hashed = crate::block::chain_hashes(
            &tokens(PROMPT),
            BLOCK,
            pool.format,
            HashSeed::new(None, None),
        );
        let chain = pool.naming.names(&hashed);
        let target = pool.replica.filter.as_ref()?.target(pool.closed);
        // Pools have no holes here: with some, only the deepest is confirmed block by block.
        let depth = confirm(target, &chain, u32::MAX);
        let tokens = overlap_tokens(depth, length, 16);
        let stale = matches!(pool.replica.state, ReplicaState::Stale { .. });
        let age = pool.replica.state.stale_for(NOW);
        let left = match pool.eviction_age {
            _ if !stale => 1.0,
            Some(limit) => survival(limit, age),
            None => (-age.as_secs_f64() / self.0.policy.stale_half_life.as_secs_f64()).exp2(),
        };
        let share = self.0.policy.tiers.of(pool.tier) * left;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of it"
        )]
        let expected_tokens = (f64::from(tokens) * share) as u32;
        Some(Overlap {
            pool: Some(pool.id),
            depth,
            tokens,
            predicted: 0,
            expected_tokens,
            eviction_age: pool.eviction_age,
            stale,
        })
    }
}

fn numbers() -> impl Strategy<Value = ([u32; 4], u32)> {
    let numbers = (0_u32..200, 0_u32..60, 0_u32..20_000, 0_u32..30);
    (numbers, any::<u32>()).prop_map(|((a, b, c, d), traits)| ([a, b, c, d], traits))
}

/// A case of these sites, with some of all that a request and an edge may bring along.
fn case(sites: &[([u32; 4], u32)], traits: u32, session: u64) -> Case {
    let names = |at: usize| format!("s{at}");
    let mut case = Case::new(PROMPT, Vec::new());
    let built = sites
        .iter()
        .enumerate()
        .map(|(at, told)| site(&names(at), *told));
    case.view = GridView::new(built.collect());
    case.affinity = Some(session);
    case.body_bytes = 400_000;
    let (first, last) = (names(0), names(sites.len() - 1));
    let has = |bit: u32| traits >> bit & 1 == 1;
    if has(0) {
        case.exclude.push(SiteId::new(&last).unwrap());
    }
    if has(1) {
        case.exclude_relays.push(relay_of(&first));
    }
    if has(2) {
        case.aside.push(SiteId::new(&first).unwrap());
    }
    if has(3) {
        let model = case.view.sites()[0].models[0].id;
        case.breakers.open(&relay_of(&last), model, NOW + ms(1));
        case.breakers.open(&relay_of(&first), model, NOW + ms(1));
    }
    if has(4) && has(5) {
        case.rules.push(SiteRules {
            regions: Some([Region::new("eu").unwrap()].into()),
            labels: Vec::new(),
        });
    }
    case
}

proptest! {
    #[test]
    fn a_site_is_weighed_as_by_walking_through_the_view(
        sites in prop::collection::vec(numbers(), 1..7),
        traits: u32,
        session: u64,
        sent in prop::collection::vec((0_usize..7, 0_usize..50), 0..3),
    ) {
        let mut case = case(&sites, traits, session);
        let asked = ModelName::new(MODEL).unwrap().id();
        case.chains.hash_for(&case.view, asked);
        let mut notes = Predictions::new(PredictionConfig::default(), MixKey::from_bytes(&[3; 32]));
        for (at, from) in sent {
            let Some(site) = case.view.sites().get(at) else { continue };
            let relay = &site.relays[0].id;
            let model = site.model_id(asked);
            case.inflight.open(relay, 1);
            let lane = case.inflight.lane(relay).unwrap();
            (0..at + 2).for_each(|_| { lane.begin(model, 300); });
            let place = notes.predicted().place(&site.site, model);
            let blocks = sent_beyond(site, model, &case.chains, 0);
            notes.note(&place, &blocks[from.min(blocks.len())..], NOW + ms(1));
        }
        case.predicted = Some(notes.predicted());

        let decision = case.decide(1);

        let walk = Walk(&case);
        prop_assert_eq!(decision.candidates().len(), sites.len());
        for (candidate, site) in decision.candidates().zip(case.view.sites()) {
            prop_assert_eq!(candidate.site, &site.site);
            prop_assert_eq!(candidate.verdict, &walk.verdict(site));
            prop_assert_eq!(decision.candidate(&site.site), Some(candidate));
        }
    }
}
