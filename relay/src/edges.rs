//! Dials the edges that a relay is given, where they can't dial it.
//!
//! Each name is looked up again and again, and each address that it leads to has a task that
//! keeps a view and a request connection up. Once they are up they are served as those are
//! that edges have dialled. An edge that several addresses lead to is dialled at one of them:
//! the edge takes the newest pair of a relay, so that two would replace each other for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use kvgrid_core::EdgeId;
use kvgrid_core::backoff::{Backoff, BackoffConfig};
use kvgrid_runtime::{
    Clock, CloseReason, ConnectError, Expected, Node, PeerConnection, Protocol, Tasks, resolve,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::services::Services;

/// How often names are looked up again: they may lead to other edges by then.
const AGAIN: Duration = Duration::from_secs(10);
/// Most addresses of all names together; those beyond it are not dialled.
const ADDRESSES: usize = 1024;

/// What keeping up connections to edges needs.
#[derive(Clone)]
pub(crate) struct Dialler {
    node: Node,
    services: Services,
    clock: Clock,
    tasks: Tasks,
    reached: Reached,
}

/// Both connections to an edge.
struct Pair {
    edge: EdgeId,
    view: PeerConnection,
    request: PeerConnection,
    /// Nobody else keeps connections to this edge meanwhile.
    _reached: Place,
}

impl Dialler {
    /// Hands connections to `services`.
    pub(crate) fn new(node: Node, services: Services, clock: Clock, tasks: Tasks) -> Self {
        Self {
            node,
            services,
            clock,
            tasks,
            reached: Reached::default(),
        }
    }

    /// Keeps up connections to all edges that these names lead to, `host:port`; never ends.
    pub(crate) async fn run(self, names: Vec<String>, luck: u64) {
        let mut found = BTreeMap::new();
        let mut kept: BTreeMap<SocketAddr, CancellationToken> = BTreeMap::new();
        let mut backoff = Backoff::new(BackoffConfig::default());
        let mut rng = SmallRng::seed_from_u64(luck);
        loop {
            let all_known = look_up(&names, &mut found).await;
            let wanted = wanted(&found);
            kept.retain(|address, stop| {
                let stays = wanted.contains(address);
                if !stays {
                    stop.cancel();
                }
                stays
            });
            for (address, luck) in wanted.into_iter().zip(luck..) {
                kept.entry(address)
                    .or_insert_with(|| self.keep(address, luck));
            }
            let delay = if all_known {
                backoff = Backoff::new(BackoffConfig::default());
                AGAIN
            } else {
                backoff.next_delay(&mut rng)
            };
            tokio::time::sleep(delay).await;
        }
    }

    /// Keeps connections up to who answers at an address. Once that is stopped, a pair that is
    /// up lives on, but no other follows it.
    fn keep(&self, address: SocketAddr, luck: u64) -> CancellationToken {
        let stop = CancellationToken::new();
        let (dialler, given_up) = (self.clone(), stop.clone());
        let end = self.tasks.token().clone();
        self.tasks.spawn("dial an edge", async move {
            let keeping = dialler.keep_up(address, given_up, luck);
            end.run_until_cancelled(keeping).await;
        });
        stop
    }

    async fn keep_up(self, address: SocketAddr, stop: CancellationToken, luck: u64) {
        let mut backoff = Backoff::new(BackoffConfig::default());
        let mut rng = SmallRng::seed_from_u64(luck);
        while !stop.is_cancelled() {
            let delay = match self.dial(address).await {
                Ok(Some(pair)) => {
                    backoff.handle_up(self.clock.now());
                    self.serve(pair, address).await;
                    backoff.handle_down(self.clock.now());
                    backoff.next_delay(&mut rng)
                }
                Ok(None) => AGAIN,
                Err(error) => {
                    warn!(%error, "Edge not reached");
                    backoff.next_delay(&mut rng)
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Both connections to the edge at an address; `None` if it is reached at another.
    async fn dial(&self, address: SocketAddr) -> Result<Option<Pair>, ConnectError> {
        let any = Expected::AnyEdge;
        let view = self.node.connect(address, Protocol::View, &any).await?;
        let edge = view.peer.as_edge().map(|(_, edge)| edge.clone());
        let place = edge.and_then(|edge| Some((self.reached.take(&edge)?, edge)));
        let Some((place, edge)) = place else {
            debug!(%address, peer = %view.peer, "Edge is reached at another address");
            view.close(CloseReason::Done);
            return Ok(None);
        };
        // Where several edges share an address, the second connection may lead to another.
        let same = Expected::Edge(edge.clone());
        match self.node.connect(address, Protocol::Request, &same).await {
            Ok(request) => Ok(Some(Pair {
                edge,
                view,
                request,
                _reached: place,
            })),
            Err(error) => {
                view.close(CloseReason::Done);
                Err(error)
            }
        }
    }

    /// Serves both connections until one of them ends, and ends the other.
    async fn serve(&self, pair: Pair, address: SocketAddr) {
        let (view, request) = (
            pair.view.connection.clone(),
            pair.request.connection.clone(),
        );
        info!(edge = %pair.edge, %address, "Edge reached");
        self.services.serve_view(pair.view);
        self.services.serve_requests(pair.request);
        let ended = tokio::select! {
            ended = view.closed() => ended,
            ended = request.closed() => ended,
        };
        info!(edge = %pair.edge, %address, reason = %ended, "Edge disconnected");
        CloseReason::Done.close(&view);
        CloseReason::Done.close(&request);
    }
}

/// Looks all names up at once; whether all are known. One that isn't any more keeps what it
/// led to.
async fn look_up(names: &[String], found: &mut BTreeMap<String, Vec<SocketAddr>>) -> bool {
    let answers = join_all(names.iter().map(|name| resolve(name))).await;
    let mut all_known = true;
    for (name, answer) in names.iter().zip(answers) {
        match answer {
            Ok(addresses) => {
                found.insert(name.clone(), addresses);
            }
            Err(error) => {
                warn!(name, %error, "Edge's address can't be resolved");
                all_known = false;
            }
        }
    }
    all_known
}

fn wanted(found: &BTreeMap<String, Vec<SocketAddr>>) -> BTreeSet<SocketAddr> {
    let all: BTreeSet<SocketAddr> = found.values().flatten().copied().collect();
    if all.len() > ADDRESSES {
        warn!(limit = ADDRESSES, "More edges than a relay dials");
    }
    all.into_iter().take(ADDRESSES).collect()
}

/// Edges to which connections are up or under way; clones share it. There are at most as many
/// as addresses that are dialled.
#[derive(Clone, Debug, Default)]
struct Reached(Arc<Mutex<BTreeSet<EdgeId>>>);

impl Reached {
    /// A place for this edge, if nobody has it.
    fn take(&self, edge: &EdgeId) -> Option<Place> {
        let is_new = self.lock().insert(edge.clone());
        is_new.then(|| Place {
            reached: self.clone(),
            edge: edge.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<EdgeId>> {
        // The set is whole after every statement, so a panic elsewhere can't spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes sure that an edge is dialled once; dropping it lets others dial.
struct Place {
    reached: Reached,
    edge: EdgeId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.reached.lock().remove(&self.edge);
    }
}

#[cfg(test)]
mod tests;
