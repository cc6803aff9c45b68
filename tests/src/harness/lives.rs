//! What befalls a grid's nodes.

use anyhow::bail;

use super::Grid;

impl Grid {
    /// A site loses power: its engine and its relay are gone without a word.
    pub fn kill_site(&mut self, site: &str) -> anyhow::Result<()> {
        self.site_mut(site)?.kill();
        Ok(())
    }

    /// A site is shut down in order.
    pub async fn stop_site(&mut self, site: &str) -> anyhow::Result<()> {
        let stubborn = self.site_mut(site)?.stop().await;
        if stubborn.is_empty() {
            Ok(())
        } else {
            bail!("did not end when told to: {}", stubborn.join(", "))
        }
    }

    /// Starts a killed site again: a new engine, cold, where the old one was.
    pub async fn restart_site(&mut self, site: &str) -> anyhow::Result<()> {
        self.site_mut(site)?.restart_engine().await?;
        self.start_relays_of(site).await
    }

    /// A relay dies while its engine lives on.
    pub fn kill_relay(&mut self, relay: &str) -> anyhow::Result<()> {
        self.site_of(relay)?.kill_relay(relay)
    }

    /// A relay is told to end.
    pub async fn stop_relay(&mut self, relay: &str) -> anyhow::Result<()> {
        if !self.site_of(relay)?.stop_relay(relay).await? {
            bail!("{relay} did not end when told to");
        }
        Ok(())
    }

    /// Starts a relay again, where the old one was.
    pub async fn restart_relay(&mut self, relay: &str) -> anyhow::Result<()> {
        let network = self.network_of(relay)?;
        self.site_of(relay)?.restart_relay(relay, &network).await
    }

    /// An edge dies without a word.
    pub fn kill_edge(&mut self, edge: &str) -> anyhow::Result<()> {
        self.edge_mut(edge)?.kill();
        Ok(())
    }

    /// Starts a dead edge again; clients then reach it elsewhere. Whether it knows the sites
    /// is not waited for.
    pub async fn launch_edge_again(&mut self, edge: &str) -> anyhow::Result<()> {
        self.edge_mut(edge)?.launch_again().await
    }

    /// Tells an edge to end, and starts it again; clients then reach it elsewhere.
    pub async fn restart_edge(&mut self, edge: &str) -> anyhow::Result<()> {
        self.edge_mut(edge)?.restart().await
    }
}
