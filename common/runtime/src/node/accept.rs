//! Takes connections from outside: handshakes side by side, each with a deadline.

use std::sync::Arc;
use std::time::Duration;

use kvgrid_certs::Accepts;
use quinn::{Connecting, Incoming};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::{debug, info};

use super::announce::announced;
use super::dial::{PeerOfError, peer_of_connection};
use super::{CloseReason, Node, PeerConnection, Protocol};

/// Handshakes that QUIC itself holds before we look at them.
pub(super) const MAX_INCOMING: usize = 1024;
/// Handshakes at the same time; beyond it they are refused, and the peer tries again.
const HANDSHAKES: usize = 256;
/// Handshakes beyond which a peer must show that it receives at the address it sends from.
const RETRY_ABOVE: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a connection from outside is not taken. The peer is at fault.
#[derive(Debug, Error)]
enum Refusal {
    #[error("no handshake within {HANDSHAKE_TIMEOUT:?}")]
    Timeout,
    #[error("its first packet names no protocol that is served here")]
    Unannounced,
    #[error(transparent)]
    Handshake(#[from] quinn::ConnectionError),
    #[error(transparent)]
    Peer(#[from] PeerOfError),
    #[error("{peer} may not speak {protocol}")]
    Role {
        peer: Box<kvgrid_certs::Identity>,
        protocol: Protocol,
    },
}

pub(super) async fn run(
    node: Node,
    serves: Vec<(Protocol, Accepts)>,
    accepted: mpsc::Sender<PeerConnection>,
) {
    let serves: Arc<[_]> = serves.into();
    let permits = Arc::new(Semaphore::new(HANDSHAKES));
    let tasks = node.0.tasks.clone();
    loop {
        // Accepting loses nothing when it is dropped, and stopping comes only once.
        let incoming = tokio::select! {
            () = tasks.stopping() => return,
            incoming = node.0.endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        let Some((incoming, permit)) = admit(incoming, &permits) else {
            continue;
        };
        let taking = take(
            node.clone(),
            incoming,
            Arc::clone(&serves),
            accepted.clone(),
        );
        tasks.spawn("handshake", async move {
            taking.await;
            drop(permit);
        });
    }
}

/// Turns away what is too much; a peer that must prove its address comes back.
fn admit(incoming: Incoming, permits: &Arc<Semaphore>) -> Option<(Incoming, OwnedSemaphorePermit)> {
    let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
        incoming.refuse();
        return None;
    };
    let busy = HANDSHAKES - permits.available_permits() > RETRY_ABOVE;
    if busy && !incoming.remote_address_validated() && incoming.may_retry() {
        // It fails only for an incoming that may not be asked, which was checked.
        let _ = incoming.retry();
        return None;
    }
    Some((incoming, permit))
}

async fn take(
    node: Node,
    incoming: Incoming,
    serves: Arc<[(Protocol, Accepts)]>,
    accepted: mpsc::Sender<PeerConnection>,
) {
    let address = incoming.remote_address();
    let connection = match handshake(&node, incoming, &serves).await {
        Ok(connection) => connection,
        Err(error) => {
            info!(%address, %error, "Connection refused");
            return;
        }
    };
    debug!(%address, peer = %connection.peer, protocol = %connection.protocol, "Connection taken");
    let tasks = &node.0.tasks;
    tokio::select! {
        () = tasks.stopping() => {}
        // An error means that nobody accepts any more, which is the node's end too.
        _ = accepted.send(connection) => {}
    }
}

/// Begins the handshake, with the settings for what the peer has announced.
fn begin(node: &Node, incoming: Incoming) -> Result<Connecting, Refusal> {
    let Some(settings) = &node.0.by_protocol else {
        return Ok(incoming.accept()?);
    };
    let protocol = announced(&incoming.orig_dst_cid());
    let Some(settings) = protocol.and_then(|protocol| settings.get(&protocol)) else {
        incoming.refuse();
        return Err(Refusal::Unannounced);
    };
    Ok(incoming.accept_with(Arc::clone(settings))?)
}

async fn handshake(
    node: &Node,
    incoming: Incoming,
    serves: &[(Protocol, Accepts)],
) -> Result<PeerConnection, Refusal> {
    let connecting = begin(node, incoming)?;
    let connection = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting)
        .await
        .map_err(|_| Refusal::Timeout)??;
    let (protocol, peer) = peer_of_connection(&connection)?;
    let allowed = serves
        .iter()
        .any(|(p, accepts)| *p == protocol && accepts.includes(peer.identity.role().kind()));
    if !allowed {
        CloseReason::Role.close(&connection);
        return Err(Refusal::Role {
            peer: Box::new(peer.identity),
            protocol,
        });
    }
    if node.0.by_protocol.is_none() {
        node.0.transport.raise_streams(protocol, &connection);
    }
    node.end_with_certificate(&connection, &peer);
    Ok(PeerConnection {
        protocol,
        peer: peer.identity,
        connection,
    })
}
