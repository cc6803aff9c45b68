//! The request connections that are open now, by relay.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kvgrid_core::RelayId;
use quinn::Connection;

/// Request connections by relay. Clones share them; readers never wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links(Arc<ArcSwap<BTreeMap<RelayId, Connection>>>);

impl Links {
    /// The connection to a relay, if there is one.
    pub(crate) fn get(&self, relay: &RelayId) -> Option<Connection> {
        self.0.load().get(relay).cloned()
    }

    /// One connection, for tests of what uses it.
    #[cfg(test)]
    pub(crate) fn of(relay: RelayId, connection: Connection) -> Self {
        let links = BTreeMap::from([(relay, connection)]);
        Self(Arc::new(ArcSwap::from_pointee(links)))
    }

    /// Makes `connection` the one to use for `relay` for as long as the guard lives.
    pub(super) fn open(&self, relay: RelayId, connection: Connection) -> OpenLink {
        self.0.rcu(|links| {
            let mut links = BTreeMap::clone(links);
            links.insert(relay.clone(), connection.clone());
            links
        });
        OpenLink {
            links: self.clone(),
            relay,
            connection,
        }
    }
}

/// Keeps a connection listed; dropping it takes the connection off the list.
#[derive(Debug)]
pub(super) struct OpenLink {
    links: Links,
    relay: RelayId,
    connection: Connection,
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        let own = self.connection.stable_id();
        self.links.0.rcu(|links| {
            let mut links = BTreeMap::clone(links);
            // A newer connection may have taken the place already.
            if links.get(&self.relay).map(Connection::stable_id) == Some(own) {
                links.remove(&self.relay);
            }
            links
        });
    }
}
