//! An edge of a grid, and its links.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

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
    started: bool,
}

impl Edge {
    pub(super) fn new(plan: EdgePlan, program: &Path, dir: &Path) -> Self {
        Self {
            process: Process::new(program, "edge", dir, &plan.name),
            plan,
            links: BTreeMap::new(),
            addresses: Addresses::new(),
            started: false,
        }
    }

    /// Puts links to the relays of these sites and starts the edge behind them, or straight
    /// at the first relay if the edge has no links.
    pub(super) fn start(
        &mut self,
        sites: &BTreeMap<String, Vec<(String, SocketAddr)>>,
        tasks: &Tasks,
        dir: &Path,
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
                };
                let link = Forwarder::start(&config, tasks)?;
                self.links.insert(relay.clone(), link);
            }
        }
        let straight = self.links.is_empty();
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
        let seeds = config::Seeds {
            addresses,
            straight,
            quorum,
        };
        config::write(dir, name, &config::edge(dir, name, &seeds))?;
        self.started = true;
        self.process.start()
    }

    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        self.addresses = self.process.ready().await?;
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
        self.process.start()?;
        self.ready().await
    }

    pub(super) fn is_started(&self) -> bool {
        self.started
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
