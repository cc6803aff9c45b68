//! What is kept of a relay from one session to the next: its models, and replicas of its pools.

use std::collections::BTreeMap;

use kvgrid_core::replication::{Replica, ReplicaConfig, ReplicaError, Request};
use kvgrid_core::view::{CardDigest, ModelView, PoolView};
use kvgrid_core::{Instant, PoolId};

/// A relay's models and our replicas of its pools.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pools: BTreeMap<PoolId, Followed>,
    models: Vec<ModelView>,
}

/// A pool of the relay's catalog.
#[derive(Debug)]
struct Followed {
    /// What the catalog says of it; its replica is always empty.
    listed: PoolView,
    replica: Replica,
    /// Whether this session's catalog has listed it.
    connected: bool,
}

impl Memory {
    /// Takes a catalog: new pools get a replica, those that are gone lose theirs, and those
    /// that were known before this session go on from where they are.
    pub(super) fn handle_catalog(
        &mut self,
        (models, pools): (Vec<ModelView>, Vec<PoolView>),
        config: &ReplicaConfig,
        now: Instant,
    ) {
        let mut known = std::mem::take(&mut self.pools);
        for listed in pools {
            let mut followed = known.remove(&listed.id).unwrap_or_else(|| Followed {
                listed: listed.clone(),
                replica: Replica::new(config.clone()),
                connected: false,
            });
            followed.listed = listed;
            if !followed.connected {
                followed.connected = true;
                followed.replica.handle_connect(now);
            }
            self.pools.insert(followed.listed.id, followed);
        }
        self.models = models;
    }

    /// The session is over: replicas are stale until the next one.
    pub(super) fn handle_disconnect(&mut self, now: Instant) {
        for followed in self.pools.values_mut() {
            followed.connected = false;
            followed.replica.handle_disconnect(now);
        }
    }

    /// Feeds a pool's replica. Pools that left the catalog may have messages under way: those
    /// are dropped.
    pub(super) fn feed(
        &mut self,
        pool: PoolId,
        input: impl FnOnce(&mut Replica) -> Result<(), ReplicaError>,
    ) -> Result<(), ReplicaError> {
        match self.pools.get_mut(&pool) {
            Some(followed) => input(&mut followed.replica),
            None => Ok(()),
        }
    }

    /// When [`Self::handle_timeout`] has to be called next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = self.pools.values().map(|pool| pool.replica.poll_timeout());
        timeouts.flatten().min()
    }

    /// Lets the replicas see the time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for followed in self.pools.values_mut() {
            followed.replica.handle_timeout(now);
        }
    }

    /// What the replicas ask of the relay.
    pub(super) fn poll_requests(&mut self, now: Instant) -> Vec<(PoolId, Request)> {
        let mut requests = Vec::new();
        for (id, followed) in &mut self.pools {
            while let Some(request) = followed.replica.poll_request(now) {
                requests.push((*id, request));
            }
        }
        requests
    }

    /// The cards of the relay's models.
    pub(super) fn cards(&self) -> impl Iterator<Item = CardDigest> {
        let cards = self.models.iter().filter_map(|model| model.card.as_ref());
        cards.map(|card| card.digest)
    }

    /// The relay's models, as it told them.
    pub(super) fn models(&self) -> &[ModelView] {
        &self.models
    }

    /// The pools, with their replicas as they are now.
    pub(super) fn pools(&self) -> Vec<PoolView> {
        let view = |followed: &Followed| PoolView {
            replica: followed.replica.snapshot(),
            ..followed.listed.clone()
        };
        self.pools.values().map(view).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use kvgrid_core::ModelId;
    use kvgrid_core::block::HashFormat;
    use kvgrid_core::event::Tier;
    use kvgrid_core::replication::{ReplicaView, SubscriptionId};

    use super::*;

    fn pool(id: u64) -> PoolView {
        PoolView {
            id: PoolId(id),
            model: ModelId(1),
            source: Arc::from("engines"),
            block_size: NonZeroU32::new(16).unwrap(),
            format: HashFormat::Standard,
            tier: Tier::Device,
            closed: true,
            replica: ReplicaView::default(),
        }
    }

    fn listed(memory: &mut Memory, ids: &[u64]) -> Vec<u64> {
        let config = ReplicaConfig::with_keys(Vec::new());
        let pools = ids.iter().copied().map(pool).collect();
        memory.handle_catalog((Vec::new(), pools), &config, Instant::ZERO);
        let asked = memory.poll_requests(Instant::ZERO);
        asked.into_iter().map(|(pool, _)| pool.0).collect()
    }

    #[test]
    fn each_pool_is_subscribed_to_once_however_often_it_is_listed() {
        let mut memory = Memory::default();

        assert_eq!(listed(&mut memory, &[1, 2]), [1, 2]);
        assert_eq!(listed(&mut memory, &[1, 2, 3]), [3]);
        assert_eq!(listed(&mut memory, &[2]), [0; 0]);
        assert_eq!(memory.pools().len(), 1);
    }

    #[test]
    fn a_new_session_subscribes_to_all_pools_anew() {
        let mut memory = Memory::default();
        listed(&mut memory, &[1, 2]);

        memory.handle_disconnect(Instant::ZERO);

        assert_eq!(memory.pools().len(), 2);
        assert_eq!(memory.poll_requests(Instant::ZERO), []);
        assert_eq!(listed(&mut memory, &[1, 2]), [1, 2]);
    }

    #[test]
    fn a_message_for_a_pool_that_left_is_dropped() {
        let mut memory = Memory::default();

        let fed = memory.feed(PoolId(9), |replica| {
            let frame = unreachable_frame();
            replica.handle_frame(SubscriptionId(1), frame, Instant::ZERO)
        });

        assert_eq!(fed, Ok(()));
    }

    fn unreachable_frame() -> kvgrid_core::replication::Frame {
        panic!("no replica is asked for a pool that is not listed")
    }
}
