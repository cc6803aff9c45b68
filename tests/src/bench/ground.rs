//! Where a bench's nodes run: a directory with certificates, and processes of one program.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kvgrid_certs::{Identity, Overwrite, TrustDomain, Validity};
use kvgrid_core::{EdgeId, Region, RelayId, SiteId};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::fed::FedSite;
use crate::client::Client;
use crate::harness::Known;
use crate::harness::config::{self, Seeds};
use crate::harness::process::{Process, ready_file};
use crate::link::{ForwarderConfig, LinkProperties, LinksConfig};
use crate::node::Addresses;

/// How long a state may take to come.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often an edge is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// Ends with all that was written into it.
pub(super) struct Ground {
    dir: TempDir,
    realm: TrustDomain,
    program: PathBuf,
}

impl Ground {
    pub(super) fn new(program: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("kvgrid-").tempdir()?;
        let realm = TrustDomain::new("grid.example")?;
        kvgrid_certs::init(dir.path(), realm.clone(), Overwrite::Refuse)?;
        Ok(Self {
            dir,
            realm,
            program: program.to_owned(),
        })
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A node whose configuration is written.
    pub(super) fn process(&self, kind: &str, name: &str) -> Process {
        Process::new(&self.program, kind, self.dir(), name)
    }

    /// A certificate of the one relay of the site that is called as it is.
    pub(super) fn certify_relay(&self, name: &str) -> Result<()> {
        let (site, relay) = (SiteId::new(name)?, RelayId::new(name)?);
        self.certify(&Identity::relay(self.realm.clone(), site, relay))
    }

    fn certify(&self, identity: &Identity) -> Result<()> {
        kvgrid_certs::issue(self.dir(), identity, Validity::days(1)?, Overwrite::Refuse)?;
        Ok(())
    }

    /// Links to these addresses, all in one process and perhaps through one bottleneck; gives
    /// where they are entered.
    pub(super) async fn links(
        &self,
        name: &str,
        targets: &[SocketAddr],
        link: &LinkProperties,
        shared: bool,
    ) -> Result<(Process, Vec<SocketAddr>)> {
        let links = targets
            .iter()
            .enumerate()
            .map(|(number, target)| ForwarderConfig {
                name: format!("link-{number}"),
                listen: config::ANY,
                target: *target,
                seed: number as u64 * 2,
                link: link.clone(),
                bottleneck: shared.then(|| "shared".to_owned()),
            });
        let links = LinksConfig {
            ready_file: Some(ready_file(self.dir(), name)),
            links: links.collect(),
        };
        config::write(self.dir(), name, &toml::to_string(&links)?)?;
        let mut process = self.process("link", name);
        process.start()?;
        let addresses = process.ready().await?;
        let entrances = (0..targets.len()).map(|number| addresses.get(&format!("link-{number}")));
        let entrances = entrances.map(|address| address.copied().context("a link is missing"));
        Ok((process, entrances.collect::<Result<_>>()?))
    }

    /// An edge that finds its relays behind these addresses.
    pub(super) async fn edge(&self, name: &str, addresses: &[SocketAddr]) -> Result<BenchEdge> {
        let region = Region::new("eu")?;
        self.certify(&Identity::edge(
            self.realm.clone(),
            region,
            EdgeId::new(name)?,
        ))?;
        let seeds = Seeds {
            addresses: addresses.to_vec(),
            straight: false,
            quorum: addresses.len(),
        };
        let text = config::edge(self.dir(), name, config::ANY, &seeds);
        config::write(self.dir(), name, &text)?;
        let mut edge = BenchEdge {
            process: self.process("edge", name),
            addresses: Addresses::new(),
            client: Client::default(),
        };
        edge.process.start()?;
        edge.addresses = edge.process.ready().await?;
        Ok(edge)
    }
}

/// An edge of a bench.
pub(super) struct BenchEdge {
    process: Process,
    addresses: Addresses,
    client: Client,
}

impl BenchEdge {
    /// What it knows now.
    pub(super) async fn known(&self) -> Result<Known> {
        Known::ask(&self.client, &self.admin_url()).await
    }

    /// Waits for a condition on what it knows, and looks more often than tests do, whose times
    /// nobody measures.
    pub(super) async fn until(&self, what: &str, is: impl Fn(&Known) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is(&self.known().await?) {
            if Instant::now() > deadline {
                let said = self.process.last_output();
                bail!("not after {PATIENCE:?}: {what}; the edge said:\n{said}");
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until it finds all that these sites, by their names, have published.
    pub(super) async fn until_applied<'a>(
        &self,
        sites: impl IntoIterator<Item = (&'a str, &'a FedSite)> + Clone,
    ) -> Result<()> {
        let applied = |known: &Known| {
            sites.clone().into_iter().all(|(name, site)| {
                let mut last = site.last_messages();
                last.all(|(publisher, message)| known.applied_of(name, publisher, message))
            })
        };
        self.until("all messages are applied", applied).await
    }

    /// Where clients go.
    pub(super) fn client_url(&self) -> String {
        format!("http://{}", self.addresses["client"])
    }

    fn admin_url(&self) -> String {
        format!("http://{}", self.addresses["admin"])
    }

    pub(super) fn id(&self) -> Result<u32> {
        self.process.id().context("the edge has ended")
    }

    /// Stops it at once.
    pub(super) fn kill(mut self) {
        self.process.kill();
    }
}
