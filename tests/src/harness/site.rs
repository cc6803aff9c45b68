//! A site of a grid: an emulated engine and the relay beside it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

use super::config::{self, RelayNetwork};
use super::plan::SitePlan;
use super::process::Process;
use crate::client::Client;
use crate::node::Addresses;

const ANYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

#[derive(Debug)]
pub(super) struct Site {
    plan: SitePlan,
    engine: Process,
    relays: BTreeMap<String, Relay>,
    engine_addresses: Addresses,
    dir: PathBuf,
}

#[derive(Debug)]
struct Relay {
    process: Process,
    /// Where it listens; the same in all its lives.
    quic: SocketAddr,
    /// Where it dials edges, if it does.
    edges: Vec<SocketAddr>,
    /// Where operators reach it.
    admin: Option<SocketAddr>,
}

/// What an emulated engine tells tests.
#[derive(Deserialize)]
pub(super) struct EngineState {
    /// Messages of events.
    pub(super) published: u64,
    /// Requests answered to their end.
    pub(super) answers: u64,
}

impl Site {
    /// Starts the engine; relays are started once it is up. They listen at `ip`
    /// if they are dialled.
    pub(super) fn start(
        plan: SitePlan,
        ip: IpAddr,
        program: &Path,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let process = |kind: &str, name: &str| {
            let process = Process::new(program, kind, dir, name);
            match &plan.namespace {
                Some(namespace) => process.within(namespace),
                None => process,
            }
        };
        // Who dials is not bound to one network.
        let ip = if plan.dials { ANYWHERE } else { ip };
        let relay = |name: String| {
            let relay = Relay {
                process: process("relay", &name),
                quic: SocketAddr::new(ip, 0),
                edges: Vec::new(),
                admin: None,
            };
            (name, relay)
        };
        let mut site = Self {
            engine: process("emulator", &plan.engine_name()),
            relays: plan.relay_names().map(relay).collect(),
            plan,
            engine_addresses: Addresses::new(),
            dir: dir.to_owned(),
        };
        site.start_engine()?;
        Ok(site)
    }

    /// Waits until the engine is up; relays can then be started.
    pub(super) async fn engine_ready(&mut self) -> anyhow::Result<()> {
        self.engine_addresses = self.engine.ready().await?;
        Ok(())
    }

    pub(super) fn relay_names(&self) -> Vec<String> {
        self.plan.relay_names().collect()
    }

    /// Whether edges get to know what it has cached.
    pub(super) const fn tells(&self) -> bool {
        self.plan.events
    }

    /// Whether its relays dial the edges; then they are started after those.
    pub(super) const fn dials(&self) -> bool {
        self.plan.dials
    }

    /// Lets a relay dial an edge there.
    pub(super) fn dial(&mut self, relay: &str, edge: SocketAddr) -> anyhow::Result<()> {
        self.relay_mut(relay)?.edges.push(edge);
        Ok(())
    }

    pub(super) fn name(&self) -> &str {
        &self.plan.name
    }

    /// Where the relays listen, by name.
    pub(super) fn quic(&self) -> impl Iterator<Item = (&str, SocketAddr)> {
        let relays = self.relays.iter();
        relays.map(|(name, relay)| (name.as_str(), relay.quic))
    }

    pub(super) fn engine_url(&self) -> String {
        format!("http://{}", self.engine_addresses["http"])
    }

    /// What the engine says of itself.
    pub(super) async fn engine(&self, client: &Client) -> anyhow::Result<EngineState> {
        let url = format!("{}/emulator/state", self.engine_url());
        Ok(serde_json::from_slice(&client.get(&url).await?.body)?)
    }

    /// The relays that run, if the engine does.
    pub(super) fn running(&mut self) -> Vec<String> {
        if !self.engine.is_running() {
            return Vec::new();
        }
        let relays = self.relays.iter_mut();
        let running = relays.filter_map(|(name, relay)| {
            let runs = relay.process.is_running();
            runs.then(|| name.clone())
        });
        running.collect()
    }

    pub(super) fn kill(&mut self) {
        for relay in self.relays.values_mut() {
            relay.process.kill();
        }
        self.engine.kill();
    }

    /// Starts a new engine where the old one was; relays are yet to be started.
    pub(super) async fn restart_engine(&mut self) -> anyhow::Result<()> {
        self.kill();
        // A restarted engine names its blocks anew.
        self.plan.engine.seed = self.plan.engine.seed.wrapping_add(1_000);
        self.start_engine()?;
        self.engine_ready().await
    }

    pub(super) fn has_relay(&self, relay: &str) -> bool {
        self.relays.contains_key(relay)
    }

    /// A relay's metrics page.
    pub(super) async fn metrics(&self, relay: &str, client: &Client) -> anyhow::Result<String> {
        let found = self.relays.get(relay).and_then(|relay| relay.admin);
        let admin = found.with_context(|| format!("{relay} was not started"))?;
        let page = client.get(&format!("http://{admin}/metrics")).await?;
        Ok(page.text())
    }

    pub(super) fn kill_relay(&mut self, relay: &str) -> anyhow::Result<()> {
        self.relay_mut(relay)?.process.kill();
        Ok(())
    }

    pub(super) async fn stop_relay(&mut self, relay: &str) -> anyhow::Result<bool> {
        Ok(self.relay_mut(relay)?.process.stop().await)
    }

    pub(super) async fn restart_relay(
        &mut self,
        relay: &str,
        network: &RelayNetwork,
    ) -> anyhow::Result<()> {
        self.relay_mut(relay)?.process.kill();
        self.start_relay(relay, network).await
    }

    /// Stops all of it; names what had to be killed.
    pub(super) async fn stop(&mut self) -> Vec<String> {
        let mut stubborn = Vec::new();
        let relays = self.relays.values_mut().map(|relay| &mut relay.process);
        for process in relays.chain([&mut self.engine]) {
            if !process.stop().await {
                stubborn.push(process.name().to_owned());
            }
        }
        stubborn
    }

    fn relay_mut(&mut self, relay: &str) -> anyhow::Result<&mut Relay> {
        let found = self.relays.get_mut(relay);
        found.with_context(|| format!("{} has no relay {relay}", self.plan.name))
    }

    fn start_engine(&mut self) -> anyhow::Result<()> {
        let (plan, name) = (&self.plan, self.plan.engine_name());
        let text = config::emulator(&self.dir, &name, &plan.engine, &self.engine_addresses)?;
        config::write(&self.dir, &name, &text)?;
        self.engine.start()
    }

    async fn start_relay(&mut self, name: &str, network: &RelayNetwork) -> anyhow::Result<()> {
        let mut engine = self.plan.engine.clone();
        engine.block_size = self.plan.mistaken_block_size.unwrap_or(engine.block_size);
        let beside = config::Beside::engine(&engine, &self.engine_addresses, self.plan.events);
        let dir = self.dir.clone();
        let relay = self.relay_mut(name)?;
        let mut text = config::relay(&dir, name, &beside, relay.quic, network);
        if !relay.edges.is_empty() {
            text.push_str(&config::dials(&relay.edges));
        }
        config::write(&dir, name, &text)?;
        relay.process.start()?;
        let bound = relay.process.ready().await?;
        relay.quic = *bound.get("quic").context("a relay has a QUIC address")?;
        relay.admin = bound.get("admin").copied();
        Ok(())
    }
}

impl SitePlan {
    fn engine_name(&self) -> String {
        format!("{}-engine", self.name)
    }
}
