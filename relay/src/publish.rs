//! Tells edges what the site has cached, how loaded it is and what it serves.
//!
//! The [`Hub`] is where the relay's other parts put what they know: pools through a
//! [`PoolPublisher`] each, the [`Catalog`] and the load as watched values. Each edge has one
//! session, which pulls from the hub at its own pace: nothing is queued for it but what its
//! QUIC connection holds, so a slow edge costs neither the relay nor another edge anything.

mod bucket;
mod card;
mod control;
mod feed;
mod forms;
mod pool;
mod session;
mod sessions;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvgrid_core::PoolId;
use kvgrid_core::filter::MixKey;
use kvgrid_core::load::LoadSample;
use kvgrid_core::replication::PublisherConfig;
use kvgrid_core::view::{CardDigest, ModelView, PoolFacts};
use kvgrid_runtime::Clock;
use tokio::sync::{Notify, watch};

pub(crate) use pool::{PoolPublisher, PoolShape, PoolSpec, PoolStatus};
pub(crate) use session::serve;

use crate::gossip::Members;
use crate::load::Gateway;
use pool::Pool;
use sessions::Sessions;

/// What a hub is made of.
pub(crate) struct HubConfig {
    /// The grid's key, which mixes the hashes of all pools.
    pub(crate) key: Arc<MixKey>,
    /// Grows with every start of the relay.
    pub(crate) incarnation: u64,
    /// How pools are batched and remembered.
    pub(crate) publisher: PublisherConfig,
    /// Counts the edges' requests.
    pub(crate) gateway: Gateway,
    /// The process's clock.
    pub(crate) clock: Clock,
}

/// What the site serves; its pools are told by their publishers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// The models.
    pub(crate) models: Vec<ModelView>,
    /// Their cards' bytes, for edges that ask.
    pub(crate) cards: BTreeMap<CardDigest, Bytes>,
}

/// How the offered pools are fed.
pub(crate) type Facts = Arc<Vec<(PoolId, PoolFacts)>>;

type Pools = BTreeMap<PoolId, Arc<Pool>>;

/// What edges are told; clones share it.
#[derive(Clone)]
pub(crate) struct Hub(Arc<Inner>);

struct Inner {
    config: HubConfig,
    catalog: watch::Sender<Arc<Catalog>>,
    load: watch::Sender<LoadSample>,
    members: watch::Sender<Members>,
    facts: watch::Sender<Facts>,
    leaving: watch::Sender<bool>,
    pools: watch::Sender<Arc<Pools>>,
    sessions: Sessions,
    /// Wakes who feeds the pools: what edges want of one has changed.
    wishes: Arc<Notify>,
}

impl Hub {
    /// A hub without models, load or pools.
    pub(crate) fn new(config: HubConfig) -> Self {
        Self(Arc::new(Inner {
            config,
            catalog: watch::Sender::default(),
            load: watch::Sender::default(),
            members: watch::Sender::default(),
            facts: watch::Sender::default(),
            leaving: watch::Sender::new(false),
            pools: watch::Sender::default(),
            sessions: Sessions::default(),
            wishes: Arc::default(),
        }))
    }

    /// Where the site's models and cards are told.
    pub(crate) fn catalog(&self) -> &watch::Sender<Arc<Catalog>> {
        &self.0.catalog
    }

    /// Where the site's load is told.
    pub(crate) fn load(&self) -> &watch::Sender<LoadSample> {
        &self.0.load
    }

    /// Where it is told which relays are alive.
    pub(crate) fn members(&self) -> &watch::Sender<Members> {
        &self.0.members
    }

    /// Where it is told how pools are fed, no more often than edges should hear of it.
    pub(crate) fn facts(&self) -> &watch::Sender<Facts> {
        &self.0.facts
    }

    /// Tells edges to send no new requests.
    pub(crate) fn leave(&self) {
        self.0.leaving.send_replace(true);
    }

    /// Edges with a session.
    pub(crate) fn edges(&self) -> usize {
        self.0.sessions.len()
    }

    /// Offers a pool to edges until the publisher is dropped.
    ///
    /// It begins partial: who feeds it says when it knows more.
    pub(crate) fn pool(&self, spec: &PoolSpec) -> PoolPublisher {
        let config = &self.0.config;
        let pool = Arc::new(Pool::new(spec, config, &self.0.wishes));
        self.0.pools.send_modify(|pools| {
            Arc::make_mut(pools).insert(pool.id(), Arc::clone(&pool));
        });
        PoolPublisher::new(pool, self.clone())
    }

    /// Notified when edges want whole hashes of a pool, or no more: [`PoolPublisher::tell_exact`]
    /// may have something to do.
    pub(crate) fn wishes(&self) -> Arc<Notify> {
        Arc::clone(&self.0.wishes)
    }

    /// Pools that are offered now.
    #[cfg(test)]
    pub(crate) fn pools(&self) -> usize {
        self.0.pools.borrow().len()
    }

    /// The ages that edges are told of them.
    #[cfg(test)]
    pub(crate) fn eviction_ages(&self) -> Vec<Option<std::time::Duration>> {
        let pools = self.0.pools.borrow();
        pools
            .values()
            .map(|pool| pool.view().eviction_age)
            .collect()
    }

    fn remove_pool(&self, pool: &Arc<Pool>) {
        self.0.pools.send_if_modified(|pools| {
            let same = |known: &Arc<Pool>| Arc::ptr_eq(known, pool);
            if !pools.get(&pool.id()).is_some_and(same) {
                return false;
            }
            Arc::make_mut(pools).remove(&pool.id());
            true
        });
    }

    fn find_pool(&self, id: PoolId) -> Option<Arc<Pool>> {
        self.0.pools.borrow().get(&id).cloned()
    }
}

#[cfg(test)]
mod tests;
