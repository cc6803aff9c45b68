//! Connections from relays that dial this edge because it can't dial them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvgrid_runtime::{CloseReason, PeerConnection, Protocol};
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::Context;
use super::directory::{Directory, Event};
use super::pairs::{Half, Met, Pairs};

/// Both connections of one relay, dialled by it.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) view: PeerConnection,
    pub(super) request: PeerConnection,
}

impl Pair {
    pub(super) fn close(&self, reason: CloseReason) {
        self.view.close(reason);
        self.request.close(reason);
    }
}

/// Holds the newest pair of a relay until its follower takes it; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Newest(Arc<Place>);

#[derive(Debug, Default)]
struct Place {
    pair: Mutex<Option<Pair>>,
    filled: Notify,
}

impl Newest {
    /// Takes the place of a pair that still waits.
    pub(super) fn put(&self, pair: Pair) {
        if let Some(older) = self.lock().replace(pair) {
            older.close(CloseReason::Replaced);
        }
        self.0.filled.notify_one();
    }

    pub(super) fn take(&self) -> Option<Pair> {
        self.lock().take()
    }

    /// Waits until there is a pair, and leaves it there. Cancel safe; one task may wait.
    pub(super) async fn filled(&self) {
        while self.lock().is_none() {
            self.0.filled.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pair>> {
        self.0.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes connections from relays, and tells the directory of each pair.
pub(super) async fn accept(context: Context, directory: Directory) {
    let mut pairs = Pairs::default();
    loop {
        // Both arms are cancel safe.
        tokio::select! {
            peer = context.node.accept() => match peer {
                Some(peer) => take(&context, &directory, &mut pairs, peer).await,
                None => return,
            },
            () = context.clock.until(pairs.poll_timeout()) => {}
        }
        while let Some(late) = pairs.poll_late(context.clock.now()) {
            debug!(peer = %late.peer, protocol = %late.protocol, "Relay dialled only one of two");
            late.close(CloseReason::Done);
        }
    }
}

async fn take(
    context: &Context,
    directory: &Directory,
    pairs: &mut Pairs<PeerConnection>,
    peer: PeerConnection,
) {
    let half = match peer.protocol {
        Protocol::View => Half::View,
        Protocol::Request => Half::Request,
        Protocol::Gossip => return peer.close(CloseReason::Role),
    };
    let Some((_, relay)) = peer.peer.as_relay() else {
        // The node lets only relays in.
        return peer.close(CloseReason::Role);
    };
    let relay = relay.clone();
    pairs.forget_if(&relay, |half| half.connection.close_reason().is_some());
    match pairs.handle_half(relay.clone(), half, peer, context.clock.now()) {
        Met::Waits { replaced } => {
            if let Some(replaced) = replaced {
                replaced.close(CloseReason::Replaced);
            }
        }
        Met::Full(peer) => {
            warn!(%relay, "Too many relays dial at once");
            peer.close(CloseReason::Limit);
        }
        Met::Pair { view, request } => {
            let pair = Pair { view, request };
            // Two certificates of one name: the view of one must not stand for the other.
            if pair.view.peer != pair.request.peer {
                warn!(view = %pair.view.peer, request = %pair.request.peer, "Two relays dial under one name");
                return pair.close(CloseReason::Protocol);
            }
            debug!(%relay, "Relay has dialled");
            directory.tell(Event::Dialled { relay, pair }).await;
        }
    }
}
