//! How full a model's workers are, as they say themselves on topic `kv_metrics`.
//!
//! They tell it when it changes and have no other sign of life, so what was said last holds
//! for as long as discovery shows the publisher.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use kvgrid_core::event::dynamo::{KV_METRICS, kv_use};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::plane::{Plane, Sound, Voice};
use crate::discovery::{Transport, WorkerRank};

/// Most ranks that one publisher may tell of; more are left out.
const RANKS: usize = 4096;

/// What is known of the use of a model's workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Device blocks of each of a worker's ranks.
    rank_blocks: BTreeMap<u64, u64>,
    /// Device blocks in use, by who said so.
    used: BTreeMap<u64, BTreeMap<WorkerRank, u64>>,
}

impl Usage {
    /// The use of pools that somebody else has summed up: used blocks and all blocks of each.
    pub(crate) fn of_pools(pools: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut usage = Self::default();
        for (worker, (used, all)) in (0..).zip(pools) {
            let rank = WorkerRank { worker, rank: 0 };
            usage.rank_blocks.insert(worker, all);
            usage.used.insert(worker, BTreeMap::from([(rank, used)]));
        }
        usage
    }

    /// The share of their blocks that requests use, over all ranks that said so.
    pub(crate) fn share(&self) -> Option<f32> {
        let (mut used, mut blocks) = (0.0, 0.0);
        for (of, count) in self.used.values().flatten() {
            if let Some(all) = self.rank_blocks.get(&of.worker) {
                used += approximate(*count);
                blocks += approximate(*all);
            }
        }
        (blocks > 0.0).then(|| (used / blocks).clamp(0.0, 1.0))
    }

    /// Sets how many blocks workers have; says whether that is new.
    fn set_blocks(&mut self, rank_blocks: BTreeMap<u64, u64>) -> bool {
        let changed = self.rank_blocks != rank_blocks;
        self.rank_blocks = rank_blocks;
        changed
    }

    fn set_used(&mut self, publisher: u64, of: WorkerRank, blocks: u64) -> bool {
        let ranks = self.used.entry(publisher).or_default();
        if ranks.len() >= RANKS && !ranks.contains_key(&of) {
            return false;
        }
        ranks.insert(of, blocks) != Some(blocks)
    }

    /// A publisher is gone; says whether it had said anything.
    fn forget(&mut self, publisher: u64) -> bool {
        self.used.remove(&publisher).is_some()
    }
}

/// The tasks that listen, one a publisher.
pub(super) struct Listeners {
    usage: watch::Sender<Usage>,
    plane: Plane,
    /// What stops each.
    stops: BTreeMap<u64, CancellationToken>,
}

impl Listeners {
    /// Nobody yet; `usage` is told what they hear.
    pub(super) const fn new(usage: watch::Sender<Usage>, plane: Plane) -> Self {
        Self {
            usage,
            plane,
            stops: BTreeMap::new(),
        }
    }

    /// Listens to these publishers, by their ids, and to no others. `rank_blocks` are device
    /// blocks of each of a worker's ranks.
    pub(super) fn update(
        &mut self,
        rank_blocks: BTreeMap<u64, u64>,
        alive: BTreeMap<u64, Transport>,
        tasks: &mut JoinSet<()>,
    ) {
        self.usage
            .send_if_modified(|usage| usage.set_blocks(rank_blocks));
        self.stops.retain(|id, stop| {
            let stays = alive.contains_key(id);
            if !stays {
                stop.cancel();
            }
            stays
        });
        for (id, transport) in alive {
            if let Entry::Vacant(place) = self.stops.entry(id) {
                let stop = place.insert(CancellationToken::new()).clone();
                let (usage, plane) = (self.usage.clone(), self.plane.clone());
                let voice = Voice {
                    publisher: id,
                    transport,
                    topic: KV_METRICS,
                };
                tasks.spawn(async move {
                    let listening = listen(voice, plane, usage.clone());
                    stop.run_until_cancelled(listening).await;
                    usage.send_if_modified(|usage| usage.forget(id));
                });
            }
        }
    }
}

/// Listens to one publisher, for ever.
async fn listen(voice: Voice, plane: Plane, usage: watch::Sender<Usage>) {
    let publisher = voice.publisher;
    loop {
        let mut ear = plane.listen(&voice).await;
        loop {
            match ear.hear().await {
                Sound::Message(message) => {
                    let read = message
                        .envelope()
                        .filter(|e| e.publisher == publisher && e.topic == KV_METRICS)
                        .and_then(|envelope| kv_use(envelope.payload).ok());
                    let Some(read) = read else {
                        debug!(publisher, "Message not understood");
                        continue;
                    };
                    let of = WorkerRank {
                        worker: read.worker,
                        rank: read.rank,
                    };
                    if let Some(blocks) = read.used_blocks {
                        usage.send_if_modified(|usage| usage.set_used(publisher, of, blocks));
                    }
                }
                Sound::Noise => {}
                Sound::Disconnected => break,
            }
        }
    }
}

fn approximate(count: u64) -> f32 {
    #[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let count = count as f32;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_ranks_that_said_something() {
        let mut usage = Usage::default();
        let of = |worker, rank| WorkerRank { worker, rank };

        assert_eq!(usage.share(), None);
        usage.set_used(1, of(7, 0), 50);
        assert_eq!(usage.share(), None, "nobody knows of how many");
        usage.set_blocks(BTreeMap::from([(7, 100), (8, 300)]));
        assert_eq!(usage.share(), Some(0.5));
        usage.set_used(2, of(8, 0), 0);
        assert_eq!(usage.share(), Some(0.125));
        assert!(usage.forget(1));
        assert_eq!(usage.share(), Some(0.0));
    }
}
