//! Joins what metrics pages, workers and pools say of the engines' load.
//!
//! Who knows requests best is asked first, and for all ranks of a model alike, so that none
//! counts twice: the workers' own steps, if every rank tells of them; else engines' pages; else
//! frontends' pages, which are of all ranks at once. What one leaves out is taken from the
//! others where they speak of the same: sizes from cards, use from `kv_metrics`, what is kept
//! for reuse from the pool. What nobody tells stays unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use kvgrid_core::event::Tier;
use kvgrid_core::load::{EngineLoad, Extent};
use kvgrid_core::replication::Completeness;
use kvgrid_core::{Instant, ModelId};

use super::approximate;
use super::engine::Page;
use crate::discovery::WorkerRank;
use crate::pools::PoolReport;
use crate::sources::dynamo_events::Usage;

/// Ranks of one model that are told one by one; of more, their sum is told.
const RANKS: usize = 128;

/// A page, whose it is, and when it was read.
pub(super) type Read = (u64, Instant, Page);

/// What there is to join.
pub(super) struct Known<'a> {
    pub(super) pages: &'a [Read],
    /// What workers say themselves, by model.
    pub(super) usage: &'a [(ModelId, &'a Usage)],
    pub(super) pools: &'a [PoolReport],
    /// Requests that each rank computes at once, where nobody tells.
    pub(super) rank_requests: Option<u32>,
}

impl Known<'_> {
    /// The load of all engines at `now`.
    pub(super) fn engines(&self, now: Instant) -> Vec<EngineLoad> {
        let pages = self.pages.iter().flat_map(|(.., page)| page.models());
        let workers = self.usage.iter().map(|(model, _)| *model);
        let models: BTreeSet<ModelId> = pages.chain(workers).collect();
        let of = |model| folded(self.of_model(model, now));
        models.into_iter().flat_map(of).collect()
    }

    fn of_model(&self, model: ModelId, now: Instant) -> Vec<EngineLoad> {
        let usage = self.usage.iter().find(|(of, _)| *of == model);
        let usage = usage.map(|(_, usage)| *usage);
        let own = usage.and_then(|usage| usage.rank_loads(model, now));
        let pages = || self.pages.iter();
        let told = || pages().flat_map(|(of, at, page)| page.rank_loads(model, (*of, *at)));
        let sites = || pages().filter_map(|(of, at, page)| page.site_load(model, (*of, *at)));
        let mut loads = own.unwrap_or_default();
        if loads.is_empty() {
            loads = told().collect();
        } else {
            let pages: BTreeMap<_, _> = told().map(|load| (name(&load), load)).collect();
            for load in &mut loads {
                fill_in(load, pages.get(&name(load)));
            }
        }
        if loads.is_empty() {
            loads = sites().collect();
        }
        for load in &mut loads {
            match load.extent {
                Extent::Rank => self.fill_in_rank(load, usage),
                Extent::Site { .. } => self.fill_in_site(load, usage),
            }
        }
        self.fill_in_cached(model, &mut loads);
        loads
    }

    fn fill_in_rank(&self, load: &mut EngineLoad, usage: Option<&Usage>) {
        let rank = usage
            .map(|usage| usage.rank(name(load)))
            .unwrap_or_default();
        let mut frontends = self.pages.iter();
        let told = frontends.find_map(|(.., page)| page.rank_requests(load.model));
        load.kv_use = load.kv_use.or(rank.kv_use);
        load.kv_tokens = load.kv_tokens.or(rank.kv_tokens);
        load.max_requests = load.max_requests.or(rank.max_requests);
        load.max_requests = load.max_requests.or(told).or(self.rank_requests);
    }

    /// Cards tell of all ranks, a frontend's page perhaps of those of its own router.
    fn fill_in_site(&self, load: &mut EngineLoad, usage: Option<&Usage>) {
        let Extent::Site { ranks } = load.extent else {
            return;
        };
        let ranks = usage.and_then(Usage::ranks).or(ranks);
        let each = self.rank_requests.zip(ranks.map(NonZeroU32::get));
        let configured = each.and_then(|(requests, ranks)| requests.checked_mul(ranks));
        load.extent = Extent::Site { ranks };
        load.kv_use = load.kv_use.or(usage.and_then(Usage::share));
        load.kv_tokens = usage.and_then(Usage::kv_tokens).or(load.kv_tokens);
        load.max_requests = usage.and_then(Usage::max_requests).or(load.max_requests);
        load.max_requests = load.max_requests.or(configured);
    }

    /// What is kept for reuse, where only the pool tells: what all ranks hold, as far as it is
    /// known whole, but for what requests hold of it. Which rank has how much doesn't matter, so
    /// each gets the same share.
    fn fill_in_cached(&self, model: ModelId, loads: &mut [EngineLoad]) {
        if loads.iter().any(|load| load.kv_cached.is_some()) {
            return;
        }
        let Some(held) = self.held_tokens(model) else {
            return;
        };
        let sizes = loads.iter().map(|load| load.kv_tokens);
        let Some(sizes) = sizes.collect::<Option<Vec<u64>>>() else {
            return;
        };
        let uses = loads.iter().map(|load| load.kv_use);
        let Some(uses) = uses.collect::<Option<Vec<f32>>>() else {
            return;
        };
        let uses = uses.into_iter().map(f64::from);
        let sized = uses.zip(sizes.into_iter().map(approximate));
        let (used, all) = match loads.first().map(|load| load.extent) {
            Some(Extent::Rank) => sized.fold((0.0, 0.0), |(used, all), (share, size)| {
                (used + share * size, all + size)
            }),
            // All tell of the same ranks.
            _ => sized.fold((0.0, 0.0), |(used, all), (share, size)| {
                (f64::max(used, share * size), f64::max(all, size))
            }),
        };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a share needs no more digits"
        )]
        let share = ((approximate(held) - used) / all) as f32;
        if share.is_finite() {
            for load in loads {
                load.kv_cached = Some(share.clamp(0.0, 1.0));
            }
        }
    }

    /// Tokens that a model's workers hold on their devices, if all of it is known.
    fn held_tokens(&self, model: ModelId) -> Option<u64> {
        let of_devices = |pool: &&PoolReport| pool.tier == Tier::Device && pool.model.id() == model;
        let mut pools = self.pools.iter().filter(of_devices);
        let (pool, others) = (pools.next()?, pools.next());
        let whole = pool.completeness == Completeness::Whole && others.is_none();
        let blocks = match pool.counts_copies {
            true => pool.stats.copies,
            false => pool.stats.held as u64,
        };
        let tokens = pool.block_size.filter(|_| whole)?.get();
        blocks.checked_mul(tokens.into())
    }
}

/// The rank that a part is of.
const fn name(load: &EngineLoad) -> WorkerRank {
    WorkerRank {
        worker: load.worker,
        rank: load.rank,
    }
}

/// Takes what a rank's page knows and its steps don't.
fn fill_in(load: &mut EngineLoad, page: Option<&EngineLoad>) {
    let Some(page) = page else { return };
    load.max_requests = load.max_requests.or(page.max_requests);
    load.kv_use = load.kv_use.or(page.kv_use);
    load.kv_cached = page.kv_cached;
    load.kv_tokens = load.kv_tokens.or(page.kv_tokens);
}

/// Many ranks as one part, so that a report stays small however large a site is.
fn folded(loads: Vec<EngineLoad>) -> Vec<EngineLoad> {
    let ranks = loads.iter().filter(|load| load.extent == Extent::Rank);
    if ranks.count() <= RANKS {
        return loads;
    }
    loads.into_iter().reduce(add).into_iter().collect()
}

/// The sum of two parts of different ranks of one model.
fn add(sum: EngineLoad, load: EngineLoad) -> EngineLoad {
    let ranks = |load: &EngineLoad| match load.extent {
        Extent::Rank => 1,
        Extent::Site { ranks } => ranks.map_or(0, NonZeroU32::get),
    };
    let both = |one: Option<u32>, other: Option<u32>| Some(one?.saturating_add(other?));
    let both_large = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
    let mixed = |of: fn(&EngineLoad) -> Option<f32>| {
        let (one, other) = (sum.kv_tokens?, load.kv_tokens?);
        let held = |share: f32, tokens| f64::from(share) * approximate(tokens);
        let both = held(of(&sum)?, one) + held(of(&load)?, other);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a share needs no more digits"
        )]
        let share = (both / (approximate(one) + approximate(other))) as f32;
        share.is_finite().then(|| share.clamp(0.0, 1.0))
    };
    EngineLoad {
        // Every relay of the site that tells the sum tells it under this name.
        worker: sum.model.0,
        rank: 0,
        extent: Extent::Site {
            ranks: NonZeroU32::new(ranks(&sum).saturating_add(ranks(&load))),
        },
        at: sum.at.min(load.at),
        running: sum.running.saturating_add(load.running),
        waiting: both(sum.waiting, load.waiting),
        waiting_tokens: both_large(sum.waiting_tokens, load.waiting_tokens),
        max_requests: both(sum.max_requests, load.max_requests),
        kv_use: mixed(|load| load.kv_use),
        kv_cached: mixed(|load| load.kv_cached),
        kv_tokens: both_large(sum.kv_tokens, load.kv_tokens),
        ..sum
    }
}

#[cfg(test)]
mod tests;
