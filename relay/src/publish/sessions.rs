//! Who has a session: the newest connection of each edge.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvgrid_core::EdgeId;
use kvgrid_runtime::CloseReason;
use quinn::Connection;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most edges at a time; more are turned away.
const MAX_EDGES: usize = 1024;

/// Edges and their connections.
pub(super) struct Sessions {
    newest: Mutex<BTreeMap<EdgeId, Connection>>,
    /// For connections that have said nothing yet.
    arriving: Semaphore,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            newest: Mutex::default(),
            arriving: Semaphore::new(MAX_EDGES),
        }
    }
}

impl Sessions {
    /// A place for a connection that has said nothing yet, if there is one.
    pub(super) fn arrive(&self) -> Option<SemaphorePermit<'_>> {
        self.arriving.try_acquire().ok()
    }

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
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
