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
    links: BTreeMap<String, Forwarder>,
    addresses: Addresses,
}

impl Edge {
    pub(super) fn new(plan: EdgePlan, program: &Path, dir: &Path) -> Self {
        Self {
            process: Process::new(program, "edge", dir, &plan.name),
            plan,
            links: BTreeMap::new(),
            addresses: Addresses::new(),
        }
    }

    /// Puts links to the relays at these addresses, by site, and starts the edge behind them.
    pub(super) fn start(
        &mut self,
        relays: &BTreeMap<String, SocketAddr>,
        tasks: &Tasks,
        dir: &Path,
    ) -> anyhow::Result<()> {
        let name = &self.plan.name;
        for (site, link) in &self.plan.links {
            let target = *relays
                .get(site)
                .with_context(|| format!("{name} has a link to {site}, which is no site"))?;
            let config = ForwarderConfig {
                name: format!("{name} to {site}"),
                listen: config::ANY,
                target,
                seed: self.links.len() as u64,
                link: link.clone(),
            };
            self.links
                .insert(site.clone(), Forwarder::start(&config, tasks)?);
        }
        let seeds: Vec<SocketAddr> = self.links.values().map(Forwarder::address).collect();
        config::write(dir, name, &config::edge(dir, name, &seeds, seeds.len()))?;
        self.process.start()
    }

    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        self.addresses = self.process.ready().await?;
        Ok(())
    }

    pub(super) fn is_started(&self) -> bool {
        !self.links.is_empty()
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

    pub(super) fn link(&self, site: &str) -> anyhow::Result<&Switch> {
        let link = self.links.get(site);
        let link = link.with_context(|| format!("{} has no link to {site}", self.plan.name))?;
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
