//! Finds relays at the addresses that a node is told to begin with.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use kvgrid_core::RelayId;
use kvgrid_core::backoff::{Backoff, BackoffConfig};
use quinn::Connection;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tracing::{debug, warn};

use super::{ConnectError, Expected, Node, PeerConnection, Protocol, resolve};

/// How often a seed that led to relays is looked at again: its name may lead to others by then.
const AGAIN: Duration = Duration::from_secs(30);

/// What to look for, and how.
#[derive(Clone, Debug)]
pub struct Seed {
    /// `HOST:PORT`; a name may lead to several relays.
    pub address: String,
    /// What is spoken with the relays found.
    pub protocol: Protocol,
    /// Delays while not all that it leads to is reached.
    pub backoff: BackoffConfig,
    /// Seeds the jitter of those.
    pub luck: u64,
}

/// A relay that answers at an address.
#[derive(Clone, Debug)]
pub struct FoundRelay {
    /// Which one, by its certificate.
    pub relay: RelayId,
    /// Where.
    pub address: SocketAddr,
    /// The connection it was found by.
    pub connection: PeerConnection,
}

/// Where one address led.
enum Led {
    ToOurselves,
    ToRelay(RelayId, Connection),
}

/// Looks a seed up and dials what it leads to, again and again, but for relays that `is_well`
/// of the connection they were found by. `found` takes what is found. Ends by being dropped.
pub async fn seek<F: Future<Output = ()>>(
    node: Node,
    seed: Seed,
    is_well: impl Fn(&RelayId, &Connection) -> bool,
    found: impl Fn(FoundRelay) -> F,
) {
    let mut backoff = Backoff::new(seed.backoff);
    let mut rng = SmallRng::seed_from_u64(seed.luck);
    let mut led: BTreeMap<SocketAddr, Led> = BTreeMap::new();
    loop {
        led.retain(|_, led| match led {
            Led::ToOurselves => true,
            Led::ToRelay(relay, connection) => is_well(relay, connection),
        });
        let delay = if look(&node, &seed, &mut led, &found).await {
            backoff = Backoff::new(seed.backoff);
            AGAIN
        } else {
            backoff.next_delay(&mut rng)
        };
        tokio::time::sleep(delay).await;
    }
}

/// Dials what a seed leads to and is not well yet; whether all of it is well then.
async fn look<F: Future<Output = ()>>(
    node: &Node,
    seed: &Seed,
    led: &mut BTreeMap<SocketAddr, Led>,
    found: impl Fn(FoundRelay) -> F,
) -> bool {
    let addresses = match resolve(&seed.address).await {
        Ok(addresses) => addresses,
        Err(error) => {
            warn!(seed = seed.address, %error, "Seed can't be resolved");
            return false;
        }
    };
    led.retain(|address, _| addresses.contains(address));
    let mut well = true;
    for address in addresses {
        if led.contains_key(&address) {
            continue;
        }
        match dial(node, seed.protocol, address).await {
            Ok(None) => {
                led.insert(address, Led::ToOurselves);
            }
            Ok(Some(relay)) => {
                debug!(seed = seed.address, %address, relay = %relay.relay, "Relay found");
                let connection = relay.connection.connection.clone();
                led.insert(address, Led::ToRelay(relay.relay.clone(), connection));
                found(relay).await;
            }
            Err(error) => {
                warn!(seed = seed.address, %error, "Relay not reached");
                well = false;
            }
        }
    }
    well
}

/// The relay at an address; `None` if that is ourselves.
async fn dial(
    node: &Node,
    protocol: Protocol,
    address: SocketAddr,
) -> Result<Option<FoundRelay>, ConnectError> {
    let connection = node.connect(address, protocol, &Expected::AnyRelay).await?;
    let Some((_, relay)) = connection.peer.as_relay() else {
        return Err(ConnectError::Unexpected {
            address,
            expected: Expected::AnyRelay,
            found: Box::new(connection.peer),
        });
    };
    let relay = relay.clone();
    let ourselves = connection.peer == node.identity();
    Ok((!ourselves).then_some(FoundRelay {
        relay,
        address,
        connection,
    }))
}
