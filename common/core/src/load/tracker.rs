//! Merges relays' reports into a site's load.

use core::num::NonZeroU32;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use thiserror::Error;

use super::{
    EngineLoad, EngineSum, Extent, ForeignLoad, GatewayLoad, GatewaySum, LoadSample, ModelLoad,
    RelayEcho, SiteLoad,
};
use crate::id::{ModelId, RelayId};
use crate::time::Instant;

/// Gateway reports kept per relay: with one every 100 ms, 6 s back, which is further than an
/// engine scrape that still counts.
const HISTORY: usize = 64;
/// Most engine parts or models in one report.
const PARTS: usize = 1024;
/// How long it counts that engines had begun with prompts: after it others wait.
const BEGUN_COUNTS: Duration = Duration::from_secs(2);
/// An engine part that no report has renewed for this long is forgotten: a worker that is gone
/// must not make the rest count as unknown for longer than that.
const ENGINE_FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// How much fresher a frontend's word may be than its ranks' own before it counts instead.
const RANKS_PREFERRED_FOR: Duration = Duration::from_secs(2);

/// Why a report was refused. The relay is at fault; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// The report has more parts than a site may have.
    #[error("a load report of {engines} engines and {models} models, of 1024 each at most")]
    TooManyParts {
        /// Engine parts in the report.
        engines: usize,
        /// Gateway parts in the report.
        models: usize,
    },
}

/// Keeps the parts of one site's load.
#[derive(Clone, Debug, Default)]
pub struct LoadTracker {
    relays: BTreeMap<RelayId, RelayPart>,
    engines: BTreeMap<EngineKey, EngineLoad>,
}

/// Model, worker and rank.
type EngineKey = (ModelId, u64, u32);

#[derive(Clone, Debug)]
struct RelayPart {
    echo: u64,
    /// Reports in the order they came, the newest last; never empty.
    reports: VecDeque<(Instant, Vec<(ModelId, GatewayLoad)>)>,
}

impl LoadTracker {
    /// Takes in a relay's report.
    pub fn handle_sample(
        &mut self,
        relay: &RelayId,
        sample: LoadSample,
        now: Instant,
    ) -> Result<(), LoadError> {
        if sample.engines.len() > PARTS || sample.gateway.len() > PARTS {
            return Err(LoadError::TooManyParts {
                engines: sample.engines.len(),
                models: sample.gateway.len(),
            });
        }
        self.merge_engines(sample.engines, now);
        let part = self.relays.entry(relay.clone()).or_insert(RelayPart {
            echo: 0,
            reports: VecDeque::new(),
        });
        part.echo = sample.echo;
        if part.reports.len() == HISTORY {
            part.reports.pop_front();
        }
        part.reports.push_back((sample.at, sample.gateway));
        Ok(())
    }

    /// Forgets a relay's gateway part: its connection is gone, and with it what it counted.
    pub fn handle_relay_gone(&mut self, relay: &RelayId) {
        self.relays.remove(relay);
    }

    /// The merged load.
    pub fn snapshot(&self) -> SiteLoad {
        let models: BTreeSet<ModelId> = self
            .engines
            .keys()
            .map(|(model, ..)| *model)
            .chain(self.relays.values().flat_map(RelayPart::models))
            .collect();
        SiteLoad {
            relays: self.relays.iter().map(RelayPart::echo_of).collect(),
            models: models.into_iter().map(|model| self.model(model)).collect(),
        }
    }

    fn merge_engines(&mut self, engines: Vec<EngineLoad>, now: Instant) {
        self.engines
            .retain(|_, part| now.saturating_since(part.at) <= ENGINE_FORGOTTEN_AFTER);
        for part in engines {
            let key = (part.model, part.worker, part.rank);
            let known = self.engines.get(&key);
            let stale = known.map(|known| newness(known) > newness(&part));
            // A site's relays scrape the same engines: past twice one report's limit, parts
            // of new engines are dropped until old ones are forgotten.
            if stale == Some(false) || (stale.is_none() && self.engines.len() < 2 * PARTS) {
                self.engines.insert(key, part);
            }
        }
    }

    fn model(&self, model: ModelId) -> ModelLoad {
        let range = (model, 0, 0)..=(model, u64::MAX, u32::MAX);
        let engines: Vec<&EngineLoad> = self.engines.range(range).map(|(_, part)| part).collect();
        let gateway = self.sum_gateways(model, None);
        let now = gateway.as_ref().map(|sum| sum.at);
        ModelLoad {
            model,
            engines: self.sum_engines(model, &engines, now),
            gateway,
        }
    }

    /// The engine parts; `now` is when relays reported last.
    fn sum_engines(
        &self,
        model: ModelId,
        parts: &[&EngineLoad],
        now: Option<Instant>,
    ) -> Option<EngineSum> {
        let parts = chosen(parts);
        let parts = parts.as_slice();
        let at = parts.iter().map(|part| part.at).min()?;
        let scraped = parts.iter().map(|part| part.at).max()?;
        let running = sum(parts, |part| Some(part.running.into()));
        let waiting = sum(parts, |part| part.waiting.map(u64::from));
        let (running, waiting) = (running.map_or(0, small), waiting.map(small));
        let tokens = sum(parts, |part| part.waiting_tokens);
        let gateway = self
            .sum_gateways(model, Some(scraped))
            .map_or_else(GatewayLoad::default, |sum| sum.load);
        let requests = running.saturating_add(waiting.unwrap_or(0));
        let foreign = requests.saturating_sub(gateway.in_flight);
        // Nothing of the prompts waits where no request does, if that is all that is told. But
        // some that no engine has may wait before them, in the site's own router.
        let waits = tokens.or(waiting.filter(|waiting| *waiting == 0).map(u64::from));
        let seen = waits.filter(|_| requests >= gateway.in_flight);
        let recent = now.is_none_or(|now| now.saturating_since(scraped) <= BEGUN_COUNTS);
        let begun = seen.filter(|_| recent).map(|waits| {
            let begun = gateway.queued_tokens.saturating_sub(waits);
            // What has left the queue since is not in it any more.
            begun.min(self.least_queued(model, scraped))
        });
        Some(EngineSum {
            ranks: ranks(parts),
            at,
            running,
            waiting,
            waiting_tokens: tokens,
            max_requests: capacity(parts, |part| part.max_requests.map(u64::from)).map(small),
            kv_use: overall(parts, |part| part.kv_use),
            kv_cached: overall(parts, |part| part.kv_cached),
            kv_tokens: capacity(parts, |part| part.kv_tokens),
            begun_tokens: begun.unwrap_or(0),
            foreign: ForeignLoad {
                requests: foreign,
                waiting: waiting.map(|waiting| foreign.min(waiting)),
                waiting_tokens: tokens.map(|all| all.saturating_sub(gateway.queued_prompt_tokens)),
            },
        })
    }

    /// The least that was queued at each relay at any time since, together.
    fn least_queued(&self, model: ModelId, since: Instant) -> u64 {
        let relays = self.relays.values();
        relays.fold(0, |sum, relay| {
            sum.saturating_add(relay.least_queued(model, since))
        })
    }

    /// The gateway parts now, or as they were at a time.
    fn sum_gateways(&self, model: ModelId, then: Option<Instant>) -> Option<GatewaySum> {
        let parts: Vec<(Instant, GatewayLoad)> = self
            .relays
            .values()
            .filter_map(|relay| relay.load_of(model, then))
            .collect();
        let at = parts.iter().map(|(at, _)| *at).min()?;
        let mut load = GatewayLoad::default();
        for (_, part) in &parts {
            load.in_flight = load.in_flight.saturating_add(part.in_flight);
            load.queued_tokens = load.queued_tokens.saturating_add(part.queued_tokens);
            load.queued_prompt_tokens = load
                .queued_prompt_tokens
                .saturating_add(part.queued_prompt_tokens);
            load.arrivals_per_s += part.arrivals_per_s.max(0.0);
        }
        let measured = |value: fn(&GatewayLoad) -> Option<f32>| {
            let told = parts.iter().filter_map(|(_, part)| value(part));
            mean(told.filter(|value| *value > 0.0))
        };
        load.prefill_ms_per_token = measured(|part| part.prefill_ms_per_token);
        load.serving_ms = measured(|part| part.serving_ms);
        Some(GatewaySum { load, at })
    }
}

impl RelayPart {
    fn models(&self) -> impl Iterator<Item = ModelId> {
        let newest = self.reports.back();
        newest
            .into_iter()
            .flat_map(|(_, gateway)| gateway.iter().map(|(model, _)| *model))
    }

    fn echo_of((relay, part): (&RelayId, &Self)) -> RelayEcho {
        RelayEcho {
            relay: relay.clone(),
            at: part.reports.back().map_or(Instant::ZERO, |(at, _)| *at),
            echo: part.echo,
        }
    }

    fn least_queued(&self, model: ModelId, since: Instant) -> u64 {
        let reports = self.reports.iter().filter(|(at, _)| *at >= since);
        let queued = reports.map(|(_, gateway)| listed(gateway, model).queued_tokens);
        // Where nothing was told since, what was told last still holds.
        queued.min().unwrap_or(u64::MAX)
    }

    /// The newest report, or the one nearest to `then`.
    fn load_of(&self, model: ModelId, then: Option<Instant>) -> Option<(Instant, GatewayLoad)> {
        let (at, gateway) = match then {
            None => self.reports.back(),
            Some(then) => self
                .reports
                .iter()
                .min_by_key(|(at, _)| at.saturating_since(then) + then.saturating_since(*at)),
        }?;
        Some((*at, listed(gateway, model)))
    }
}

/// A model's part of a report. A relay that reports but does not list the model has none of it
/// in flight.
fn listed(gateway: &[(ModelId, GatewayLoad)], model: ModelId) -> GatewayLoad {
    let listed = gateway.iter().find(|(listed, _)| *listed == model);
    listed.map_or_else(GatewayLoad::default, |(_, load)| *load)
}

/// Two relays' word on one scrape may differ in what they could read; whose comes last must
/// not decide.
fn newness(part: &EngineLoad) -> impl Ord {
    let share = |share: Option<f32>| share.map(f32::to_bits);
    (
        (part.at, part.running, part.waiting, part.waiting_tokens),
        (share(part.kv_use), share(part.kv_cached), part.kv_tokens),
        (part.extent, part.max_requests),
    )
}

/// The ranks' own parts, or those that others tell of all of them.
fn chosen<'a>(parts: &[&'a EngineLoad]) -> Vec<&'a EngineLoad> {
    let is_rank = |part: &&&EngineLoad| part.extent == Extent::Rank;
    let (ranks, sites): (Vec<_>, Vec<_>) = parts.iter().partition(is_rank);
    let newest = |parts: &[&EngineLoad]| parts.iter().map(|part| part.at).max();
    match (newest(&ranks), newest(&sites)) {
        (Some(own), Some(told)) if told.saturating_since(own) > RANKS_PREFERRED_FOR => sites,
        (Some(_), _) => ranks,
        (None, _) => sites,
    }
}

/// How many ranks parts of one extent are of.
fn ranks(parts: &[&EngineLoad]) -> Option<u32> {
    let of = |part: &&EngineLoad| match part.extent {
        Extent::Rank => None,
        Extent::Site { ranks } => Some(ranks.map(NonZeroU32::get)),
    };
    let told: Vec<_> = parts.iter().filter_map(of).collect();
    match told.is_empty() {
        true => u32::try_from(parts.len()).ok(),
        false => told.into_iter().flatten().max(),
    }
}

/// What ranks have room for: their sum, unless one doesn't tell. Who tells of all ranks tells
/// the whole of it, so of several such the largest counts.
fn capacity(parts: &[&EngineLoad], value: impl Fn(&EngineLoad) -> Option<u64>) -> Option<u64> {
    match parts.first()?.extent {
        Extent::Rank => sum(parts, value),
        Extent::Site { .. } => parts.iter().filter_map(|part| value(part)).max(),
    }
}

/// The sum over all parts; `None` unless each has it.
fn sum(parts: &[&EngineLoad], value: impl Fn(&EngineLoad) -> Option<u64>) -> Option<u64> {
    let mut values = parts.iter().map(|part| value(part));
    values.try_fold(0_u64, |sum, value| Some(sum.saturating_add(value?)))
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A share of all caches whose ranks tell it, by their sizes if all of these are known.
fn overall(parts: &[&EngineLoad], share: impl Fn(&EngineLoad) -> Option<f32>) -> Option<f32> {
    let told = parts.iter().filter_map(|part| Some((share(part)?, part)));
    let told: Vec<_> = told.filter(|(share, _)| share.is_finite()).collect();
    let sizes = told.iter().map(|(_, part)| part.kv_tokens);
    let Some(sizes) = sizes.collect::<Option<Vec<u64>>>() else {
        return mean(told.iter().map(|(share, _)| *share));
    };
    let size = |size: u64| {
        #[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
        let size = size as f64;
        size
    };
    let all: f64 = sizes.iter().map(|it| size(*it)).sum();
    let held = told
        .iter()
        .zip(&sizes)
        .map(|((share, _), of)| f64::from(*share) * size(*of));
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a share needs no more digits"
    )]
    let share = (held.sum::<f64>() / all) as f32;
    (all > 0.0).then(|| share.clamp(0.0, 1.0))
}

/// The mean of the finite numbers among `values`.
fn mean(values: impl Iterator<Item = f32>) -> Option<f32> {
    let (sum, count) = values
        .filter(|value| value.is_finite())
        .fold((0.0_f32, 0.0_f32), |(sum, count), value| {
            (sum + value, count + 1.0)
        });
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests;
