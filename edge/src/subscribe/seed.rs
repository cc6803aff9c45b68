//! Finds relays at the addresses that an edge is told to begin with.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use kvgrid_core::RelayId;
use kvgrid_core::backoff::Backoff;
use kvgrid_runtime::{ConnectError, Expected, PeerConnection, Protocol, resolve};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::Context;
use super::directory::{Directory, Event};

/// How often a seed that led to relays is looked at again: its name may lead to others by then.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(30);

/// Looks a seed up and dials what it leads to, again and again.
pub(super) async fn seek(context: Context, directory: Directory, seed: String, jitter_seed: u64) {
    let mut backoff = Backoff::new(context.backoff);
    let mut rng = SmallRng::seed_from_u64(jitter_seed);
    let mut known = BTreeMap::new();
    loop {
        let found = look(&context, &directory, &seed, &mut known).await;
        let delay = if found {
            backoff = Backoff::new(context.backoff);
            AGAIN
        } else {
            backoff.next_delay(&mut rng)
        };
        sleep(delay).await;
    }
}

/// Dials the addresses of a seed at which nobody is connected; whether all of them are well.
async fn look(
    context: &Context,
    directory: &Directory,
    seed: &str,
    known: &mut BTreeMap<SocketAddr, RelayId>,
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
    let mut reached = false;
    for address in addresses {
        let connected = known
            .get(&address)
            .is_some_and(|relay| context.links.get(relay).is_some());
        if connected {
            reached = true;
            continue;
        }
        match dial(context, address).await {
            Ok((relay, connection)) => {
                debug!(seed, %address, %relay, "Relay found");
                known.insert(address, relay.clone());
                directory
                    .tell(Event::Found {
                        relay,
                        address,
                        connection,
                    })
                    .await;
                reached = true;
            }
            Err(error) => {
                warn!(seed, %error, "Relay not reached");
                well = false;
            }
        }
    }
    well && reached
}

async fn dial(
    context: &Context,
    address: SocketAddr,
) -> Result<(RelayId, PeerConnection), ConnectError> {
    let connection = context
        .node
        .connect(address, Protocol::View, &Expected::AnyRelay)
        .await?;
    match connection.peer.as_relay() {
        Some((_, relay)) => Ok((relay.clone(), connection)),
        None => Err(ConnectError::Unexpected {
            address,
            expected: Expected::AnyRelay,
            found: Box::new(connection.peer.clone()),
        }),
    }
}
