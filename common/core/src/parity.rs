//! Whether sites see prompts as this edge does, as far as their answers tell.
//!
//! A site says in `usage` how many tokens a prompt had, and how many of them were cached. Two
//! questions follow, and they are kept apart:
//!
//! - *Tokens*: is the prompt as long as was counted here? If not, the site renders or tokenises
//!   this [`Kind`] of request otherwise, and all that its filters say of such a prompt is noise.
//!   After a few differences the kind is *set aside* at that site: it is routed there as if no
//!   tokens were known. It is compared all the same, and comes back when it agrees again.
//! - *Cached*: was as much cached as the filters said? It is told and sets nothing aside. Events
//!   that come between decision and prefill, and the site's own choice of a worker, make single
//!   answers differ; only differences that last are called so.
//!
//! Beside this stands what no count shows: a pool that gets traffic and never matches
//! ([`Matching`]).
//!
//! What was not told counts for neither side. An answer to a prompt by a card that the site has no
//! more says nothing of it. Once token ids differed, equal lengths say nothing either, until ids
//! agree. Nothing here knows why two counts differ.

use std::collections::BTreeMap;

use crate::id::{ModelId, PoolId, SiteId};
use crate::time::Instant;
use crate::view::{CardDigest, GridView, SiteView};

pub use agreement::{Accord, Agreement, AgreementConfig};
pub use entry::{Cache, Entry};
pub use forecast::{Forecast, Usage};
pub use kind::{Kind, Trait};
pub use matching::{Matching, MatchingConfig, Missed};

mod agreement;
mod entry;
mod forecast;
mod kind;
mod matching;
mod repeats;
#[cfg(test)]
mod tests;

use matching::Evidence;
use repeats::Repeats;

/// When counts are called different, and how much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityConfig {
    /// Of prompts' lengths.
    pub tokens: AgreementConfig,
    /// Of what was cached.
    pub cached: AgreementConfig,
    /// Of pools that never match.
    pub matching: MatchingConfig,
    /// Kinds of request at models of sites that are remembered; past it the one that was seen
    /// the longest ago is forgotten, and unknown again.
    pub max_entries: usize,
}

impl Default for ParityConfig {
    fn default() -> Self {
        Self {
            tokens: AgreementConfig {
                window: 8,
                differing: 3,
                agreeing: 3,
                back: 8,
            },
            cached: AgreementConfig {
                window: 32,
                differing: 16,
                agreeing: 5,
                back: 16,
            },
            matching: MatchingConfig::default(),
            max_entries: 4096,
        }
    }
}

/// What has changed by an answer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A kind is routed without tokens from now on.
    SetAside,
    /// It is routed by tokens again.
    Back,
    /// What the filters say is not what is cached, and that lasts.
    CacheDiffers,
    /// It is again.
    CacheAgrees,
    /// A pool got so many requests that should have matched, and none did.
    Unmatched(PoolId, Missed),
    /// It matches.
    Matched(PoolId),
    /// A kind that was set aside, of some site, made room for others.
    Forgotten,
    /// The site has another card than that by which the kind was set aside.
    OtherCard,
}

/// What an answer came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Whether the prompt was as long as expected, if the site says.
    pub tokens: Option<bool>,
    /// Whether as much was cached as expected, if the site says and the prompt is the same.
    pub cached: Option<bool>,
    /// What has changed by it.
    pub changes: Vec<Change>,
}

/// The pools of a model at a site.
#[derive(Debug, Default)]
struct Pools {
    pools: BTreeMap<PoolId, Matching>,
    repeats: Repeats,
}

/// All that is known of parity; the only one to change it.
#[derive(Debug)]
pub struct Parity {
    config: ParityConfig,
    entries: BTreeMap<(SiteId, ModelId, Kind), Entry>,
    pools: BTreeMap<(SiteId, ModelId), Pools>,
}

impl Parity {
    /// Nothing is known.
    pub const fn new(config: ParityConfig) -> Self {
        Self {
            config,
            entries: BTreeMap::new(),
            pools: BTreeMap::new(),
        }
    }

    /// A site, which is now as the view says, has answered a request.
    pub fn note(
        &mut self,
        forecast: &Forecast,
        usage: Usage,
        view: &GridView,
        now: Instant,
    ) -> Noted {
        let mut noted = Noted::default();
        // Answers may come long after their decisions.
        if !has_card(view, &forecast.site, forecast.model, forecast.card) {
            return noted;
        }
        if usage != Usage::default() {
            self.compare(forecast, usage, now, &mut noted);
        }
        self.note_pools(forecast, usage, (view, now), &mut noted.changes);
        noted
    }

    /// What is set aside now.
    pub fn aside(&self) -> Aside {
        let mut aside = Aside::default();
        let differing = self.entries.iter();
        let differing = differing.filter(|(_, entry)| entry.is_aside());
        for ((site, model, kind), entry) in differing {
            let sites = aside.0.entry((*model, *kind)).or_default();
            sites.push((site.clone(), entry.card));
        }
        aside
    }

    /// What is known of a model at a site, by kind.
    pub fn kinds<'a>(
        &'a self,
        site: &SiteId,
        model: ModelId,
    ) -> impl Iterator<Item = (Kind, &'a Entry)> + use<'a> {
        let least = (site.clone(), model, Kind::PLAIN);
        let most = (site.clone(), model, Kind::ALL);
        let entries = self.entries.range(least..=most);
        entries.map(|((_, _, kind), entry)| (*kind, entry))
    }

    /// How a pool matches; `None` if nothing was sent there yet.
    pub fn pool(&self, site: &SiteId, model: ModelId, pool: PoolId) -> Option<&Matching> {
        let pools = self.pools.get(&(site.clone(), model))?;
        pools.pools.get(&pool)
    }

    /// How many kinds are remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn compare(&mut self, forecast: &Forecast, usage: Usage, now: Instant, noted: &mut Noted) {
        let key = (forecast.site.clone(), forecast.model, forecast.kind);
        let is_full = self.entries.len() >= self.config.max_entries.max(1);
        if is_full && !self.entries.contains_key(&key) {
            noted.changes.extend(self.forget_oldest());
        }
        let entry = self
            .entries
            .entry(key)
            .or_insert_with(|| Entry::new(forecast.card));
        if entry.card != forecast.card {
            noted
                .changes
                .extend(entry.is_aside().then_some(Change::OtherCard));
            *entry = Entry::new(forecast.card);
        }
        entry.at = now;
        if let Some(told) = usage.prompt_tokens {
            entry.last = Some((forecast.prompt_tokens, told));
        }
        entry.same_ids = usage.same_ids.or(entry.same_ids);
        // Other ids may well be as many.
        let is_told = |agrees: &bool| !agrees || entry.same_ids != Some(false);
        if let Some(agrees) = forecast.is_same(usage).filter(is_told) {
            noted.tokens = Some(agrees);
            noted
                .changes
                .extend(match entry.tokens.note(agrees, &self.config.tokens) {
                    Some(Accord::Differs) => Some(Change::SetAside),
                    Some(Accord::Agrees) => Some(Change::Back),
                    Some(Accord::Unknown) | None => None,
                });
        }
        // Of a prompt that is another one there, overlap says nothing.
        let is_same = noted.tokens != Some(false) && entry.is_believed();
        if let Some(told) = usage.cached_tokens.filter(|_| is_same)
            && let Some(cache) = entry.cache(&forecast.source)
        {
            let agrees = cache.add(forecast, told);
            noted.cached = Some(agrees);
            noted
                .changes
                .extend(match cache.cached.note(agrees, &self.config.cached) {
                    Some(Accord::Differs) => Some(Change::CacheDiffers),
                    Some(Accord::Agrees) => Some(Change::CacheAgrees),
                    Some(Accord::Unknown) | None => None,
                });
        }
    }

    fn note_pools(
        &mut self,
        forecast: &Forecast,
        usage: Usage,
        (view, now): (&GridView, Instant),
        changes: &mut Vec<Change>,
    ) {
        let is_same = self.is_same(forecast, usage);
        let key = (forecast.site.clone(), forecast.model);
        if !self.pools.contains_key(&key) && self.pools.len() >= self.config.max_entries.max(1) {
            // More models at sites than are remembered: the first of them is watched anew.
            self.pools.pop_first();
        }
        let Pools { pools, repeats } = self.pools.entry(key).or_default();
        // As of now: the forecast may be older than a pool, or name one that is gone.
        let there = view
            .site(&forecast.site)
            .map_or(&[][..], |site| &site.pools);
        let is_there = |id: PoolId| there.iter().any(|pool| pool.id == id);
        pools.retain(|id, _| is_there(*id));
        let Some(beginning) = forecast.beginning else {
            return;
        };
        // A prompt that is another one there is no fault of the pools, and leaves no such blocks.
        let repeated = is_same && repeats.note(beginning, self.config.matching.span, now);
        let explained = forecast.pools.iter().any(|(_, tokens)| *tokens > 0);
        let cached = match usage.cached_tokens {
            Some(cached) => cached >= forecast.block_size,
            None => repeated,
        };
        let should_match = is_same && cached && !explained;
        let told = usage.cached_tokens.is_some();
        for (pool, tokens) in forecast.pools.iter().filter(|(pool, _)| is_there(*pool)) {
            let evidence = match (*tokens, should_match) {
                (1.., _) => Evidence::Match,
                (0, true) => Evidence::Miss { told },
                (0, false) => Evidence::None,
            };
            let matching = pools.entry(*pool).or_default();
            changes.extend(match matching.note(evidence, &self.config.matching, now) {
                Some(true) => Some(Change::Unmatched(*pool, matching.missed())),
                Some(false) => Some(Change::Matched(*pool)),
                None => None,
            });
        }
    }

    /// Whether the prompt may be the same one at the site, by this answer and those before it.
    fn is_same(&self, forecast: &Forecast, usage: Usage) -> bool {
        let key = (forecast.site.clone(), forecast.model, forecast.kind);
        let entry = self.entries.get(&key);
        let entry = entry.filter(|entry| entry.card == forecast.card);
        entry.is_none_or(Entry::is_believed) && forecast.is_same(usage) != Some(false)
    }

    fn forget_oldest(&mut self) -> Option<Change> {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.at);
        let key = oldest.map(|(key, _)| key.clone())?;
        let entry = self.entries.remove(&key)?;
        entry.is_aside().then_some(Change::Forgotten)
    }
}

/// Kinds that are routed without tokens, and where; immutable, a shell publishes a new one when
/// that changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aside(BTreeMap<(ModelId, Kind), Vec<(SiteId, CardDigest)>>);

impl Aside {
    /// The sites at which this kind of request is set aside. A site that has another card by
    /// now is not among them.
    pub fn sites(&self, view: &GridView, model: ModelId, kind: Kind) -> Vec<SiteId> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let sites = view.sites().iter();
        let sites = sites.filter(|site| self.has(site, model, kind));
        sites.map(|site| site.site.clone()).collect()
    }

    fn has(&self, site: &SiteView, asked: ModelId, kind: Kind) -> bool {
        let Some(model) = site.model(asked) else {
            return false;
        };
        let aside = self.0.get(&(model.id, kind)).map_or(&[][..], Vec::as_slice);
        let digest = model.card.as_ref().map(|card| card.digest);
        aside
            .iter()
            .any(|(id, of)| *id == site.site && Some(*of) == digest)
    }
}

fn has_card(view: &GridView, site: &SiteId, model: ModelId, digest: CardDigest) -> bool {
    let model = view.site(site).and_then(|site| site.model(model));
    let card = model.and_then(|model| model.card.as_ref());
    card.is_some_and(|card| card.digest == digest)
}
