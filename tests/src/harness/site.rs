//! A site of a grid: an emulated engine and the relay beside it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

use super::config;
use super::plan::SitePlan;
use super::process::Process;
use crate::client::Client;
use crate::node::Addresses;

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
}

/// What an emulated engine tells tests.
#[derive(Deserialize)]
struct EngineState {
    published: u64,
}

impl Site {
    /// Starts the engine; [`ready`](Self::ready) goes on with the relays.
    pub(super) fn start(plan: SitePlan, program: &Path, dir: &Path) -> anyhow::Result<Self> {
        let relay = |name: String| {
            let process = Process::new(program, "relay", dir, &name);
            let quic = config::ANY;
            (name, Relay { process, quic })
        };
        let mut site = Self {
            engine: Process::new(program, "emulator", dir, &plan.engine_name()),
            relays: plan.relay_names().map(relay).collect(),
            plan,
            engine_addresses: Addresses::new(),
            dir: dir.to_owned(),
        };
        site.start_engine()?;
        Ok(site)
    }

    /// Starts the relays once the engine is up; `seeds` are where they find others.
    pub(super) async fn ready(&mut self, seeds: &[SocketAddr]) -> anyhow::Result<()> {
        self.engine_addresses = self.engine.ready().await?;
        let relays: Vec<String> = self.plan.relay_names().collect();
        for relay in relays {
            self.start_relay(&relay, seeds).await?;
        }
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

    /// How many messages the engine has published.
    pub(super) async fn published(&self, client: &Client) -> anyhow::Result<u64> {
        let url = format!("{}/emulator/state", self.engine_url());
        let state: EngineState = serde_json::from_slice(&client.get(&url).await?.body)?;
        Ok(state.published)
    }

    pub(super) fn is_running(&mut self) -> bool {
        let mut relays = self.relays.values_mut();
        self.engine.is_running() && relays.any(|relay| relay.process.is_running())
    }

    pub(super) fn kill(&mut self) {
        for relay in self.relays.values_mut() {
            relay.process.kill();
        }
        self.engine.kill();
    }

    pub(super) async fn restart(&mut self, seeds: &[SocketAddr]) -> anyhow::Result<()> {
        self.kill();
        // A restarted engine names its blocks anew.
        self.plan.engine.seed = self.plan.engine.seed.wrapping_add(1_000);
        self.start_engine()?;
        self.ready(seeds).await
    }

    pub(super) fn has_relay(&self, relay: &str) -> bool {
        self.relays.contains_key(relay)
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
        seeds: &[SocketAddr],
    ) -> anyhow::Result<()> {
        self.relay_mut(relay)?.process.kill();
        self.start_relay(relay, seeds).await
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

    async fn start_relay(&mut self, name: &str, seeds: &[SocketAddr]) -> anyhow::Result<()> {
        let beside = config::Beside::engine(&self.plan.engine, &self.engine_addresses);
        let dir = self.dir.clone();
        let relay = self.relay_mut(name)?;
        let text = config::relay(&dir, name, &beside, relay.quic, seeds);
        config::write(&dir, name, &text)?;
        relay.process.start()?;
        let bound = relay.process.ready().await?;
        relay.quic = *bound.get("quic").context("a relay has a QUIC address")?;
        Ok(())
    }
}

impl SitePlan {
    fn engine_name(&self) -> String {
        format!("{}-engine", self.name)
    }
}
