//! What a grid is made of: sites, edges and the links between them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use crate::emulator::EngineConfig;
use crate::link::LinkProperties;

/// A site: an emulated engine and a relay beside it.
#[derive(Clone, Debug)]
pub struct SitePlan {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub region: String,
    /// What its engine is like.
    pub engine: EngineConfig,
    /// How many relays stand beside it; `<site>-1` is the first.
    pub relays: usize,
    /// Whether its relays dial the edges.
    pub dials: bool,
    /// Whether its relays hear what the engine has cached.
    pub events: bool,
    /// The block size that its relays are told, if it is not the engine's.
    pub mistaken_block_size: Option<NonZeroU32>,
    /// The network namespace that all of it runs in, if it is another than the test's.
    pub namespace: Option<String>,
}

/// An edge and its links to sites.
#[derive(Clone, Debug)]
pub struct EdgePlan {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub region: String,
    /// The links to sites, by the sites' names; an edge without any goes straight to the
    /// first relay of the grid, and finds the others by it.
    pub links: BTreeMap<String, LinkProperties>,
    /// Whether it is started with the grid, or later.
    pub late: bool,
    /// Whether it keeps whole hashes in place of filters.
    pub exact: bool,
}

/// A grid to be started.
#[derive(Clone, Debug)]
pub struct GridPlan {
    /// Its sites.
    pub sites: Vec<SitePlan>,
    /// Its edges.
    pub edges: Vec<EdgePlan>,
    /// Whether relays gossip: each is told of the first one.
    pub mesh: bool,
    /// Where relays and edges listen that are dialled.
    pub ip: IpAddr,
}

impl Default for GridPlan {
    fn default() -> Self {
        Self {
            sites: Vec::new(),
            edges: Vec::new(),
            mesh: false,
            ip: Ipv4Addr::LOCALHOST.into(),
        }
    }
}

impl SitePlan {
    /// The names of its relays.
    pub fn relay_names(&self) -> impl Iterator<Item = String> {
        (1..=self.relays).map(|number| format!("{}-{number}", self.name))
    }
}

impl GridPlan {
    /// The grid of the demo: sites in Frankfurt, Virginia and Seoul, and an edge at the first
    /// and at the last of them.
    pub fn around_the_world() -> Self {
        Self::default()
            .site("fra", "eu")
            .site("iad", "us")
            .site("icn", "ap")
            .edge("eu-1", "eu", &[("fra", 4), ("iad", 90), ("icn", 239)])
            .edge("ap-1", "ap", &[("fra", 239), ("iad", 90), ("icn", 4)])
    }

    /// Lets relays gossip.
    pub fn mesh(mut self) -> Self {
        self.mesh = true;
        self
    }

    /// Lets relays and edges listen there.
    pub fn at(mut self, ip: IpAddr) -> Self {
        self.ip = ip;
        self
    }

    /// Lets the relays of the site that was added last dial the edges, by links of the same
    /// round trips.
    pub fn dials(mut self) -> Self {
        if let Some(site) = self.sites.last_mut() {
            site.dials = true;
        }
        self
    }

    /// Lets nobody know what the site that was added last has cached.
    pub fn without_events(mut self) -> Self {
        if let Some(site) = self.sites.last_mut() {
            site.events = false;
        }
        self
    }

    /// Lets the relays of the site that was added last take blocks for larger than they are.
    pub fn mistaken(mut self, block_size: NonZeroU32) -> Self {
        if let Some(site) = self.sites.last_mut() {
            site.mistaken_block_size = Some(block_size);
        }
        self
    }

    /// Lets the site that was added last run in a network namespace.
    pub fn in_namespace(mut self, name: &str) -> Self {
        if let Some(site) = self.sites.last_mut() {
            site.namespace = Some(name.to_owned());
        }
        self
    }

    /// Gives the site that was added last so many relays.
    pub fn relays(mut self, relays: usize) -> Self {
        if let Some(site) = self.sites.last_mut() {
            site.relays = relays;
        }
        self
    }

    /// Adds a site with an engine as fast as the formula says.
    pub fn site(self, name: &str, region: &str) -> Self {
        self.site_with(name, region, |_| {})
    }

    /// Adds a site with another engine.
    pub fn site_with(
        mut self,
        name: &str,
        region: &str,
        change: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        // A seed for each site: no two engines name a block alike.
        let mut engine = EngineConfig {
            seed: self.sites.len() as u64 + 1,
            ..EngineConfig::default()
        };
        change(&mut engine);
        self.sites.push(SitePlan {
            name: name.to_owned(),
            region: region.to_owned(),
            engine,
            relays: 1,
            dials: false,
            events: true,
            mistaken_block_size: None,
            namespace: None,
        });
        self
    }

    /// Adds an edge with the round trips to its sites in milliseconds.
    pub fn edge(self, name: &str, region: &str, round_trips: &[(&str, u64)]) -> Self {
        self.plan_edge(name, region, round_trips, false)
    }

    /// Adds an edge that is not started with the others.
    pub fn late_edge(self, name: &str, region: &str, round_trips: &[(&str, u64)]) -> Self {
        self.plan_edge(name, region, round_trips, true)
    }

    fn plan_edge(
        mut self,
        name: &str,
        region: &str,
        round_trips: &[(&str, u64)],
        late: bool,
    ) -> Self {
        let link = |ms: u64| LinkProperties::round_trip(Duration::from_millis(ms));
        self.edges.push(EdgePlan {
            name: name.to_owned(),
            region: region.to_owned(),
            links: round_trips
                .iter()
                .map(|(site, ms)| ((*site).to_owned(), link(*ms)))
                .collect(),
            late,
            exact: false,
        });
        self
    }

    /// Lets the edge that was added last keep whole hashes.
    pub fn exact(mut self) -> Self {
        if let Some(edge) = self.edges.last_mut() {
            edge.exact = true;
        }
        self
    }
}
