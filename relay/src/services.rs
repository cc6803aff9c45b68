//! What a relay does with a connection to an edge, whoever has dialled it.

use std::sync::Arc;

use kvgrid_runtime::{PeerConnection, Tasks};

use crate::proxy::{self, ProxyContext};
use crate::publish::{self, Hub};

/// Serves edges; clones share it.
#[derive(Clone)]
pub(crate) struct Services {
    hub: Hub,
    proxy: Arc<ProxyContext>,
    tasks: Tasks,
}

impl Services {
    /// Tells edges what `hub` knows, and takes their requests to `proxy`.
    pub(crate) fn new(hub: Hub, proxy: Arc<ProxyContext>, tasks: Tasks) -> Self {
        Self { hub, proxy, tasks }
    }

    /// Serves a view connection to its end, in a task of its own.
    pub(crate) fn serve_view(&self, peer: PeerConnection) {
        let serving = publish::serve(self.hub.clone(), peer);
        self.tasks.spawn("view session", serving);
    }

    /// Serves a request connection to its end, in a task of its own.
    pub(crate) fn serve_requests(&self, peer: PeerConnection) {
        let serving = proxy::serve_requests(peer, Arc::clone(&self.proxy));
        self.tasks.spawn("request session", serving);
    }
}
