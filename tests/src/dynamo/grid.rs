//! Real sites, relays beside each, and one edge that clients ask.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kvgrid_certs::{Identity, Overwrite, TrustDomain, Validity};
use kvgrid_core::{EdgeId, Region, RelayId, SiteId};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Answer, Dynamo, KvSource, Site, SiteOptions};
use crate::client::Client;
use crate::harness::process::{POLL, Process};
use crate::harness::{Conversation, Known, MODEL, Turn, config};

/// How long an event may take from an engine to the edge on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const EDGE: &str = "eu-1";

/// A running grid of real sites. Dropping it ends all of it; after a panic it shows what
/// everything said last.
#[derive(Debug)]
pub struct Grid {
    sites: BTreeMap<String, Site>,
    relays: Vec<Process>,
    edge: Process,
    client: Client,
    client_url: String,
    admin_url: String,
    // Last: nodes write into it until they have ended.
    _dir: TempDir,
}

impl Grid {
    /// Starts sites, relays and the edge, and waits until the edge knows all sites whole.
    /// Nodes run as processes of `program`.
    pub async fn start(dynamo: &Dynamo, sites: Vec<SiteOptions>, program: &Path) -> Result<Self> {
        Self::start_with(dynamo, sites, program, "").await
    }

    /// The same with an edge that is told this besides, as TOML.
    pub async fn start_with(
        dynamo: &Dynamo,
        sites: Vec<SiteOptions>,
        program: &Path,
        edge: &str,
    ) -> Result<Self> {
        let tempdir = tempfile::Builder::new().prefix("kvgrid-").tempdir()?;
        let dir = tempdir.path();
        let realm = TrustDomain::new("grid.example")?;
        kvgrid_certs::init(dir, realm.clone(), Overwrite::Refuse)?;
        let mut grid = Self {
            sites: BTreeMap::new(),
            relays: Vec::new(),
            edge: Process::new(program, "edge", dir, EDGE),
            client: Client::default(),
            client_url: String::new(),
            admin_url: String::new(),
            _dir: tempdir,
        };
        let dir = grid._dir.path().to_owned();
        let mut network = config::RelayNetwork::default();
        for options in sites {
            dynamo.note(options.source, options.release);
            let mut site = Site::new(dynamo, options)?;
            // What an engine has published, it can tell again, and so can Dynamo's relay. Its
            // event plane can't: a relay has to be there first to know all of it.
            site.start_services().await?;
            if site.source().is_told_again() {
                site.start_processes().await?;
            }
            for number in 1..=site.relays() {
                let name = format!("{}-{number}", site.name());
                let (id, relay_id) = (SiteId::new(site.name())?, RelayId::new(&name)?);
                issue(&dir, &Identity::relay(realm.clone(), id, relay_id))?;
                let text =
                    config::relay(&dir, &name, &site.beside(number - 1), config::ANY, &network);
                config::write(&dir, &name, &text)?;
                let mut relay = Process::new(program, "relay", &dir, &name);
                relay.start()?;
                let quic = relay.ready().await?["quic"];
                // Where it stays if it is started again.
                let text = config::relay(&dir, &name, &site.beside(number - 1), quic, &network);
                config::write(&dir, &name, &text)?;
                network.seeds.push(quic);
                grid.relays.push(relay);
            }
            if !site.source().is_told_again() {
                site.start_processes().await?;
            }
            grid.sites.insert(site.name().to_owned(), site);
        }
        issue(
            &dir,
            &Identity::edge(realm, Region::new("eu")?, EdgeId::new(EDGE)?),
        )?;
        let seeds = config::Seeds {
            quorum: grid.sites.len(),
            addresses: network.seeds,
            straight: false,
        };
        let text = config::edge(&dir, EDGE, config::ANY, &seeds) + edge;
        config::write(&dir, EDGE, &text)?;
        grid.start_edge().await?;
        Ok(grid)
    }

    async fn start_edge(&mut self) -> Result<()> {
        self.edge.start()?;
        let addresses = self.edge.ready().await?;
        self.client_url = format!("http://{}", addresses["client"]);
        self.admin_url = format!("http://{}", addresses["admin"]);
        let names: Vec<&String> = self.sites.keys().collect();
        self.until("all sites are known", PATIENCE, |known| {
            let mut relays = self.relays.iter().map(Process::name);
            names.iter().all(|name| known.complete(name)) && relays.all(|name| known.serves(name))
        })
        .await?;
        Ok(())
    }

    /// The names of the sites.
    pub fn site_names(&self) -> Vec<String> {
        self.sites.keys().cloned().collect()
    }

    /// A site.
    ///
    /// # Panics
    ///
    /// If there is none of this name.
    pub fn site(&mut self, name: &str) -> &mut Site {
        self.sites
            .get_mut(name)
            .expect("the test names a site of the grid")
    }

    /// Where clients reach the edge.
    pub fn url(&self) -> &str {
        &self.client_url
    }

    /// A client of the tests' own.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Sends JSON to the edge.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        let url = format!("{}{path}", self.client_url);
        Ok(self.client.post(&url, body).await?.into())
    }

    /// The models that the edge lists.
    pub async fn models(&self) -> Result<Vec<String>> {
        let url = format!("{}/v1/models", self.client_url);
        let list: Value = serde_json::from_slice(&self.client.get(&url).await?.body)?;
        let models = list["data"].as_array().into_iter().flatten();
        let names = models.filter_map(|model| model["id"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Asks the edge for a conversation's next turn.
    pub async fn turn(&self, conversation: &mut Conversation) -> Result<Turn> {
        conversation
            .turn(&self.client, EDGE, &self.client_url)
            .await
    }

    /// Asks a site past the edge.
    pub async fn ask_site(&self, site: &str, conversation: &mut Conversation) -> Result<Turn> {
        let url = self.sites[site].frontend_url();
        conversation.turn(&self.client, site, &url).await
    }

    /// Gives a site something to do, one request after the other, until this is dropped.
    pub fn keep_busy(&self, site: &str) -> JoinSet<()> {
        let url = format!("{}/v1/completions", self.sites[site].frontend_url());
        let client = self.client.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let body = json!({"model": MODEL, "max_tokens": 500, "prompt": "a"});
            while client.post(&url, &body).await.is_ok() {}
        });
        task
    }

    /// What the edge knows.
    pub async fn known(&self) -> Result<Known> {
        Known::ask(&self.client, &self.admin_url).await
    }

    /// Waits for a condition on what the edge knows.
    pub async fn until(
        &self,
        what: &str,
        patience: Duration,
        is: impl Fn(&Known) -> bool,
    ) -> Result<Known> {
        Known::until(&self.client, &self.admin_url, what, patience, is).await
    }

    /// What the edge counts.
    pub async fn edge_metrics(&self) -> Result<String> {
        let page = self
            .client
            .get(&format!("{}/metrics", self.admin_url))
            .await?;
        Ok(page.text())
    }

    /// A relay dies without a word.
    pub fn kill_relay(&mut self, relay: &str) -> Result<()> {
        self.relay_named(relay)?.kill();
        Ok(())
    }

    /// Ends a site's first relay with SIGTERM and starts it again at its old address.
    pub async fn restart_relay(&mut self, site: &str) -> Result<()> {
        let relay = self.relay(site)?;
        relay.stop().await;
        relay.start()?;
        relay.ready().await?;
        Ok(())
    }

    /// Waits until a site's relay says all this on its metrics page, each without the prefix
    /// that all its metrics have.
    pub async fn until_relay_says(&mut self, site: &str, lines: &[&str]) -> Result<()> {
        let admin = self.relay(site)?.ready().await?["admin"];
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = self.client.get(&format!("http://{admin}/metrics")).await?;
            let page = String::from_utf8_lossy(&page.body).into_owned();
            let said = |line: &&str| page.contains(&format!("\nkvgrid_relay_{line}\n"));
            if lines.iter().all(said) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "it says instead: {page}");
            sleep(POLL).await;
        }
    }

    fn relay(&mut self, site: &str) -> Result<&mut Process> {
        self.relay_named(&format!("{site}-1"))
    }

    fn relay_named(&mut self, name: &str) -> Result<&mut Process> {
        let mut relays = self.relays.iter_mut();
        let relay = relays.find(|relay| relay.name() == name);
        relay.with_context(|| format!("there is no {name}"))
    }

    /// Waits until the edge has applied all that the sites say they have published.
    pub async fn until_applied(&mut self) -> Result<()> {
        for (name, site) in &mut self.sites {
            match site.source() {
                KvSource::EngineZmq => {
                    let last = site.last_sequences().await;
                    let last = last.with_context(|| format!("asking {name}'s engines"))?;
                    let is = |known: &Known| known.applied(name, &last);
                    let what = format!("{last:?} of {name} is applied");
                    Known::until(&self.client, &self.admin_url, &what, PATIENCE, is).await?;
                }
                KvSource::DynamoEvents
                | KvSource::DynamoNats
                | KvSource::DynamoKubernetes
                | KvSource::DynamoRelay => {
                    let all = site.until_published().await?;
                    let is = |known: &Known| {
                        let mut all = all.iter();
                        all.all(|it| known.applied_of(name, it.publisher, it.sequence))
                    };
                    let what = format!("{all:?} of {name} is applied");
                    Known::until(&self.client, &self.admin_url, &what, PATIENCE, is).await?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Grid {
    #[allow(
        clippy::print_stderr,
        reason = "the test runner shows it with the failed test"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in self.relays.iter().chain([&self.edge]) {
                eprintln!("--- last output of {}\n{}", node.name(), node.last_output());
            }
        }
    }
}

fn issue(dir: &Path, identity: &Identity) -> Result<()> {
    kvgrid_certs::issue(dir, identity, Validity::days(1)?, Overwrite::Refuse)?;
    Ok(())
}
