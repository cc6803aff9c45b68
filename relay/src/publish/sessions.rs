//! Who has a session: the newest connection of each edge.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvgrid_core::EdgeId;
use kvgrid_runtime::CloseReason;
use quinn::Connection;

/// Most edges at a time; more are turned away.
const MAX_EDGES: usize = 1024;

/// Edges and their connections.
#[derive(Default)]
pub(super) struct Sessions(Mutex<BTreeMap<EdgeId, Connection>>);

impl Sessions {
    /// Takes a connection in and closes the edge's older one; false if there are too many.
    pub(super) fn enter(&self, edge: &EdgeId, connection: &Connection) -> bool {
        let mut sessions = self.lock();
        if sessions.len() >= MAX_EDGES && !sessions.contains_key(edge) {
            return false;
        }
        if let Some(older) = sessions.insert(edge.clone(), connection.clone()) {
            CloseReason::Replaced.close(&older);
        }
        true
    }

    /// Takes a connection out, unless a newer one has taken its place.
    pub(super) fn leave(&self, edge: &EdgeId, connection: &Connection) {
        let mut sessions = self.lock();
        let is_newest = |newest: &Connection| newest.stable_id() == connection.stable_id();
        if sessions.get(edge).is_some_and(is_newest) {
            sessions.remove(edge);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EdgeId, Connection>> {
        // The map is whole after every statement, so a panic elsewhere can't spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
