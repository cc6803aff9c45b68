//! Reaches one relay again and again, and follows it while it is connected.
//!
//! A relay that dials this edge itself is taken as it comes, and its newest connections count:
//! they replace those that are up, whoever has dialled them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use kvgrid_core::RelayId;
use kvgrid_core::backoff::Backoff;
use kvgrid_runtime::{CloseReason, ConnectError, Expected, PeerConnection, Protocol, resolve};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use super::dialled::{Newest, Pair};
use super::directory::{Directory, Event};
use super::memory::Memory;
use super::relay_state::{RelayIdentity, RelayState};
use super::session::{Session, SessionEnd};
use super::{Context, Publish};

/// Why a relay was not reached. The next attempt follows.
#[derive(Debug, Error)]
enum ReachError {
    #[error("{address} can't be resolved: {error}")]
    Resolve { address: String, error: io::Error },
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{0} answers, which is no relay")]
    NoRelay(String),
}

/// What follows one relay.
pub(super) struct Follower {
    pub(super) context: Context,
    pub(super) publish: Publish,
    pub(super) directory: Directory,
    pub(super) relay: RelayId,
    /// Where to dial it.
    pub(super) addresses: watch::Receiver<Vec<String>>,
    /// View connections to it that others have made.
    pub(super) adopted: mpsc::Receiver<PeerConnection>,
    /// Connections that it has dialled itself.
    pub(super) dialled: Newest,
    /// Whether its pools are wanted.
    pub(super) wanted: watch::Receiver<bool>,
    pub(super) jitter_seed: u64,
}

/// Both connections to a relay.
struct Reached {
    identity: RelayIdentity,
    view: PeerConnection,
    request: PeerConnection,
}

impl Reached {
    fn new(view: PeerConnection, request: PeerConnection) -> Result<Self, ReachError> {
        let Some((site, relay)) = view.peer.as_relay() else {
            return Err(ReachError::NoRelay(view.peer.to_string()));
        };
        let identity = RelayIdentity {
            relay: relay.clone(),
            site: site.clone(),
            region: view.peer.region().cloned(),
            labels: view.peer.labels().clone(),
        };
        Ok(Self {
            identity,
            view,
            request,
        })
    }
}

/// Reaches the relay and serves each connection to its end; ends by being dropped.
pub(super) async fn run(mut follower: Follower) {
    let mut backoff = Backoff::new(follower.context.backoff);
    let mut rng = SmallRng::seed_from_u64(follower.jitter_seed);
    let mut memory = Memory::default();
    let mut delay = Duration::ZERO;
    loop {
        let (relay, clock) = (follower.relay.clone(), follower.context.clock);
        match follower.next_connection(delay, &mut memory).await {
            Ok(reached) => {
                backoff.handle_up(clock.now());
                let end = follower.serve(&mut memory, reached).await;
                backoff.handle_down(clock.now());
                info!(%relay, reason = %end, "Relay disconnected");
                if end.is_by_our_double() {
                    warn!(%relay, "Another process has this edge's certificate, and took its place");
                }
                if matches!(end, SessionEnd::Stopping) {
                    return;
                }
            }
            Err(error) => warn!(%relay, %error, "Relay not reached"),
        }
        delay = backoff.next_delay(&mut rng);
    }
}

impl Follower {
    /// A connection that another made, or one of our own after the delay.
    async fn next_connection(
        &mut self,
        delay: Duration,
        memory: &mut Memory,
    ) -> Result<Reached, ReachError> {
        self.addresses.mark_unchanged();
        let mut dial = std::pin::pin!(self.dial(delay));
        loop {
            // Cancel safe: a connection that is not up yet is dropped, which closes it.
            tokio::select! {
                biased;
                () = self.dialled.filled() => {
                    if let Some(Pair { view, request }) = self.dialled.take() {
                        return Reached::new(view, request);
                    }
                }
                Some(view) = self.adopted.recv() => {
                    return complete(&self.context, &self.relay, view).await;
                }
                reached = &mut dial => return reached,
                // It may be where it was not, or be back.
                Ok(()) = self.addresses.changed() => dial.set(self.dial(Duration::ZERO)),
                Ok(()) = self.wanted.changed() => {
                    let wanted = *self.wanted.borrow_and_update();
                    memory.set_wanted(wanted, self.context.clock.now());
                    let pools = memory.pools();
                    self.publish.update(|state| state.pools = pools);
                }
            }
        }
    }

    /// Dials the relay after a delay. The future keeps nothing of the follower.
    fn dial(&self, delay: Duration) -> impl Future<Output = Result<Reached, ReachError>> + use<> {
        let (context, relay) = (self.context.clone(), self.relay.clone());
        let mut addresses = self.addresses.clone();
        async move {
            sleep(delay).await;
            reach(&context, &relay, &mut addresses).await
        }
    }

    async fn serve(&mut self, memory: &mut Memory, reached: Reached) -> SessionEnd {
        let Reached {
            identity,
            view,
            request,
        } = reached;
        let relay = self.relay.clone();
        let link = self
            .context
            .links
            .open(relay.clone(), request.connection.clone());
        self.publish.update(|state| {
            // It has moved to another place: what it told before is not of this one.
            if state.identity.as_ref() != Some(&identity) {
                *state = RelayState::default();
                *memory = Memory::default();
            }
            state.identity = Some(identity.clone());
            state.connected = true;
            state.draining = false;
        });
        self.directory.tell(Event::Connected(relay.clone())).await;
        let (view_end, request_end) = (view.connection.clone(), request.connection.clone());
        let end = Session::run(self, memory, view, request).await;
        let reason = match end {
            SessionEnd::Stopping => CloseReason::Stopping,
            SessionEnd::Replaced => CloseReason::Replaced,
            _ => CloseReason::Done,
        };
        reason.close(&view_end);
        reason.close(&request_end);
        drop(link);
        let pools = memory.pools();
        let mut left = false;
        self.publish.update(|state| {
            left = state.draining;
            state.connected = false;
            state.sample = None;
            state.pools = pools;
        });
        self.directory.tell(Event::Lost { relay, left }).await;
        end
    }
}

/// Dials each of the relay's addresses until it answers; waits while there are none.
async fn reach(
    context: &Context,
    relay: &RelayId,
    addresses: &mut watch::Receiver<Vec<String>>,
) -> Result<Reached, ReachError> {
    // The sender is gone only with this task.
    if addresses.wait_for(|list| !list.is_empty()).await.is_err() {
        std::future::pending::<()>().await;
    }
    let list = addresses.borrow_and_update().clone();
    let mut last = None;
    for address in list {
        let found = resolve(&address).await;
        let found = found.map_err(|error| ReachError::Resolve { address, error });
        match found {
            Ok(found) => {
                for address in found {
                    match reach_at(context, relay, address).await {
                        Ok(reached) => return Ok(reached),
                        Err(error) => last = Some(error),
                    }
                }
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| ReachError::Resolve {
        address: relay.to_string(),
        error: io::ErrorKind::NotFound.into(),
    }))
}

async fn reach_at(
    context: &Context,
    relay: &RelayId,
    address: SocketAddr,
) -> Result<Reached, ReachError> {
    let expected = Expected::Relay(relay.clone());
    let view = context
        .node
        .connect(address, Protocol::View, &expected)
        .await?;
    complete(context, relay, view).await
}

/// Adds the request connection to a view connection.
async fn complete(
    context: &Context,
    relay: &RelayId,
    view: PeerConnection,
) -> Result<Reached, ReachError> {
    let expected = Expected::Relay(relay.clone());
    let address = view.connection.remote_address();
    let request = context
        .node
        .connect(address, Protocol::Request, &expected)
        .await;
    match request {
        Ok(request) => Reached::new(view, request),
        Err(error) => {
            view.close(CloseReason::Done);
            Err(error.into())
        }
    }
}
