//! Connections to other relays, made when there is something to send.
//!
//! Either end may dial. Of two connections between the same relays, the one that the lower
//! name has dialled is kept, which both ends decide alike.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use kvgrid_core::RelayId;
use kvgrid_core::membership::{Member, Scope};
use kvgrid_runtime::{
    CloseReason, ConnectError, Expected, Node, PeerConnection, Protocol, Tasks, resolve,
};
use quinn::{Connection, SendDatagramError};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::Event;

/// Packets that wait for a connection to one relay; the oldest goes first, as old news is
/// worth the least.
const QUEUE: usize = 8;

/// Relays to which something is kept: connections, queues, addresses. Members are fewer.
const LINKS: usize = 8192;

/// All connections of the gossip's task.
pub(super) struct Links {
    own: RelayId,
    scopes: Vec<Scope>,
    node: Node,
    events: mpsc::Sender<Event>,
    tasks: Tasks,
    links: BTreeMap<RelayId, Link>,
}

#[derive(Default)]
struct Link {
    up: Option<Up>,
    dialling: bool,
    /// Where a seed led to it, or we reached it last. Where it dials from is no such place:
    /// behind a NAT nobody answers there.
    seen_at: Option<SocketAddr>,
    queue: VecDeque<Bytes>,
}

struct Up {
    connection: Connection,
    /// Whether this end has dialled it.
    dialled: bool,
}

impl Links {
    pub(super) const fn new(
        own: RelayId,
        scopes: Vec<Scope>,
        node: Node,
        events: mpsc::Sender<Event>,
        tasks: Tasks,
    ) -> Self {
        Self {
            own,
            scopes,
            node,
            events,
            tasks,
            links: BTreeMap::new(),
        }
    }

    /// Sends a packet now, or once a connection is up.
    pub(super) fn send(&mut self, to: &Member, packet: Bytes) {
        if self.links.len() >= LINKS && !self.links.contains_key(&to.relay) {
            debug!(relay = %to.relay, "Too many relays to keep connections to");
            return;
        }
        let link = self.links.entry(to.relay.clone()).or_default();
        if let Some(up) = &link.up {
            send(&up.connection, packet);
            return;
        }
        if link.queue.len() >= QUEUE {
            link.queue.pop_front();
        }
        link.queue.push_back(packet);
        self.meet(to);
    }

    /// Dials a relay, unless a connection to it is up or under way.
    pub(super) fn meet(&mut self, to: &Member) {
        if self.links.len() >= LINKS && !self.links.contains_key(&to.relay) {
            return;
        }
        let link = self.links.entry(to.relay.clone()).or_default();
        if link.up.is_some() || link.dialling {
            return;
        }
        let mut addresses: Vec<String> = to
            .addresses
            .reachable(&self.scopes)
            .map(str::to_owned)
            .collect();
        addresses.extend(link.seen_at.map(|address| address.to_string()));
        if addresses.is_empty() {
            // It has to dial us.
            link.queue.clear();
            return;
        }
        link.dialling = true;
        let dialling = dial(
            self.node.clone(),
            to.relay.clone(),
            addresses,
            self.events.clone(),
        );
        self.spawn("dial a relay", dialling);
    }

    /// A connection is up: reads it, and sends what waited.
    pub(super) fn handle_up(&mut self, peer: &PeerConnection, dialled: bool) {
        let Some((_, relay)) = peer.peer.as_relay() else {
            peer.close(CloseReason::Role);
            return;
        };
        if *relay == self.own || self.links.len() >= LINKS && !self.links.contains_key(relay) {
            peer.close(CloseReason::Limit);
            return;
        }
        let connection = peer.connection.clone();
        let link = self.links.entry(relay.clone()).or_default();
        if dialled {
            link.dialling = false;
        }
        let kept_is_ours = self.own < *relay;
        if let Some(old) = &link.up
            && old.dialled != dialled
            && old.dialled == kept_is_ours
            && old.connection.close_reason().is_none()
        {
            CloseReason::Replaced.close(&connection);
            return;
        }
        if dialled {
            link.seen_at = Some(connection.remote_address());
        }
        for packet in link.queue.drain(..) {
            send(&connection, packet);
        }
        let up = Up {
            connection: connection.clone(),
            dialled,
        };
        if let Some(old) = link.up.replace(up) {
            CloseReason::Replaced.close(&old.connection);
        }
        let reading = read(connection, relay.clone(), self.events.clone());
        self.spawn("read gossip", reading);
    }

    /// A connection has ended.
    pub(super) fn handle_down(&mut self, relay: &RelayId, id: usize) {
        if let Some(link) = self.links.get_mut(relay) {
            let ended = |up: &Up| up.connection.stable_id() == id;
            link.up.take_if(|up| ended(up));
        }
    }

    /// A relay was not reached: what waited for it is lost.
    pub(super) fn handle_unreached(&mut self, relay: &RelayId) {
        if let Some(link) = self.links.get_mut(relay) {
            link.dialling = false;
            link.queue.clear();
        }
    }

    /// A seed led to a relay.
    pub(super) fn handle_found(&mut self, relay: &RelayId, address: SocketAddr) {
        if let Some(link) = self.links.get_mut(relay) {
            link.seen_at = Some(address);
        }
    }

    /// The relay is no member any more. Its address is kept, for it may be back: it is dialled
    /// anew then, even if QUIC has not noticed yet that nobody is at the other end.
    pub(super) fn forget(&mut self, relay: &RelayId) {
        if let Some(link) = self.links.get_mut(relay) {
            link.queue.clear();
            if let Some(up) = link.up.take_if(|up| up.dialled) {
                CloseReason::Done.close(&up.connection);
            }
            let alive = link.up.is_some() || link.dialling;
            if !alive && link.seen_at.is_none() {
                self.links.remove(relay);
            }
        }
    }

    fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.tasks.token().clone();
        self.tasks.spawn(name, async move {
            stop.run_until_cancelled(task).await;
        });
    }
}

fn send(connection: &Connection, packet: Bytes) {
    match connection.send_datagram(packet) {
        // A lost connection is told of by who reads it; the packet is lost like any other.
        Ok(()) | Err(SendDatagramError::ConnectionLost(_)) => {}
        Err(error) => {
            let peer = connection.remote_address();
            warn!(%peer, %error, "Gossip not sent");
        }
    }
}

async fn read(connection: Connection, relay: RelayId, events: mpsc::Sender<Event>) {
    while let Ok(bytes) = connection.read_datagram().await {
        // At the bound the packet is lost like any other.
        let _ = events.try_send(Event::Datagram(relay.clone(), bytes));
    }
    let id = connection.stable_id();
    let _ = events.send(Event::Down(relay, id)).await;
}

/// Dials each address until the relay answers.
async fn dial(node: Node, relay: RelayId, addresses: Vec<String>, events: mpsc::Sender<Event>) {
    let expected = Expected::Relay(relay.clone());
    for address in addresses {
        let found = match resolve(&address).await {
            Ok(found) => found,
            Err(error) => {
                debug!(%relay, address, %error, "Relay's address can't be resolved");
                continue;
            }
        };
        for address in found {
            match node.connect(address, Protocol::Gossip, &expected).await {
                Ok(connection) => {
                    let dialled = true;
                    let up = Event::Up {
                        connection,
                        dialled,
                    };
                    let _ = events.send(up).await;
                    return;
                }
                Err(error @ ConnectError::Unexpected { .. }) => {
                    warn!(%relay, %error, "Relay advertises another's address");
                }
                Err(error) => debug!(%relay, %error, "Relay not reached by gossip"),
            }
        }
    }
    let _ = events.send(Event::Unreached(relay)).await;
}
