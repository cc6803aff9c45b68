//! What a model's workers say of their own load: how large they are on their cards, how full on
//! topic `kv_metrics`, and what each step computes on topic `forward-pass-metrics`.
//!
//! How full they are they tell when it changes, so what was said last holds for as long as
//! discovery shows the publisher. Of steps they tell at least once a second: a rank that doesn't
//! is not known, whatever it said before. Routers publish on the same topics what they have sent
//! themselves; that is left aside, for each has seen a part only.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use kvgrid_core::event::dynamo::Step;
use kvgrid_core::load::{EngineLoad, Extent};
use kvgrid_core::{Instant, ModelId};

use crate::discovery::{ModelCard, WorkerRank};

/// Most ranks that one publisher may tell of; more are left out.
const RANKS: usize = 4096;

/// How long a step counts: workers without work tell one a second.
const STEP_COUNTS: Duration = Duration::from_secs(5);

/// What is known of the load of a model's workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    workers: BTreeMap<u64, Size>,
    /// Device blocks in use, by who said so.
    used: BTreeMap<u64, BTreeMap<WorkerRank, u64>>,
    /// The last step of each rank, by who said so.
    steps: BTreeMap<u64, BTreeMap<WorkerRank, (Instant, Step)>>,
    /// Pools that somebody else has summed up.
    pools: Vec<PoolUse>,
}

/// How large a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    first_rank: u32,
    ranks: u32,
    /// Device blocks of each rank.
    rank_blocks: Option<u64>,
    block_tokens: Option<u64>,
    /// Requests that each rank computes at once.
    rank_requests: Option<u32>,
}

/// The use of the pool of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolUse {
    /// Device blocks that requests hold.
    pub(crate) used: u64,
    /// All device blocks.
    pub(crate) blocks: u64,
    /// Ranks that have them.
    pub(crate) ranks: u32,
}

/// What is known of one rank beside its metrics page.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RankUse {
    /// Share of its device blocks that requests hold.
    pub(crate) kv_use: Option<f32>,
    /// Tokens that its blocks have room for.
    pub(crate) kv_tokens: Option<u64>,
    /// Requests that it computes at once.
    pub(crate) max_requests: Option<u32>,
}

impl Usage {
    /// The use of pools that somebody else has summed up.
    pub(crate) fn of_pools(pools: impl IntoIterator<Item = PoolUse>) -> Self {
        Self {
            pools: pools.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The share of their blocks that requests use, over all ranks that said so.
    pub(crate) fn share(&self) -> Option<f32> {
        let (mut used, mut blocks) = (0.0, 0.0);
        for (of, count) in self.used.values().flatten() {
            if let Some(all) = self.rank_blocks(of.worker) {
                used += approximate(*count);
                blocks += approximate(all);
            }
        }
        for pool in &self.pools {
            used += approximate(pool.used);
            blocks += approximate(pool.blocks);
        }
        (blocks > 0.0).then(|| (used / blocks).clamp(0.0, 1.0))
    }

    /// How many ranks there are, where that is known.
    pub(crate) fn ranks(&self) -> Option<NonZeroU32> {
        let ranks = self.workers.values().map(|size| size.ranks);
        let pooled = self.pools.iter().map(|pool| pool.ranks);
        NonZeroU32::new(ranks.chain(pooled).fold(0, u32::saturating_add))
    }

    /// Tokens that all ranks' blocks have room for; `None` if one doesn't say.
    pub(crate) fn kv_tokens(&self) -> Option<u64> {
        let sum = self.over_workers(|size| {
            let tokens = size.rank_blocks?.checked_mul(size.block_tokens?)?;
            tokens.checked_mul(size.ranks.into())
        });
        sum.filter(|_| self.pools.is_empty())
    }

    /// Requests that all ranks compute at once; `None` if one doesn't say.
    pub(crate) fn max_requests(&self) -> Option<u32> {
        let sum = self.over_workers(|size| {
            let requests = size.rank_requests?.checked_mul(size.ranks)?;
            Some(requests.into())
        });
        sum.and_then(|sum| u32::try_from(sum).ok())
    }

    /// The load of every rank, by its last step; `None` while one has not told of any of late,
    /// for without it the rest would look idler than the site is.
    pub(crate) fn rank_loads(&self, model: ModelId, now: Instant) -> Option<Vec<EngineLoad>> {
        let ranks = self.workers.iter().flat_map(|(worker, size)| {
            let ranks = size.first_rank..size.first_rank.saturating_add(size.ranks);
            ranks.map(|rank| WorkerRank {
                worker: *worker,
                rank,
            })
        });
        let load = |of: WorkerRank| {
            let (at, step) = self.step(of)?;
            let rank = self.rank(of);
            let counts = now.saturating_since(at) <= STEP_COUNTS;
            counts.then_some(EngineLoad {
                model,
                worker: of.worker,
                rank: of.rank,
                extent: Extent::Rank,
                at,
                running: step.running,
                waiting: Some(step.waiting),
                waiting_tokens: Some(step.waiting_tokens),
                max_requests: rank.max_requests,
                kv_use: rank.kv_use,
                kv_cached: None,
                kv_tokens: rank.kv_tokens,
            })
        };
        let loads: Vec<_> = ranks.map(load).collect::<Option<_>>()?;
        (!loads.is_empty()).then_some(loads)
    }

    /// What is known of a rank.
    pub(crate) fn rank(&self, of: WorkerRank) -> RankUse {
        let Some(size) = self.workers.get(&of.worker) else {
            return RankUse::default();
        };
        let used = self.used.values().find_map(|ranks| ranks.get(&of));
        let share = |(used, all): (&u64, u64)| {
            let share = approximate(*used) / approximate(all);
            share.clamp(0.0, 1.0)
        };
        RankUse {
            kv_use: used.zip(size.rank_blocks).map(share),
            kv_tokens: size
                .rank_blocks
                .zip(size.block_tokens)
                .and_then(|(blocks, tokens)| blocks.checked_mul(tokens)),
            max_requests: size.rank_requests,
        }
    }

    fn step(&self, of: WorkerRank) -> Option<(Instant, Step)> {
        let told = self.steps.values().filter_map(|ranks| ranks.get(&of));
        told.max_by_key(|(at, _)| *at).copied()
    }

    fn rank_blocks(&self, worker: u64) -> Option<u64> {
        self.workers.get(&worker)?.rank_blocks
    }

    fn over_workers(&self, of: impl Fn(&Size) -> Option<u64>) -> Option<u64> {
        let mut all = self.workers.values();
        let sum = all.try_fold(0_u64, |sum, size| Some(sum.saturating_add(of(size)?)));
        sum.filter(|sum| *sum > 0)
    }

    /// Sets which workers there are; says whether that is new.
    pub(super) fn set_workers(&mut self, workers: BTreeMap<u64, Size>) -> bool {
        let changed = self.workers != workers;
        self.workers = workers;
        changed
    }

    pub(super) fn set_used(&mut self, publisher: u64, of: WorkerRank, blocks: u64) -> bool {
        bounded(&mut self.used, publisher, of, blocks)
    }

    pub(super) fn set_step(&mut self, publisher: u64, at: Instant, step: Step) -> bool {
        let of = WorkerRank {
            worker: step.worker,
            rank: step.rank,
        };
        bounded(&mut self.steps, publisher, of, (at, step))
    }

    /// A publisher is gone; says whether it had said anything.
    pub(super) fn forget(&mut self, publisher: u64) -> bool {
        let used = self.used.remove(&publisher).is_some();
        self.steps.remove(&publisher).is_some() || used
    }
}

impl Size {
    /// As a worker's card tells it.
    pub(super) fn of(card: &ModelCard) -> Self {
        let runtime = &card.fields.runtime_config;
        let block_tokens = card.fields.kv_cache_block_size;
        Self {
            first_rank: runtime.data_parallel_start_rank.unwrap_or(0),
            ranks: card.ranks(),
            rank_blocks: card.rank_blocks(),
            block_tokens: (block_tokens > 0).then_some(block_tokens.into()),
            rank_requests: runtime.max_num_seqs.filter(|requests| *requests > 0),
        }
    }
}

/// Notes what a publisher says of a rank; says whether that is new.
fn bounded<T: PartialEq>(
    all: &mut BTreeMap<u64, BTreeMap<WorkerRank, T>>,
    publisher: u64,
    of: WorkerRank,
    told: T,
) -> bool {
    let ranks = all.entry(publisher).or_default();
    if ranks.len() >= RANKS && !ranks.contains_key(&of) {
        return false;
    }
    let changed = ranks.get(&of) != Some(&told);
    ranks.insert(of, told);
    changed
}

fn approximate(count: u64) -> f32 {
    #[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let count = count as f32;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelId = ModelId(5);

    const fn of(worker: u64, rank: u32) -> WorkerRank {
        WorkerRank { worker, rank }
    }

    const fn size(ranks: u32, rank_blocks: u64) -> Size {
        Size {
            first_rank: 0,
            ranks,
            rank_blocks: Some(rank_blocks),
            block_tokens: Some(16),
            rank_requests: Some(4),
        }
    }

    const fn step(worker: u64, rank: u32, running: u32, waiting: u32) -> Step {
        Step {
            worker,
            rank,
            running,
            waiting,
            waiting_tokens: 100,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_share_is_of_the_ranks_that_said_something() {
        let mut usage = Usage::default();

        assert_eq!(usage.share(), None);
        usage.set_used(1, of(7, 0), 50);
        assert_eq!(usage.share(), None, "nobody knows of how many");
        usage.set_workers(BTreeMap::from([(7, size(1, 100)), (8, size(1, 300))]));
        assert_eq!(usage.share(), Some(0.5));
        usage.set_used(2, of(8, 0), 0);
        assert_eq!(usage.share(), Some(0.125));
        assert!(usage.forget(1));
        assert_eq!(usage.share(), Some(0.0));
    }

    #[test]
    fn a_site_is_as_large_as_its_ranks_together_and_unknown_if_one_is() {
        let mut usage = Usage::default();
        usage.set_workers(BTreeMap::from([(7, size(2, 100)), (8, size(1, 300))]));

        assert_eq!(usage.ranks(), NonZeroU32::new(3));
        assert_eq!(usage.kv_tokens(), Some(500 * 16));
        assert_eq!(usage.max_requests(), Some(12));
        let silent = Size {
            rank_requests: None,
            rank_blocks: None,
            ..size(1, 0)
        };
        usage.set_workers(BTreeMap::from([(7, size(2, 100)), (8, silent)]));
        assert_eq!((usage.kv_tokens(), usage.max_requests()), (None, None));
        assert_eq!(Usage::default().ranks(), None);
    }

    #[test]
    fn the_load_of_ranks_is_known_while_all_tell_their_steps() {
        let mut usage = Usage::default();
        usage.set_workers(BTreeMap::from([(7, size(2, 100))]));
        usage.set_used(1, of(7, 1), 25);
        usage.set_step(9, at(1), step(7, 0, 4, 2));
        assert_eq!(usage.rank_loads(MODEL, at(1)), None, "one rank is silent");

        usage.set_step(9, at(2), step(7, 1, 3, 0));
        usage.set_step(9, at(2), step(6, 0, 9, 9));
        let loads = usage.rank_loads(MODEL, at(2)).unwrap();

        let told: Vec<_> = loads
            .iter()
            .map(|load| (load.rank, load.running, load.waiting, load.kv_use))
            .collect();
        assert_eq!(told, [(0, 4, Some(2), None), (1, 3, Some(0), Some(0.25))]);
        assert_eq!(loads[0].waiting_tokens, Some(100));
        assert_eq!(
            (loads[1].max_requests, loads[1].kv_tokens),
            (Some(4), Some(1600))
        );
        assert_eq!(
            usage.rank_loads(MODEL, at(7)),
            None,
            "rank 0 is silent again"
        );
        usage.set_step(9, at(7), step(7, 0, 0, 0));
        assert!(usage.rank_loads(MODEL, at(7)).is_some());
        usage.forget(9);
        assert_eq!(usage.rank_loads(MODEL, at(7)), None);
    }
}
