//! A site of a grid: an emulated engine and the relay beside it.

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
    relay: Process,
    engine_addresses: Addresses,
    quic: SocketAddr,
    dir: PathBuf,
}

/// What an emulated engine tells tests.
#[derive(Deserialize)]
struct EngineState {
    published: u64,
}

impl Site {
    /// Starts the engine; [`ready`](Self::ready) goes on with the relay.
    pub(super) fn start(plan: SitePlan, program: &Path, dir: &Path) -> anyhow::Result<Self> {
        let relay = Process::new(program, "relay", dir, &plan.relay_name());
        let engine = Process::new(program, "emulator", dir, &plan.engine_name());
        let mut site = Self {
            plan,
            engine,
            relay,
            engine_addresses: Addresses::new(),
            quic: config::ANY,
            dir: dir.to_owned(),
        };
        site.start_engine()?;
        Ok(site)
    }

    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        self.engine_addresses = self.engine.ready().await?;
        self.start_relay().await
    }

    pub(super) fn name(&self) -> &str {
        &self.plan.name
    }

    /// Where the relay listens; the same in all its lives.
    pub(super) const fn quic(&self) -> SocketAddr {
        self.quic
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
        self.engine.is_running() && self.relay.is_running()
    }

    pub(super) fn kill(&mut self) {
        self.relay.kill();
        self.engine.kill();
    }

    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        // A restarted engine names its blocks anew.
        self.plan.engine.seed = self.plan.engine.seed.wrapping_add(1_000);
        self.start_engine()?;
        self.ready().await
    }

    pub(super) fn kill_relay(&mut self) {
        self.relay.kill();
    }

    pub(super) async fn restart_relay(&mut self) -> anyhow::Result<()> {
        self.relay.kill();
        self.start_relay().await
    }

    /// Stops both; names what had to be killed.
    pub(super) async fn stop(&mut self) -> Vec<String> {
        let mut stubborn = Vec::new();
        for process in [&mut self.relay, &mut self.engine] {
            if !process.stop().await {
                stubborn.push(process.name().to_owned());
            }
        }
        stubborn
    }

    fn start_engine(&mut self) -> anyhow::Result<()> {
        let (plan, name) = (&self.plan, self.plan.engine_name());
        let text = config::emulator(&self.dir, &name, &plan.engine, &self.engine_addresses)?;
        config::write(&self.dir, &name, &text)?;
        self.engine.start()
    }

    async fn start_relay(&mut self) -> anyhow::Result<()> {
        let (plan, name) = (&self.plan, self.plan.relay_name());
        let beside = config::Beside::engine(&plan.engine, &self.engine_addresses);
        let text = config::relay(&self.dir, &name, &beside, self.quic);
        config::write(&self.dir, &name, &text)?;
        self.relay.start()?;
        let bound = self.relay.ready().await?;
        self.quic = *bound.get("quic").context("a relay has a QUIC address")?;
        Ok(())
    }
}

impl SitePlan {
    /// What the site's relay is called.
    pub(super) fn relay_name(&self) -> String {
        format!("{}-1", self.name)
    }

    fn engine_name(&self) -> String {
        format!("{}-engine", self.name)
    }
}
