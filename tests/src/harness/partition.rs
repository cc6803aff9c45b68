//! Relays in two halves that can be parted while edges reach all of them.
//!
//! Each relay advertises its own address to its half and a link to the other one, so that all
//! gossip between the halves crosses links, and nothing else does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::Context as _;

use super::Grid;
use super::config::{self, RelayNetwork};
use super::site::Site;
use crate::link::{Forwarder, ForwarderConfig, LinkProperties};

/// What the halves call their networks.
const HALVES: [&str; 2] = ["here", "there"];

/// Which relays are in the first half, and the links by which the halves reach each other.
#[derive(Debug)]
pub(super) struct Partition {
    here: BTreeSet<String>,
    /// By the names of the relays that they lead to.
    links: BTreeMap<String, Forwarder>,
}

impl Partition {
    fn half_of(&self, relay: &str) -> usize {
        usize::from(!self.here.contains(relay))
    }
}

impl Grid {
    /// Restarts all relays so that gossip between those of these sites and all others goes
    /// over links.
    pub async fn split_relays(&mut self, here: &[&str]) -> anyhow::Result<()> {
        let named = |site: &&Site| here.contains(&site.name());
        let here = self
            .sites
            .values()
            .filter(named)
            .flat_map(Site::relay_names);
        let mut partition = Partition {
            here: here.collect(),
            links: BTreeMap::new(),
        };
        let relays = self.sites.values().flat_map(Site::quic);
        let relays: BTreeMap<String, SocketAddr> =
            relays.map(|(relay, at)| (relay.to_owned(), at)).collect();
        for (relay, target) in &relays {
            let config = ForwarderConfig {
                name: format!("the other half to {relay}"),
                listen: config::ANY,
                target: *target,
                seed: partition.links.len() as u64,
                link: LinkProperties::default(),
                bottleneck: None,
            };
            let link = Forwarder::start(&config, &self.links)?;
            partition.links.insert(relay.clone(), link);
        }
        self.partition = Some(partition);
        // None may remember how it has reached another past the links.
        for relay in relays.keys() {
            self.kill_relay(relay)?;
        }
        for relay in relays.keys() {
            self.restart_relay(relay).await?;
        }
        Ok(())
    }

    /// From now on no gossip passes between the halves.
    pub fn part_relays(&self) {
        for link in self.relay_links() {
            link.switch().cut();
        }
    }

    /// From now on the halves hear of each other again.
    pub fn join_relays(&self) {
        for link in self.relay_links() {
            link.switch().mend();
        }
    }

    fn relay_links(&self) -> impl Iterator<Item = &Forwarder> {
        self.partition
            .iter()
            .flat_map(|parted| parted.links.values())
    }

    pub(super) fn network_of(&self, relay: &str) -> anyhow::Result<RelayNetwork> {
        let first = self.first_relay();
        let Some(partition) = &self.partition else {
            return Ok(RelayNetwork {
                seeds: first.into_iter().map(|(_, address)| address).collect(),
                ..RelayNetwork::default()
            });
        };
        let half = partition.half_of(relay);
        let own = self.relay_address(relay)?;
        let link = partition.links.get(relay);
        let link = link
            .with_context(|| format!("{relay} has no link"))?
            .address();
        let seed = first.map(|(name, address)| {
            let near = partition.half_of(name) == half;
            let link = partition.links.get(name).filter(|_| !near);
            link.map_or(address, Forwarder::address)
        });
        Ok(RelayNetwork {
            seeds: seed.into_iter().collect(),
            advertise: vec![
                ("public", own),
                (HALVES[half], own),
                (HALVES[1 - half], link),
            ],
            scopes: vec![HALVES[half]],
        })
    }
}
