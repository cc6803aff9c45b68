//! What an engine's or a frontend's metrics page says about load.
//!
//! Engines (vLLM, SGLang, TensorRT-LLM; `names` has what each calls things) tell load per rank.
//! A Dynamo frontend tells it per model; that is used only for models no engine page speaks
//! of, or the same requests would count twice. What a page doesn't tell stays unknown.

use std::collections::BTreeMap;

use kvgrid_core::load::EngineLoad;
use kvgrid_core::{Instant, ModelId, ModelName};

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
        if figure == Figure::CacheConfig {
            return self.take_cache_config(sample);
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
        *bounded(&mut self.kv_tokens, names::rank(sample)?)? = tokens;
        Some(())
    }

    /// KV blocks per model, as far as a frontend told.
    pub(crate) fn kv_blocks(&self) -> impl Iterator<Item = (ModelId, u64)> {
        let told = |(model, part): (&ModelId, &Part)| Some((*model, part.kv_blocks?));
        self.frontend.iter().filter_map(told)
    }

    /// A rank's part with all that the page says of it.
    fn engine(&self, rank: u32, part: &Part) -> Part {
        let kv_tokens = self.kv_tokens.get(&rank).copied();
        Part {
            kv_tokens: part.kv_tokens.or(kv_tokens),
            ..*part
        }
    }
}

/// Merges the pages of one round of scrapes, each named by its worker, into engine loads.
/// `usage` is the share of the KV cache in use, by model, for pages that don't tell it.
pub(crate) fn merge(
    pages: &[(u64, Instant, Page)],
    usage: &BTreeMap<ModelId, f32>,
) -> Vec<EngineLoad> {
    let mut loads = Vec::new();
    for (worker, at, page) in pages {
        for ((model, rank), part) in &page.engines {
            let part = page.engine(*rank, part);
            loads.extend(part.load(*model, *worker, *rank, *at));
        }
    }
    let by_engine: Vec<_> = loads.iter().map(|load: &EngineLoad| load.model).collect();
    for (worker, at, page) in pages {
        for (model, part) in &page.frontend {
            if !by_engine.contains(model) {
                let part = part.of_frontend(usage.get(model).copied());
                loads.extend(part.load(*model, *worker, 0, *at));
            }
        }
    }
    loads
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
            Figure::CacheConfig => {}
        }
    }

    /// A frontend counts those that wait among those in flight; where it doesn't say how many
    /// wait, all count as running.
    fn of_frontend(self, kv_use: Option<f32>) -> Self {
        let waiting = self.waiting.unwrap_or(0);
        Self {
            kv_use: self.kv_use.or(kv_use),
            running: self.running.map(|all| all.saturating_sub(waiting)),
            ..self
        }
    }

    /// A load, unless the page did not say how many run.
    fn load(self, model: ModelId, worker: u64, rank: u32, at: Instant) -> Option<EngineLoad> {
        let blocks = self.kv_blocks.zip(self.block_tokens);
        let by_blocks = blocks.and_then(|(blocks, tokens)| blocks.checked_mul(tokens));
        let kv_tokens = self.kv_tokens.or(by_blocks).filter(|tokens| *tokens > 0);
        let cached = self.evictable_tokens.zip(kv_tokens);
        Some(EngineLoad {
            model,
            worker,
            rank,
            at,
            running: self.running?,
            waiting: self.waiting,
            waiting_tokens: None,
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

fn approximate(count: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let count = count as f64;
    count
}

#[cfg(test)]
mod tests;
