//! Finds relays at the addresses that a relay is told to begin with.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use kvgrid_core::backoff::{Backoff, BackoffConfig};
use kvgrid_runtime::{ConnectError, Expected, Node, PeerConnection, Protocol, resolve};
use quinn::Connection;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::mpsc;
use tracing::warn;

use super::Event;

/// How often a seed that led to relays is looked at again: its name may lead to others by then.
const AGAIN: Duration = Duration::from_secs(30);

/// Looks a seed up and dials what it leads to, again and again.
pub(super) async fn seek(node: Node, events: mpsc::Sender<Event>, seed: String, luck: u64) {
    let config = BackoffConfig::default();
    let mut backoff = Backoff::new(config);
    let mut rng = SmallRng::seed_from_u64(luck);
    let mut known = BTreeMap::new();
    loop {
        let delay = if look(&node, &events, &seed, &mut known).await {
            backoff = Backoff::new(config);
            AGAIN
        } else {
            backoff.next_delay(&mut rng)
        };
        tokio::time::sleep(delay).await;
    }
}

/// Dials the addresses of a seed to which there is no connection; whether all of them are well.
async fn look(
    node: &Node,
    events: &mpsc::Sender<Event>,
    seed: &str,
    known: &mut BTreeMap<SocketAddr, Option<Connection>>,
) -> bool {
    let addresses = match resolve(seed).await {
        Ok(addresses) => addresses,
        Err(error) => {
            warn!(seed, %error, "Seed can't be resolved");
            return false;
        }
    };
    known.retain(|address, _| addresses.contains(address));
    let mut well = true;
    for address in addresses {
        if known.get(&address).is_some_and(is_well) {
            continue;
        }
        match dial(node, address).await {
            Ok(None) => {
                known.insert(address, None);
            }
            Ok(Some(connection)) => {
                known.insert(address, Some(connection.connection.clone()));
                tell(events, connection, address).await;
            }
            Err(error) => {
                warn!(seed, %error, "Relay not reached");
                well = false;
            }
        }
    }
    well
}

/// An address is well if it is our own, or the connection made through it is up.
fn is_well(connection: &Option<Connection>) -> bool {
    let up = |connection: &Connection| connection.close_reason().is_none();
    connection.as_ref().is_none_or(up)
}

async fn tell(events: &mpsc::Sender<Event>, connection: PeerConnection, address: SocketAddr) {
    let Some((_, relay)) = connection.peer.as_relay() else {
        return;
    };
    let relay = relay.clone();
    let dialled = true;
    let up = Event::Up {
        connection,
        dialled,
    };
    let _ = events.send(up).await;
    let _ = events.send(Event::Found(relay, address)).await;
}

/// The relay at an address; `None` if that is ourselves.
async fn dial(node: &Node, address: SocketAddr) -> Result<Option<PeerConnection>, ConnectError> {
    let connection = node
        .connect(address, Protocol::Gossip, &Expected::AnyRelay)
        .await?;
    let ourselves = connection.peer == node.identity();
    Ok((!ourselves).then_some(connection))
}
