//! What is kept of a relay from one session to the next: its models, and replicas of its pools.

use std::collections::BTreeMap;
use std::time::Duration;

use kvgrid_core::ckf::Naming;
use kvgrid_core::filter::Form;
use kvgrid_core::replication::{Replica, ReplicaConfig, ReplicaError, Request};
use kvgrid_core::view::{CardDigest, ModelView, PoolView};
use kvgrid_core::{Instant, PoolId};
use tracing::warn;

/// Most bytes of the tables of one relay's pools, but for a table that replaces another: a
/// relay, even a compromised one, can't fill this edge's memory. A tenth of it is usual.
const TABLE_BYTES: u64 = 2 << 30;

/// How long a pool is kept, stale, that a relay doesn't list when it is connected again: after
/// a restart it may have to find its workers before it can.
const UNLISTED: Duration = Duration::from_secs(60);

/// A relay's models and our replicas of its pools.
#[derive(Debug)]
pub(super) struct Memory {
    pools: BTreeMap<PoolId, Followed>,
    models: Vec<ModelView>,
    /// Whether the pools are to be followed.
    wanted: bool,
    /// The sum over all replicas.
    table_bytes: u64,
    most_table_bytes: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(TABLE_BYTES)
    }
}

/// A pool of the relay's catalog.
#[derive(Debug)]
struct Followed {
    /// What the catalog says of it; its replica is always empty.
    listed: PoolView,
    replica: Replica,
    /// Whether this session's catalog has listed it.
    listed_now: bool,
    /// Whether its replica is connected.
    connected: bool,
    /// When it goes, if the session has a catalog without it.
    unlisted_until: Option<Instant>,
}

impl Followed {
    fn new(listed: PoolView, config: &ReplicaConfig) -> Self {
        if listed.naming == Naming::Unknown {
            let (pool, source) = (listed.id.0, &*listed.source);
            warn!(
                pool,
                source, "Pool names its blocks in a way not known here: not followed"
            );
        }
        // Who names blocks by a filter's classes has nothing more exact.
        let form = match listed.naming {
            Naming::Chain => config.form,
            Naming::Ckf(_) | Naming::Unknown => Form::Filter,
        };
        Self {
            listed,
            replica: Replica::new(ReplicaConfig {
                form,
                ..config.clone()
            }),
            listed_now: true,
            connected: false,
            unlisted_until: None,
        }
    }

    fn connect(&mut self, now: Instant) {
        if self.listed.naming == Naming::Unknown {
            return;
        }
        if !std::mem::replace(&mut self.connected, true) {
            self.replica.handle_connect(now);
        }
    }
}

impl Memory {
    const fn new(most_table_bytes: u64) -> Self {
        Self {
            pools: BTreeMap::new(),
            models: Vec::new(),
            wanted: false,
            table_bytes: 0,
            most_table_bytes,
        }
    }

    /// Takes a catalog: new pools get a replica, those that are withdrawn lose theirs, and those
    /// that were known before this session go on from where they are. Of these, one that isn't
    /// listed yet stays stale for a while.
    pub(super) fn handle_catalog(
        &mut self,
        (models, pools): (Vec<ModelView>, Vec<PoolView>),
        config: &ReplicaConfig,
        now: Instant,
    ) {
        let mut known = std::mem::take(&mut self.pools);
        for listed in pools {
            let mut followed = known
                .remove(&listed.id)
                .unwrap_or_else(|| Followed::new(listed.clone(), config));
            followed.listed = listed;
            followed.listed_now = true;
            followed.unlisted_until = None;
            if self.wanted {
                followed.connect(now);
            }
            self.pools.insert(followed.listed.id, followed);
        }
        known.retain(|_, followed| !followed.listed_now);
        for (id, mut followed) in known {
            followed.unlisted_until.get_or_insert(now + UNLISTED);
            self.pools.insert(id, followed);
        }
        self.models = models;
        let replicas = self.pools.values().map(|pool| &pool.replica);
        self.table_bytes = replicas.map(Replica::table_bytes).sum();
    }

    /// The session is over: replicas are stale until the next one.
    pub(super) fn handle_disconnect(&mut self, now: Instant) {
        self.pools
            .retain(|_, followed| followed.unlisted_until.is_none());
        for followed in self.pools.values_mut() {
            followed.listed_now = false;
            followed.connected = false;
            followed.replica.handle_disconnect(now);
        }
    }

    /// Follows the pools from now on, or drops what is known of them; gives those that the
    /// relay is to be told to stop with.
    pub(super) fn set_wanted(&mut self, wanted: bool, now: Instant) -> Vec<PoolId> {
        self.wanted = wanted;
        if wanted {
            let listed = self.pools.values_mut().filter(|pool| pool.listed_now);
            listed.for_each(|pool| pool.connect(now));
            return Vec::new();
        }
        let mut given_up = Vec::new();
        for (id, followed) in &mut self.pools {
            if std::mem::take(&mut followed.connected) {
                given_up.push(*id);
            }
            followed.replica.clear();
        }
        self.table_bytes = 0;
        given_up
    }

    /// Feeds a pool's replica. Pools that left the catalog may have messages under way: those
    /// are dropped.
    pub(super) fn feed(
        &mut self,
        pool: PoolId,
        input: impl FnOnce(&mut Replica) -> Result<(), ReplicaError>,
    ) -> Result<(), ReplicaError> {
        let Some(Followed { replica, .. }) = self.pools.get_mut(&pool) else {
            return Ok(());
        };
        let others = self.table_bytes.saturating_sub(replica.table_bytes());
        replica.limit_bytes(self.most_table_bytes.saturating_sub(others));
        let fed = input(replica);
        self.table_bytes = others + replica.table_bytes();
        fed
    }

    /// When [`Self::handle_timeout`] has to be called next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let pools = self.pools.values();
        let timeouts = pools.flat_map(|pool| [pool.replica.poll_timeout(), pool.unlisted_until]);
        timeouts.flatten().min()
    }

    /// Lets the replicas see the time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let is_over = |followed: &Followed| followed.unlisted_until.is_some_and(|at| at <= now);
        self.pools.retain(|_, followed| !is_over(followed));
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
    use kvgrid_core::ckf::Format;
    use kvgrid_core::event::Tier;
    use kvgrid_core::filter::{Geometry, MixKey};
    use kvgrid_core::replication::{
        Announced, Begin, Epoch, Frame, ReplicaView, Seq, SubscriptionId,
    };

    use super::*;

    fn pool(id: u64) -> PoolView {
        PoolView {
            id: PoolId(id),
            model: ModelId(1),
            source: Arc::from("engines"),
            block_size: NonZeroU32::new(16).unwrap(),
            format: HashFormat::Standard,
            naming: Naming::Chain,
            tier: Tier::Device,
            closed: true,
            eviction_age: None,
            replica: ReplicaView::default(),
            facts: None,
        }
    }

    fn wanted() -> Memory {
        let mut memory = Memory::default();
        assert_eq!(memory.set_wanted(true, Instant::ZERO), []);
        memory
    }

    fn listed(memory: &mut Memory, ids: &[u64]) -> Vec<u64> {
        let config = ReplicaConfig::with_keys(Vec::new());
        let pools = ids.iter().copied().map(pool).collect();
        memory.handle_catalog((Vec::new(), pools), &config, Instant::ZERO);
        let asked = memory.poll_requests(Instant::ZERO);
        asked.into_iter().map(|(pool, _)| pool.0).collect()
    }

    #[test]
    fn a_pool_whose_names_nobody_here_knows_is_not_followed() {
        let mut memory = wanted();
        let config = ReplicaConfig::with_keys(Vec::new());
        let naming = Naming::Unknown;
        let pools = vec![PoolView { naming, ..pool(1) }, pool(2)];

        memory.handle_catalog((Vec::new(), pools), &config, Instant::ZERO);

        let asked = memory.poll_requests(Instant::ZERO);
        let asked: Vec<_> = asked.into_iter().map(|(pool, _)| pool.0).collect();
        assert_eq!(asked, [2]);
        assert_eq!(memory.pools().len(), 2);
    }

    #[test]
    fn whole_hashes_are_asked_for_where_blocks_are_named_by_them() {
        let mut memory = wanted();
        let config = ReplicaConfig {
            form: Form::Exact,
            ..ReplicaConfig::with_keys(Vec::new())
        };
        let naming = Naming::Ckf(Format::new(7, 1024).unwrap());
        let pools = vec![pool(1), PoolView { naming, ..pool(2) }];

        memory.handle_catalog((Vec::new(), pools), &config, Instant::ZERO);

        let asked = memory.poll_requests(Instant::ZERO);
        let asked: Vec<_> = asked
            .into_iter()
            .map(|(pool, request)| match request {
                Request::Subscribe { form, .. } => (pool.0, form),
                Request::Audit { .. } => panic!("{request:?}"),
            })
            .collect();
        assert_eq!(asked, [(1, Form::Exact), (2, Form::Filter)]);
    }

    #[test]
    fn each_pool_is_subscribed_to_once_however_often_it_is_listed() {
        let mut memory = wanted();

        assert_eq!(listed(&mut memory, &[1, 2]), [1, 2]);
        assert_eq!(listed(&mut memory, &[1, 2, 3]), [3]);
        assert_eq!(listed(&mut memory, &[2]), [0; 0]);
        assert_eq!(memory.pools().len(), 1);
    }

    #[test]
    fn a_new_session_subscribes_to_all_pools_anew() {
        let mut memory = wanted();
        listed(&mut memory, &[1, 2]);

        memory.handle_disconnect(Instant::ZERO);

        assert_eq!(memory.pools().len(), 2);
        assert_eq!(memory.poll_requests(Instant::ZERO), []);
        assert_eq!(listed(&mut memory, &[1, 2]), [1, 2]);
    }

    #[test]
    fn a_relay_that_is_back_may_take_its_time_to_list_a_pool() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut memory = wanted();
        listed(&mut memory, &[1, 2]);
        memory.handle_disconnect(Instant::ZERO);

        assert_eq!(listed(&mut memory, &[]), [0; 0]);
        assert_eq!(memory.pools().len(), 2);
        assert_eq!(listed(&mut memory, &[1]), [1]);
        memory.handle_timeout(at(59));
        assert_eq!(memory.pools().len(), 2);
        assert!(memory.poll_timeout() <= Some(at(60)));
        memory.handle_timeout(at(60));
        assert_eq!(memory.pools().len(), 1);
    }

    #[test]
    fn a_pool_that_is_not_listed_for_a_whole_session_goes() {
        let mut memory = wanted();
        listed(&mut memory, &[1, 2]);
        memory.handle_disconnect(Instant::ZERO);
        listed(&mut memory, &[1]);

        memory.handle_disconnect(Instant::ZERO);

        assert_eq!(memory.pools().len(), 1);
    }

    #[test]
    fn pools_are_followed_only_while_they_are_wanted() {
        let mut memory = Memory::default();
        assert_eq!(listed(&mut memory, &[1, 2]), [0; 0]);

        memory.set_wanted(true, Instant::ZERO);
        assert_eq!(memory.poll_requests(Instant::ZERO).len(), 2);

        assert_eq!(
            memory.set_wanted(false, Instant::ZERO),
            [PoolId(1), PoolId(2)]
        );
        assert_eq!(memory.set_wanted(false, Instant::ZERO), []);
        assert_eq!(listed(&mut memory, &[1, 2]), [0; 0]);
        assert_eq!(memory.pools().len(), 2);
    }

    #[test]
    fn pools_of_a_relay_that_is_away_are_not_asked_for() {
        let mut memory = Memory::default();
        listed(&mut memory, &[1]);
        memory.handle_disconnect(Instant::ZERO);

        memory.set_wanted(true, Instant::ZERO);

        assert_eq!(memory.poll_requests(Instant::ZERO), []);
        assert_eq!(listed(&mut memory, &[1]), [1]);
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

    fn unreachable_frame() -> Frame {
        panic!("no replica is asked for a pool that is not listed")
    }

    #[test]
    fn tables_beyond_a_relays_share_of_memory_are_refused_and_room_comes_back() {
        let key = Arc::new(MixKey::from_bytes(&[7; 32]));
        let config = ReplicaConfig::with_keys(vec![Arc::clone(&key)]);
        let list = |memory: &mut Memory, ids: &[u64]| {
            let pools = ids.iter().copied().map(pool).collect();
            memory.handle_catalog((Vec::new(), pools), &config, Instant::ZERO);
            memory.poll_requests(Instant::ZERO);
        };
        let geometry = Geometry::for_capacity(300_000, key.id());
        let begin = Frame::Begin(Begin {
            epoch: Epoch::new(1, 0),
            seq: Seq(0),
            geometry,
            chunks: Announced::All,
        });
        let begun = |memory: &mut Memory, id| {
            memory.feed(PoolId(id), |replica| {
                replica.handle_frame(SubscriptionId(1), begin.clone(), Instant::ZERO)
            })
        };
        let mut memory = Memory::new(geometry.bytes() + 3 * geometry.chunk_bytes());
        memory.set_wanted(true, Instant::ZERO);

        list(&mut memory, &[1, 2]);
        assert_eq!(begun(&mut memory, 1), Ok(()));
        let limit = 3;
        let chunks = geometry.chunks();
        assert_eq!(
            begun(&mut memory, 2),
            Err(ReplicaError::TooLarge { chunks, limit })
        );

        list(&mut memory, &[3]);
        assert_eq!(begun(&mut memory, 3), Ok(()));
    }
}
