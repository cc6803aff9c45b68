//! What an engine's or a frontend's metrics page says about load.
//!
//! Engines (vLLM, SGLang, TensorRT-LLM; `names` has what each calls things) tell load per rank,
//! a Dynamo frontend per model. What a page doesn't tell stays unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use kvgrid_core::load::{EngineLoad, Extent};
use kvgrid_core::{Instant, ModelId, ModelName};

use super::approximate;
use super::exposition::{Sample, samples};
use super::names::{self, Figure, Speaker};

/// Ranks and models one page may tell of; more are left out.
const PART_LIMIT: usize = 4096;

/// What one page told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page {
    /// Per rank, from an engine.
    engines: BTreeMap<(ModelId, u32), Part>,
    /// Per model, from a frontend.
    frontend: BTreeMap<ModelId, Part>,
    /// Tokens of each rank's KV cache, where the page doesn't say of which model.
    kv_tokens: BTreeMap<u32, u64>,
    /// Ranks that a frontend's router knows: kind of worker, worker, rank.
    registered: BTreeSet<(String, String, String)>,
    /// The Dynamo process whose page it is: a worker's is the worker's own name.
    pub(super) process: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Part {
    running: Option<u32>,
    waiting: Option<u32>,
    kv_use: Option<f32>,
    kv_use_old: Option<f32>,
    kv_blocks: Option<u64>,
    block_tokens: Option<u64>,
    kv_tokens: Option<u64>,
    evictable_tokens: Option<u64>,
    max_requests: Option<u32>,
}

impl Page {
    /// Reads a metrics page.
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        for sample in samples(text, |name| names::figure(name).is_some()) {
            page.take(&sample);
        }
        page
    }

    fn take(&mut self, sample: &Sample<'_>) -> Option<()> {
        let (speaker, figure) = names::figure(sample.name)?;
        match figure {
            Figure::CacheConfig => return self.take_cache_config(sample),
            Figure::Registered => return self.take_registered(sample),
            Figure::Process => {
                let id = sample.label("worker_id")?;
                self.process = u64::from_str_radix(id, 16).ok();
                return Some(());
            }
            _ => {}
        }
        let model = ModelName::new(sample.label(speaker.model_label())?)
            .ok()?
            .id();
        let part = match speaker {
            Speaker::Frontend => bounded(&mut self.frontend, model)?,
            Speaker::Engine => bounded(&mut self.engines, (model, names::rank(sample)?))?,
        };
        part.take(figure, sample.value);
        Some(())
    }

    /// vLLM tells the size of its cache by labels.
    fn take_cache_config(&mut self, sample: &Sample<'_>) -> Option<()> {
        let number = |name| sample.label(name)?.parse::<u64>().ok();
        let tokens = number("num_gpu_blocks")?.checked_mul(number("block_size")?)?;
        // An engine that has not measured its cache yet says zero.
        let tokens = Some(tokens).filter(|tokens| *tokens > 0)?;
        *bounded(&mut self.kv_tokens, names::rank(sample)?)? = tokens;
        Some(())
    }

    /// A frontend's router tells by labels which ranks it knows.
    fn take_registered(&mut self, sample: &Sample<'_>) -> Option<()> {
        let label = |name| Some(sample.label(name)?.to_owned());
        let rank = (
            label("worker_type")?,
            label("router_worker_id")?,
            label("dp_rank")?,
        );
        if sample.value > 0.0 && self.registered.len() < PART_LIMIT {
            self.registered.insert(rank);
        }
        Some(())
    }

    /// How many ranks a frontend knows, unless they may be of several models, or not all of
    /// them compute the same part of requests.
    fn ranks(&self) -> Option<NonZeroU32> {
        let mut kinds = self.registered.iter().map(|(kind, ..)| kind);
        let kind = kinds.next()?;
        let alike = self.frontend.len() == 1 && kinds.all(|other| other == kind);
        let count = alike.then_some(self.registered.len())?;
        NonZeroU32::new(u32::try_from(count).ok()?)
    }

    /// KV blocks of all ranks per model, as far as a frontend told.
    pub(super) fn kv_blocks(&self) -> impl Iterator<Item = (ModelId, u64)> {
        let ranks = self.ranks();
        let told = move |(model, part): (&ModelId, &Part)| {
            let blocks = part.kv_blocks?.checked_mul(u64::from(ranks?.get()))?;
            Some((*model, blocks))
        };
        self.frontend.iter().filter_map(told)
    }

    /// The models that it tells of.
    pub(super) fn models(&self) -> impl Iterator<Item = ModelId> {
        let engines = self.engines.keys().map(|(model, _)| *model);
        engines.chain(self.frontend.keys().copied())
    }

    /// Requests that each of a model's ranks computes at once, as far as a frontend told.
    pub(super) fn rank_requests(&self, model: ModelId) -> Option<u32> {
        self.frontend.get(&model)?.max_requests
    }

    /// What it says of a model's ranks.
    pub(super) fn rank_loads(
        &self,
        model: ModelId,
        (worker, at): (u64, Instant),
    ) -> Vec<EngineLoad> {
        let ranks = self.engines.range((model, 0)..=(model, u32::MAX));
        let load = |((_, rank), part): (&(ModelId, u32), &Part)| {
            let kv_tokens = self.kv_tokens.get(rank).copied();
            let load = part.load((model, worker, *rank), Extent::Rank, at)?;
            Some(EngineLoad {
                kv_tokens: load.kv_tokens.or(kv_tokens),
                ..load
            })
        };
        ranks.filter_map(load).collect()
    }

    /// What it says, as a frontend's, of all of a model's ranks.
    pub(super) fn site_load(
        &self,
        model: ModelId,
        (worker, at): (u64, Instant),
    ) -> Option<EngineLoad> {
        let part = self.frontend.get(&model)?;
        let ranks = self.ranks();
        let load = part.of_frontend();
        let load = load.load((model, worker, 0), Extent::Site { ranks }, at)?;
        // Sizes are told of one rank.
        let all = ranks.map(NonZeroU32::get);
        let tokens = load.kv_tokens.zip(all.map(u64::from));
        let requests = load.max_requests.zip(all);
        Some(EngineLoad {
            kv_tokens: tokens.and_then(|(tokens, all)| tokens.checked_mul(all)),
            max_requests: requests.and_then(|(requests, all)| requests.checked_mul(all)),
            ..load
        })
    }
}

impl Part {
    /// Takes a figure in. A rank of several processes is told several times, and each of them
    /// has the same requests: the largest figure counts.
    fn take(&mut self, figure: Figure, value: f64) {
        match figure {
            Figure::Running => self.running = self.running.max(small(value)),
            Figure::Waiting => self.waiting = self.waiting.max(small(value)),
            Figure::KvUse => self.kv_use = larger(self.kv_use, share(value)),
            Figure::KvUseOld => self.kv_use_old = larger(self.kv_use_old, share(value)),
            Figure::KvBlocks => self.kv_blocks = self.kv_blocks.max(positive(value)),
            Figure::BlockTokens => self.block_tokens = self.block_tokens.max(positive(value)),
            Figure::KvTokens => self.kv_tokens = self.kv_tokens.max(positive(value)),
            Figure::EvictableTokens => {
                self.evictable_tokens = self.evictable_tokens.max(count(value));
            }
            Figure::MaxRequests => {
                let requests = small(value).filter(|requests| *requests > 0);
                self.max_requests = self.max_requests.max(requests);
            }
            Figure::CacheConfig | Figure::Registered | Figure::Process => {}
        }
    }

    /// A frontend counts those that wait among those in flight; where it doesn't say how many
    /// wait, all count as running.
    fn of_frontend(self) -> Self {
        let waiting = self.waiting.unwrap_or(0);
        Self {
            running: self.running.map(|all| all.saturating_sub(waiting)),
            ..self
        }
    }

    /// A load, unless the page did not say how many run.
    fn load(
        self,
        (model, worker, rank): (ModelId, u64, u32),
        extent: Extent,
        at: Instant,
    ) -> Option<EngineLoad> {
        let blocks = self.kv_blocks.zip(self.block_tokens);
        let by_blocks = blocks.and_then(|(blocks, tokens)| blocks.checked_mul(tokens));
        let kv_tokens = self.kv_tokens.or(by_blocks).filter(|tokens| *tokens > 0);
        let cached = self.evictable_tokens.zip(kv_tokens);
        Some(EngineLoad {
            model,
            worker,
            rank,
            extent,
            at,
            running: self.running?,
            waiting: self.waiting,
            waiting_tokens: None,
            max_requests: self.max_requests,
            kv_use: self.kv_use.or(self.kv_use_old),
            kv_cached: cached
                .and_then(|(cached, all)| share(approximate(cached) / approximate(all))),
            kv_tokens,
        })
    }
}

fn bounded<K: Ord, V: Default>(parts: &mut BTreeMap<K, V>, key: K) -> Option<&mut V> {
    if parts.len() >= PART_LIMIT && !parts.contains_key(&key) {
        return None;
    }
    Some(parts.entry(key).or_default())
}

fn larger(known: Option<f32>, told: Option<f32>) -> Option<f32> {
    match (known, told) {
        (Some(known), Some(told)) => Some(known.max(told)),
        (known, told) => known.or(told),
    }
}

/// Nothing has fewer than none: what claims that is not known.
fn count(value: f64) -> Option<u64> {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float to an integer saturates"
    )]
    let count = value as u64;
    (value >= 0.0).then_some(count)
}

fn small(value: f64) -> Option<u32> {
    count(value).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}

fn positive(value: f64) -> Option<u64> {
    count(value).filter(|count| *count > 0)
}

fn share(value: f64) -> Option<f32> {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a share needs no more digits"
    )]
    let share = value as f32;
    (value >= 0.0).then(|| share.min(1.0))
}

#[cfg(test)]
mod tests;
