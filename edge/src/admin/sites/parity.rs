//! What the page says of parity: whether sites see prompts as this edge does, and whether
//! their pools match.

use kvgrid_core::parity::{Accord, Agreement, Cache, Entry, Kind};
use kvgrid_core::view::{ModelView, PoolView, SiteView};
use kvgrid_core::{Instant, SiteId};
use serde::Serialize;

use super::age_ms;
use crate::route::{Router, unmatched};

/// One kind of request for a model.
#[derive(Serialize)]
pub(super) struct KindParity {
    kind: String,
    set_aside: bool,
    age_ms: f64,
    tokens: Tokens,
    caches: Vec<OfSource>,
}

#[derive(Serialize)]
struct Tokens {
    state: &'static str,
    compared: u64,
    different: u64,
    expected: Option<u32>,
    told: Option<u32>,
    same_ids: Option<bool>,
}

#[derive(Serialize)]
struct OfSource {
    source: Option<String>,
    state: &'static str,
    compared: u64,
    different: u64,
    overlap_tokens: u64,
    cached_tokens: u64,
}

/// How a pool matches what is sent to its site.
#[derive(Serialize)]
pub(super) struct PoolMatching {
    requests: u64,
    matched: u64,
    missed: u32,
    warning: Option<String>,
}

/// What is known of a model's parity at a site; of a card that it has no more, nothing.
pub(super) fn kinds(
    model: &ModelView,
    site: &SiteId,
    router: &Router,
    now: Instant,
) -> Vec<KindParity> {
    let card = model.card.as_ref().map(|card| card.digest);
    let of_card = |(_, entry): &(Kind, &Entry)| Some(entry.card) == card;
    router.parity(|parity| {
        let kinds = parity.kinds(site, model.id).filter(of_card);
        kinds.map(|known| KindParity::of(known, now)).collect()
    })
}

impl KindParity {
    fn of((kind, entry): (Kind, &Entry), now: Instant) -> Self {
        Self {
            kind: kind.to_string(),
            set_aside: entry.is_aside(),
            age_ms: age_ms(entry.at, now),
            tokens: Tokens {
                state: entry.tokens.accord().name(),
                compared: entry.tokens.compared(),
                different: entry.tokens.different(),
                expected: entry.last.map(|(expected, _)| expected),
                told: entry.last.map(|(_, told)| told),
                same_ids: entry.same_ids,
            },
            caches: entry.caches.iter().map(OfSource::of).collect(),
        }
    }
}

impl OfSource {
    fn of(cache: &Cache) -> Self {
        let cached: &Agreement = &cache.cached;
        let state: Accord = cached.accord();
        Self {
            source: cache.source.as_deref().map(str::to_owned),
            state: state.name(),
            compared: cached.compared(),
            different: cached.different(),
            overlap_tokens: cache.overlap_tokens,
            cached_tokens: cache.cached_tokens,
        }
    }
}

/// How a pool matches; nothing if no request of two blocks was sent to its site.
pub(super) fn matching(pool: &PoolView, site: &SiteView, router: &Router) -> Option<PoolMatching> {
    router.parity(|parity| {
        let matching = parity.pool(&site.site, pool.model, pool.id)?;
        let warning = matching.is_unmatched();
        Some(PoolMatching {
            requests: matching.requests(),
            matched: matching.matched(),
            missed: matching.missed().requests,
            warning: warning.then(|| unmatched(pool, matching.missed())),
        })
    })
}
