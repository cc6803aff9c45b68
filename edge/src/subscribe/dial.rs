//! Reaches one relay again and again.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::{collections::BTreeSet, io};

use kvgrid_core::RelayId;
use kvgrid_core::backoff::Backoff;
use kvgrid_runtime::{CloseReason, ConnectError, Expected, PeerConnection, Protocol, resolve};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use thiserror::Error;
use tracing::{info, warn};

use super::memory::Memory;
use super::relay_state::RelayIdentity;
use super::session::{Session, SessionEnd};
use super::{Context, Publish};

/// Why a relay was not reached. The next attempt follows.
#[derive(Debug, Error)]
enum ReachError {
    #[error("{seed} can't be resolved: {error}")]
    Resolve { seed: String, error: io::Error },
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{0} is reached by another seed already")]
    Claimed(RelayId),
    #[error("{0} answers, which is no relay")]
    NoRelay(String),
}

/// Relays that a seed's task has claimed, so that two seeds of one relay don't fight over it.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims(Arc<Mutex<BTreeSet<RelayId>>>);

impl Claims {
    fn take(&self, relay: &RelayId) -> Option<Claim> {
        let taken = self.lock().insert(relay.clone());
        taken.then(|| Claim {
            claims: self.clone(),
            relay: relay.clone(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<RelayId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Claim {
    claims: Claims,
    relay: RelayId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.relay);
    }
}

/// Both connections to a relay.
struct Reached {
    identity: RelayIdentity,
    view: PeerConnection,
    request: PeerConnection,
    _claim: Claim,
}

/// Dials `seed` until the tasks stop, and serves each connection to its end.
pub(super) async fn follow(context: Context, publish: Publish, seed: String, jitter_seed: u64) {
    let mut backoff = Backoff::new(context.backoff);
    let mut rng = SmallRng::seed_from_u64(jitter_seed);
    let mut memory = Memory::default();
    let stop = context.tasks.clone();
    while !stop.is_stopping() {
        // Cancel safe: a connection that is not up yet is dropped, which closes it.
        let reached = tokio::select! {
            () = stop.stopping() => return,
            reached = reach(&context, &seed) => reached,
        };
        match reached {
            Ok(reached) => {
                let relay = reached.identity.relay.clone();
                backoff.handle_up(context.clock.now());
                let end = serve(&context, &publish, &mut memory, reached).await;
                backoff.handle_down(context.clock.now());
                info!(%relay, seed, reason = %end, "Relay disconnected");
            }
            Err(error) => warn!(seed, %error, "Relay not reached"),
        }
        let delay = backoff.next_delay(&mut rng);
        tokio::select! {
            () = stop.stopping() => return,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

async fn serve(
    context: &Context,
    publish: &Publish,
    memory: &mut Memory,
    reached: Reached,
) -> SessionEnd {
    let Reached {
        identity,
        view,
        request,
        _claim,
    } = reached;
    let _link = context
        .links
        .open(identity.relay.clone(), request.connection.clone());
    publish.update(|state| {
        // Another relay at the same address: what the last one told is not this one's.
        if state.identity.as_ref() != Some(&identity) {
            *state = super::RelayState::default();
            *memory = Memory::default();
        }
        state.identity = Some(identity.clone());
        state.connected = true;
        state.draining = false;
    });
    let (view_end, request_end) = (view.connection.clone(), request.connection.clone());
    let end = Session::run(context, publish, memory, view, request).await;
    let reason = match end {
        SessionEnd::Stopping => CloseReason::Stopping,
        _ => CloseReason::Done,
    };
    reason.close(&view_end);
    reason.close(&request_end);
    let pools = memory.pools();
    publish.update(|state| {
        state.connected = false;
        state.sample = None;
        state.pools = pools;
    });
    end
}

async fn reach(context: &Context, seed: &str) -> Result<Reached, ReachError> {
    let addresses = resolve(seed).await.map_err(|error| ReachError::Resolve {
        seed: seed.into(),
        error,
    })?;
    let mut last = None;
    for address in addresses {
        match reach_at(context, address).await {
            Ok(reached) => return Ok(reached),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| ReachError::Resolve {
        seed: seed.into(),
        error: io::ErrorKind::NotFound.into(),
    }))
}

async fn reach_at(context: &Context, address: SocketAddr) -> Result<Reached, ReachError> {
    let node = &context.node;
    let view = node
        .connect(address, Protocol::View, &Expected::AnyRelay)
        .await?;
    let Some((site, relay)) = view.peer.as_relay() else {
        return Err(ReachError::NoRelay(view.peer.to_string()));
    };
    let identity = RelayIdentity {
        relay: relay.clone(),
        site: site.clone(),
        region: view.peer.region().cloned(),
        labels: view.peer.labels().clone(),
    };
    let Some(claim) = context.claims.take(&identity.relay) else {
        view.close(CloseReason::Done);
        return Err(ReachError::Claimed(identity.relay));
    };
    let expected = Expected::Relay(identity.relay.clone());
    let request = node.connect(address, Protocol::Request, &expected).await?;
    Ok(Reached {
        identity,
        view,
        request,
        _claim: claim,
    })
}
