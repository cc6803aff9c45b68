//! An edge of a grid, and its links.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kvgrid_runtime::Tasks;

use super::config;
use super::plan::EdgePlan;
use super::process::Process;
use crate::link::{Forwarder, ForwarderConfig, Switch};
use crate::node::Addresses;

#[derive(Debug)]
pub(super) struct Edge {
    plan: EdgePlan,
    process: Process,
    /// By the relays' names.
    links: BTreeMap<String, Forwarder>,
    addresses: Addresses,
    /// Where it is dialled; the same in all its lives.
    quic: SocketAddr,
    seeds: Option<config::Seeds>,
    dir: PathBuf,
}

impl Edge {
    /// An edge that is dialled at `ip`.
    pub(super) fn new(plan: EdgePlan, ip: IpAddr, program: &Path, dir: &Path) -> Self {
        Self {
            process: Process::new(program, "edge", dir, &plan.name),
            plan,
            links: BTreeMap::new(),
            addresses: Addresses::new(),
            quic: SocketAddr::new(ip, 0),
            seeds: None,
            dir: dir.to_owned(),
        }
    }

    /// Puts links to the relays of these sites and starts the edge behind them, or straight
    /// at the first relay if the edge has no links. Relays that dial are not among those.
    pub(super) fn start(
        &mut self,
        sites: &BTreeMap<String, Vec<(String, SocketAddr)>>,
        tasks: &Tasks,
    ) -> anyhow::Result<()> {
        let name = &self.plan.name;
        for (site, link) in &self.plan.links {
            let relays = sites
                .get(site)
                .with_context(|| format!("{name} has a link to {site}, which is no site"))?;
            for (relay, target) in relays {
                let config = ForwarderConfig {
                    name: format!("{name} to {relay}"),
                    listen: config::ANY,
                    target: *target,
                    seed: self.links.len() as u64,
                    link: link.clone(),
                    bottleneck: None,
                };
                let link = Forwarder::start(&config, tasks)?;
                self.links.insert(relay.clone(), link);
            }
        }
        let straight = self.plan.links.is_empty();
        let addresses = if straight {
            let first = sites.values().flatten().next();
            vec![first.context("a grid has a relay")?.1]
        } else {
            self.links.values().map(Forwarder::address).collect()
        };
        let quorum = if straight {
            sites.len()
        } else {
            self.plan.links.len()
        };
        self.seeds = Some(config::Seeds {
            addresses,
            straight,
            quorum,
        });
        self.launch()
    }

    fn launch(&mut self) -> anyhow::Result<()> {
        let (name, dir) = (&self.plan.name, &self.dir);
        let seeds = self.seeds.as_ref();
        let seeds = seeds.with_context(|| format!("{name} was not started"))?;
        let mut text = config::edge(dir, name, self.quic, seeds);
        if self.plan.exact {
            text.push_str("[view]\nform = \"exact\"\n");
        }
        config::write(dir, name, &text)?;
        self.process.start()
    }

    /// Where a relay dials this edge: at a link of its own, if the edge has one to its site.
    pub(super) fn dialled_by(
        &mut self,
        site: &str,
        relay: &str,
        tasks: &Tasks,
    ) -> anyhow::Result<SocketAddr> {
        let Some(link) = self.plan.links.get(site) else {
            return Ok(self.quic);
        };
        let config = ForwarderConfig {
            name: format!("{relay} to {}", self.plan.name),
            listen: config::ANY,
            target: self.quic,
            seed: self.links.len() as u64,
            link: link.clone(),
            bottleneck: None,
        };
        let link = Forwarder::start(&config, tasks)?;
        let address = link.address();
        self.links.insert(relay.to_owned(), link);
        Ok(address)
    }

    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        self.addresses = self.process.ready().await?;
        self.quic = *self
            .addresses
            .get("quic")
            .context("an edge has a QUIC address")?;
        Ok(())
    }

    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        if let Some(name) = self.stop().await {
            anyhow::bail!("{name} did not end when told to");
        }
        self.launch_again().await
    }

    pub(super) fn kill(&mut self) {
        self.process.kill();
    }

    pub(super) async fn launch_again(&mut self) -> anyhow::Result<()> {
        self.launch()?;
        self.ready().await
    }

    pub(super) fn is_started(&self) -> bool {
        self.seeds.is_some()
    }

    pub(super) fn client_url(&self) -> anyhow::Result<String> {
        self.url("client")
    }

    pub(super) fn admin_url(&self) -> anyhow::Result<String> {
        self.url("admin")
    }

    fn url(&self, what: &str) -> anyhow::Result<String> {
        let address = self.addresses.get(what);
        let address = address.with_context(|| format!("{} is not started", self.plan.name))?;
        Ok(format!("http://{address}"))
    }

    pub(super) fn link(&self, relay: &str) -> anyhow::Result<&Switch> {
        let link = self.links.get(relay);
        let link = link.with_context(|| format!("{} has no link to {relay}", self.plan.name))?;
        Ok(link.switch())
    }

    pub(super) fn last_output(&self) -> String {
        self.process.last_output()
    }

    /// Stops it; names it if it had to be killed.
    pub(super) async fn stop(&mut self) -> Option<String> {
        let ended = self.process.stop().await;
        (!ended).then(|| self.plan.name.clone())
    }
}
