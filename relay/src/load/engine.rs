//! What an engine's or a frontend's metrics page says about load.
//!
//! Engines (vLLM's names, which Dynamo's workers use too) tell load per rank. A Dynamo frontend
//! tells it per model; that is used only for models no engine page speaks of, or the same
//! requests would count twice.

use std::collections::BTreeMap;

use kvgrid_core::load::EngineLoad;
use kvgrid_core::{Instant, ModelId, ModelName};

use super::exposition::{Sample, samples};

const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const KV_USE: &str = "vllm:kv_cache_usage_perc";
/// What vLLM called it before.
const KV_USE_OLD: &str = "vllm:gpu_cache_usage_perc";
const FRONTEND_IN_FLIGHT: &str = "dynamo_frontend_inflight_requests";
const FRONTEND_QUEUED: &str = "dynamo_frontend_queued_requests";
const FRONTEND_KV_BLOCKS: &str = "dynamo_frontend_model_total_kv_blocks";

const WANTED: [&str; 7] = [
    RUNNING,
    WAITING,
    KV_USE,
    KV_USE_OLD,
    FRONTEND_IN_FLIGHT,
    FRONTEND_QUEUED,
    FRONTEND_KV_BLOCKS,
];

/// Ranks and models one page may tell of; more are left out.
const PART_LIMIT: usize = 4096;

/// What one page told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page {
    /// Per rank, from an engine.
    engines: BTreeMap<(ModelId, u32), Part>,
    /// Per model, from a frontend.
    frontend: BTreeMap<ModelId, Part>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Part {
    running: Option<u32>,
    waiting: Option<u32>,
    kv_use: Option<f32>,
    kv_blocks: Option<u64>,
}

impl Page {
    /// Reads a metrics page.
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        for sample in samples(text, |name| WANTED.contains(&name)) {
            page.take(&sample);
        }
        page
    }

    fn take(&mut self, sample: &Sample<'_>) -> Option<()> {
        if sample.name.starts_with("vllm:") {
            let model = ModelName::new(sample.label("model_name")?).ok()?.id();
            let rank = sample.label("engine").unwrap_or("0").parse().ok()?;
            let part = bounded(&mut self.engines, (model, rank))?;
            match sample.name {
                RUNNING => part.running = Some(count(sample.value)),
                WAITING => part.waiting = Some(count(sample.value)),
                KV_USE => part.kv_use = Some(share(sample.value)),
                _ => part.kv_use = part.kv_use.or(Some(share(sample.value))),
            }
        } else {
            let model = ModelName::new(sample.label("model")?).ok()?.id();
            let part = bounded(&mut self.frontend, model)?;
            match sample.name {
                FRONTEND_IN_FLIGHT => part.running = Some(count(sample.value)),
                FRONTEND_QUEUED => part.waiting = Some(count(sample.value)),
                _ => part.kv_blocks = Some(u64::from(count(sample.value))).filter(|n| *n > 0),
            }
        }
        Some(())
    }

    /// KV blocks per model, as far as a frontend told.
    pub(crate) fn kv_blocks(&self) -> impl Iterator<Item = (ModelId, u64)> {
        let told = |(model, part): (&ModelId, &Part)| Some((*model, part.kv_blocks?));
        self.frontend.iter().filter_map(told)
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
    /// A frontend counts those that wait among those in flight.
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
        Some(EngineLoad {
            model,
            worker,
            rank,
            at,
            running: self.running?,
            waiting: self.waiting.unwrap_or(0),
            waiting_tokens: None,
            kv_use: self.kv_use,
        })
    }
}

fn bounded<K: Ord>(parts: &mut BTreeMap<K, Part>, key: K) -> Option<&mut Part> {
    if parts.len() >= PART_LIMIT && !parts.contains_key(&key) {
        return None;
    }
    Some(parts.entry(key).or_default())
}

fn count(value: f64) -> u32 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float to an integer saturates"
    )]
    let count = value as u32;
    count
}

fn share(value: f64) -> f32 {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a share needs no more digits"
    )]
    let share = value as f32;
    share.clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n\
        vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2\n\
        vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 1\n\
        vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n\
        vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.9\n";
    const FRONTEND: &str = "dynamo_frontend_inflight_requests{model=\"m\"} 7\n\
        dynamo_frontend_queued_requests{model=\"m\"} 2\n\
        dynamo_frontend_model_total_kv_blocks{model=\"m\"} 2048\n";

    fn model() -> ModelId {
        ModelName::new("m").unwrap().id()
    }

    fn merged(pages: &[&str]) -> Vec<EngineLoad> {
        let pages: Vec<_> = (1..)
            .zip(pages)
            .map(|(worker, text)| (worker, Instant::ZERO, Page::parse(text)))
            .collect();
        merge(&pages, &BTreeMap::new())
    }

    #[test]
    fn an_engine_tells_load_per_rank() {
        let loads = merged(&[ENGINE]);

        assert_eq!(loads.len(), 2);
        assert_eq!(
            (loads[0].rank, loads[0].running, loads[0].waiting),
            (0, 3, 2)
        );
        assert_eq!(loads[0].kv_use, Some(0.5));
        assert_eq!(
            (loads[1].rank, loads[1].running, loads[1].kv_use),
            (1, 1, None)
        );
    }

    #[test]
    fn a_frontend_counts_the_waiting_among_those_in_flight() {
        let loads = merged(&[FRONTEND]);

        assert_eq!(loads.len(), 1);
        assert_eq!((loads[0].running, loads[0].waiting), (5, 2));
        let blocks: Vec<_> = Page::parse(FRONTEND).kv_blocks().collect();
        assert_eq!(blocks, [(model(), 2048)]);
    }

    #[test]
    fn what_workers_say_of_their_use_stands_beside_the_frontends_counts() {
        let page = |text| (1, Instant::ZERO, Page::parse(text));
        let usage = BTreeMap::from([(model(), 0.25)]);

        let frontend = merge(&[page(FRONTEND)], &usage);
        let engine = merge(&[page(ENGINE)], &usage);
        let nobody = merge(&[], &usage);

        assert_eq!(frontend[0].kv_use, Some(0.25));
        assert_eq!(engine[0].kv_use, Some(0.5), "the engine knows better");
        assert_eq!(nobody, [], "how full a cache is says nothing of requests");
    }

    #[test]
    fn a_frontend_is_not_counted_beside_its_engines() {
        let loads = merged(&[FRONTEND, ENGINE]);

        assert_eq!(loads.iter().map(|load| load.running).sum::<u32>(), 4);
    }

    #[test]
    fn a_page_that_tells_nothing_of_load_is_no_idle_engine() {
        assert!(merged(&["vllm:kv_cache_usage_perc{model_name=\"m\"} 0.5\nup 1\n"]).is_empty());
    }

    #[test]
    fn values_out_of_range_saturate() {
        let loads = merged(&["vllm:num_requests_running{model_name=\"m\"} -4\n\
             vllm:num_requests_waiting{model_name=\"m\"} 1e30\n\
             vllm:kv_cache_usage_perc{model_name=\"m\"} 7\n"]);

        assert_eq!((loads[0].running, loads[0].waiting), (0, u32::MAX));
        assert_eq!(loads[0].kv_use, Some(1.0));
    }
}
