//! Whole grids of real processes: emulated engines, relays, edges, and links between them.
//!
//! A [`GridPlan`] says what there is; [`Grid::start`] makes certificates in a temporary
//! directory, starts every node as `<program> node <kind> --config <file>`, waits until each
//! says that it is ready, and puts a link of its own between each edge and each site. Tests
//! then ask edges, break things, and wait for conditions, never for time to pass. Everything
//! ends when the grid is dropped.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::Method;
use kvgrid_certs::{Identity, Overwrite, TrustDomain, Validity};
use kvgrid_core::{EdgeId, Region, RelayId, SiteId};
use kvgrid_runtime::Tasks;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::emulator::Fault;
use crate::link::Switch;
use crate::lock;

pub(crate) mod config;
mod conversation;
mod edge;
mod known;
mod lives;
mod partition;
mod plan;
pub(crate) mod process;
mod site;

pub use config::{MODEL, model_dir};
pub use conversation::{Conversation, Turn};
pub use known::{
    Applied, Known, KnownAgreement, KnownApart, KnownCard, KnownEngines, KnownFacts, KnownForeign,
    KnownLoad, KnownMatching, KnownModel, KnownModelLoad, KnownParity, KnownPool, KnownRelay,
    KnownSite,
};
pub use plan::{EdgePlan, GridPlan, SitePlan};
pub use process::{Process, hold_leash};

use edge::Edge;
use partition::Partition;
use site::Site;

/// How long a condition may take to come true on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running grid.
#[derive(Debug)]
pub struct Grid {
    sites: BTreeMap<String, Site>,
    edges: BTreeMap<String, Edge>,
    client: Client,
    links: Tasks,
    mesh: bool,
    partition: Option<Partition>,
    program: PathBuf,
    // Nodes write into it until they have ended.
    dir: TempDir,
    // Last: then the next test may begin.
    _machine: Option<File>,
}

impl Grid {
    /// Starts a grid whose nodes run as processes of `program`, and waits until every edge
    /// knows every site.
    pub async fn start(plan: GridPlan, program: &Path) -> anyhow::Result<Self> {
        Self::start_with(plan, program, None).await
    }

    /// Starts a grid once no other test has one: several at once would starve each other on
    /// a small machine, and miss deadlines that a user's machine keeps.
    pub async fn start_alone(plan: GridPlan, program: &Path) -> anyhow::Result<Self> {
        let machine = lock::machine()?;
        Self::start_with(plan, program, Some(machine)).await
    }

    async fn start_with(
        plan: GridPlan,
        program: &Path,
        machine: Option<File>,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("kvgrid-").tempdir()?;
        let trust_domain = TrustDomain::new("grid.example")?;
        kvgrid_certs::init(dir.path(), trust_domain.clone(), Overwrite::Refuse)?;
        let mut grid = Self {
            sites: BTreeMap::new(),
            edges: BTreeMap::new(),
            client: Client::default(),
            links: Tasks::new(),
            mesh: plan.mesh,
            partition: None,
            program: program.to_owned(),
            dir,
            _machine: machine,
        };
        for site in plan.sites {
            for relay in site.relay_names() {
                grid.certify(&relay_identity(&trust_domain, &site, &relay)?)?;
            }
            let site = Site::start(site, plan.ip, &grid.program, grid.dir.path())?;
            grid.sites.insert(site.name().to_owned(), site);
        }
        grid.start_relays(false).await?;
        for edge in plan.edges {
            grid.certify(&edge_identity(&trust_domain, &edge)?)?;
            let (late, name) = (edge.late, edge.name.clone());
            let edge = Edge::new(edge, plan.ip, &grid.program, grid.dir.path());
            grid.edges.insert(name.clone(), edge);
            if !late {
                grid.launch_edge(&name)?;
            }
        }
        for edge in grid.edges.values_mut().filter(|edge| edge.is_started()) {
            edge.ready().await?;
        }
        grid.let_relays_dial()?;
        grid.start_relays(true).await?;
        grid.until_complete().await?;
        Ok(grid)
    }

    /// Starts the relays of all sites that dial edges, or of all others.
    async fn start_relays(&mut self, dialling: bool) -> anyhow::Result<()> {
        let sites = self.sites.values().filter(|site| site.dials() == dialling);
        let names: Vec<String> = sites.map(|site| site.name().to_owned()).collect();
        for name in names {
            self.site_mut(&name)?.engine_ready().await?;
            self.start_relays_of(&name).await?;
        }
        Ok(())
    }

    /// Tells relays that dial where the edges are that run.
    fn let_relays_dial(&mut self) -> anyhow::Result<()> {
        for site in self.sites.values_mut().filter(|site| site.dials()) {
            let relays: Vec<String> = site.quic().map(|(relay, _)| relay.to_owned()).collect();
            let edges = self.edges.values_mut().filter(|edge| edge.is_started());
            for edge in edges {
                for relay in &relays {
                    let address = edge.dialled_by(site.name(), relay, &self.links)?;
                    site.dial(relay, address)?;
                }
            }
        }
        Ok(())
    }

    /// Starts an edge that was planned to be late; does not wait until it knows the sites.
    pub async fn start_edge(&mut self, edge: &str) -> anyhow::Result<()> {
        self.launch_edge(edge)?;
        self.edge_mut(edge)?.ready().await
    }

    async fn start_relays_of(&mut self, site: &str) -> anyhow::Result<()> {
        for relay in self.site(site)?.relay_names() {
            self.restart_relay(&relay).await?;
        }
        Ok(())
    }

    /// The relay at which others find the grid, once that is up, and where it listens.
    fn first_relay(&self) -> Option<(&str, SocketAddr)> {
        let dialled = self.sites.values().filter(|site| !site.dials());
        let first = dialled.flat_map(Site::quic).next();
        first.filter(|(_, address)| self.mesh && address.port() != 0)
    }

    fn launch_edge(&mut self, name: &str) -> anyhow::Result<()> {
        let of = |site: &Site| {
            let relays = site.quic().filter(|_| !site.dials());
            relays.map(|(relay, at)| (relay.to_owned(), at)).collect()
        };
        let sites = self.sites.iter();
        let addresses = sites.map(|(name, site)| (name.clone(), of(site))).collect();
        let links = self.links.clone();
        self.edge_mut(name)?.start(&addresses, &links)
    }

    fn certify(&self, identity: &Identity) -> anyhow::Result<()> {
        let validity = Validity::days(1)?;
        kvgrid_certs::issue(self.dir.path(), identity, validity, Overwrite::Refuse)?;
        Ok(())
    }

    /// Where clients reach an edge.
    pub fn url(&self, edge: &str) -> anyhow::Result<String> {
        self.edge(edge)?.client_url()
    }

    /// Where operators reach an edge.
    pub fn admin_url(&self, edge: &str) -> anyhow::Result<String> {
        self.edge(edge)?.admin_url()
    }

    /// The client that everything here asks with.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The names of the sites.
    pub fn site_names(&self) -> impl Iterator<Item = &str> {
        self.sites.keys().map(String::as_str)
    }

    /// Asks an edge for a conversation's next turn, and takes the answer into it.
    pub async fn turn(&self, edge: &str, conversation: &mut Conversation) -> anyhow::Result<Turn> {
        conversation
            .turn(&self.client, edge, &self.url(edge)?)
            .await
            .with_context(|| format!("asking {edge}, which said:\n{}", self.said(edge)))
    }

    /// The last lines of an edge's log.
    fn said(&self, edge: &str) -> String {
        self.edges
            .get(edge)
            .map_or_else(String::new, Edge::last_output)
    }

    /// Asks a site's engine past all edges.
    pub async fn ask_site(
        &self,
        site: &str,
        conversation: &mut Conversation,
    ) -> anyhow::Result<Turn> {
        let url = self.site(site)?.engine_url();
        conversation
            .turn(&self.client, site, &url)
            .await
            .with_context(|| format!("asking {site}"))
    }

    /// Asks a site's engine past all edges, and waits until these know what it has cached.
    pub async fn warm(&self, site: &str, conversation: &mut Conversation) -> anyhow::Result<()> {
        self.ask_site(site, conversation).await?;
        self.until_applied(site).await
    }

    /// What an edge knows.
    pub async fn known(&self, edge: &str) -> anyhow::Result<Known> {
        Known::ask(&self.client, &self.admin_url(edge)?).await
    }

    /// Waits for a condition on what an edge knows.
    pub async fn until(
        &self,
        edge: &str,
        what: &str,
        is: impl Fn(&Known) -> bool,
    ) -> anyhow::Result<()> {
        let admin_url = self.admin_url(edge)?;
        Known::until(&self.client, &admin_url, what, PATIENCE, is)
            .await
            .with_context(|| format!("{edge}, which said:\n{}", self.said(edge)))?;
        Ok(())
    }

    /// Waits until every edge that runs can send requests to every relay that runs, knows
    /// every site that runs, whole, and is ready.
    pub async fn until_complete(&mut self) -> anyhow::Result<()> {
        let running = self.sites.values_mut();
        let running = running.filter_map(|site| {
            let relays = site.running();
            let name = site.name().to_owned();
            (!relays.is_empty()).then(|| (name, site.tells(), relays))
        });
        let sites: Vec<(String, bool, Vec<String>)> = running.collect();
        for (name, edge) in self.edges.iter().filter(|(_, edge)| edge.is_started()) {
            self.until(name, "all sites are complete", |known| {
                let serves = |relay: &String| known.serves(relay);
                sites.iter().all(|(site, tells, relays)| {
                    let known_whole = if *tells {
                        known.complete(site)
                    } else {
                        known.usable(site)
                    };
                    known_whole && relays.iter().all(serves)
                })
            })
            .await?;
            let ready = self
                .client
                .get(&format!("{}/readyz", edge.admin_url()?))
                .await?;
            if !ready.status.is_success() {
                bail!("{name} knows all sites, but is not ready: {}", ready.text());
            }
        }
        Ok(())
    }

    /// Waits until every edge that runs has applied all that a site has published until now.
    pub async fn until_applied(&self, site: &str) -> anyhow::Result<()> {
        let published = self.site(site)?.engine(&self.client).await?.published;
        let Some(last) = published.checked_sub(1) else {
            return Ok(());
        };
        for (name, _) in self.edges.iter().filter(|(_, edge)| edge.is_started()) {
            let what = format!("message {last} of {site} is applied");
            self.until(name, &what, |known| known.applied(site, &[last]))
                .await?;
        }
        Ok(())
    }

    /// How many requests the sites have answered to their end.
    pub async fn answers(&self) -> anyhow::Result<u64> {
        let mut answers = 0;
        for site in self.sites.values() {
            answers += site.engine(&self.client).await?.answers;
        }
        Ok(answers)
    }

    /// Waits until a relay knows so many relays alive, itself among them.
    pub async fn until_members(&self, relay: &str, members: usize) -> anyhow::Result<()> {
        let mut sites = self.sites.values();
        let site = sites.find(|site| site.has_relay(relay));
        let site = site.with_context(|| format!("there is no relay {relay}"))?;
        let wanted = format!("kvgrid_relay_members {members}");
        let deadline = Instant::now() + PATIENCE;
        while !site
            .metrics(relay, &self.client)
            .await?
            .lines()
            .any(|line| line == wanted)
        {
            if Instant::now() > deadline {
                bail!("not after {PATIENCE:?}: {relay} knows {members} relays");
            }
            sleep(process::POLL).await;
        }
        Ok(())
    }

    /// Lets a site's engine fail, or no longer.
    pub async fn set_fault(&self, site: &str, fault: Option<Fault>) -> anyhow::Result<()> {
        let url = format!("{}/emulator/fault", self.site(site)?.engine_url());
        let (method, body) = match fault {
            Some(fault) => (Method::PUT, serde_json::to_value(fault)?),
            None => (Method::DELETE, serde_json::Value::Null),
        };
        let answer = self.client.call(method, &url, &[], &body).await?;
        anyhow::ensure!(answer.status.is_success(), "{url}: {}", answer.text());
        Ok(())
    }

    /// Where a relay listens.
    pub fn relay_address(&self, relay: &str) -> anyhow::Result<SocketAddr> {
        let mut relays = self.sites.values().flat_map(Site::quic);
        let found = relays.find(|(name, _)| *name == relay);
        let (_, address) = found.with_context(|| format!("there is no relay {relay}"))?;
        Ok(address)
    }

    /// The switch of the link between an edge and a relay.
    pub fn link(&self, edge: &str, relay: &str) -> anyhow::Result<&Switch> {
        self.edge(edge)?.link(relay)
    }

    /// Tells everything to end, edges first; names what had to be killed.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let mut stubborn = Vec::new();
        for edge in self.edges.values_mut() {
            stubborn.extend(edge.stop().await);
        }
        for site in self.sites.values_mut() {
            stubborn.extend(site.stop().await);
        }
        self.links.finish(Duration::from_secs(1)).await;
        if stubborn.is_empty() {
            Ok(())
        } else {
            bail!("did not end when told to: {}", stubborn.join(", "))
        }
    }

    fn site(&self, name: &str) -> anyhow::Result<&Site> {
        self.sites.get(name).with_context(|| no_site(name))
    }

    fn site_mut(&mut self, name: &str) -> anyhow::Result<&mut Site> {
        self.sites.get_mut(name).with_context(|| no_site(name))
    }

    fn site_of(&mut self, relay: &str) -> anyhow::Result<&mut Site> {
        let mut sites = self.sites.values_mut();
        let site = sites.find(|site| site.has_relay(relay));
        site.with_context(|| format!("there is no relay {relay}"))
    }

    fn edge(&self, name: &str) -> anyhow::Result<&Edge> {
        self.edges.get(name).with_context(|| no_edge(name))
    }

    fn edge_mut(&mut self, name: &str) -> anyhow::Result<&mut Edge> {
        self.edges.get_mut(name).with_context(|| no_edge(name))
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        self.links.stop();
    }
}

fn no_site(name: &str) -> String {
    format!("there is no site {name}")
}

fn no_edge(name: &str) -> String {
    format!("there is no edge {name}")
}

fn relay_identity(
    trust_domain: &TrustDomain,
    site: &SitePlan,
    relay: &str,
) -> anyhow::Result<Identity> {
    let (site_id, relay) = (SiteId::new(&site.name)?, RelayId::new(relay)?);
    let identity = Identity::relay(trust_domain.clone(), site_id, relay);
    Ok(identity.with_region(Region::new(&site.region)?))
}

fn edge_identity(trust_domain: &TrustDomain, edge: &EdgePlan) -> anyhow::Result<Identity> {
    let (region, id) = (Region::new(&edge.region)?, EdgeId::new(&edge.name)?);
    Ok(Identity::edge(trust_domain.clone(), region, id))
}
