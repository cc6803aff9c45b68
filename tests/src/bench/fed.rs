//! A relay that a bench feeds with events of its own: publishers on Dynamo's event plane, a
//! ZMQ socket each, that register in files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use kvgrid_core::event::KvEvent;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::ground::Ground;
use super::prompts::{Prompts, RUN};
use super::publisher::{self, Publisher};
use crate::client::Client;
use crate::harness::config::{self, Beside, Meet, RelayNetwork, Source};
use crate::harness::process::Process;

/// How long a state may take to come.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often owners touch their entries.
const TOUCH: Duration = Duration::from_secs(3);
/// Messages that the relay may be behind: what its socket doesn't take is lost.
const AHEAD: u64 = 64;
/// Blocks of a message, as many as a prompt has.
const MESSAGE: usize = 512;

/// A site of workers that do nothing but publish.
pub(super) struct FedSite {
    relay: Process,
    /// Where edges, or links, reach the relay.
    pub(super) quic: std::net::SocketAddr,
    metrics_url: String,
    client: Client,
    publishers: Vec<Publisher>,
    /// Messages that were published, and blocks in them.
    messages: u64,
    blocks: u64,
    _touching: JoinSet<()>,
}

impl FedSite {
    /// A relay and so many workers of so many blocks each. The workers come first, so that the
    /// relay knows of all of them how large its filter has to be.
    pub(super) async fn start(
        ground: &Ground,
        name: &str,
        workers: usize,
        worker_blocks: u64,
    ) -> Result<Self> {
        // Nobody serves; what is cached is all that is measured.
        Self::start_behind(ground, name, workers, worker_blocks, "http://127.0.0.1:9").await
    }

    /// The same behind a frontend, which its workers know nothing of.
    pub(super) async fn start_behind(
        ground: &Ground,
        name: &str,
        workers: usize,
        worker_blocks: u64,
        frontend: &str,
    ) -> Result<Self> {
        let discovery = ground.dir().join(format!("{name}-discovery"));
        fs::create_dir_all(&discovery)?;
        let mut relay = configure(ground, name, &discovery, frontend)?;
        let mut publishers = Vec::new();
        let mut entries = Vec::new();
        for number in 0..workers {
            let (publisher, written) = Publisher::start(number, worker_blocks, &discovery).await?;
            publishers.push(publisher);
            entries.extend(written);
        }
        let mut touching = JoinSet::new();
        touching.spawn(touch(entries));
        relay.start()?;
        let addresses = relay.ready().await?;
        let mut site = Self {
            relay,
            quic: addresses["quic"],
            metrics_url: format!("http://{}/metrics", addresses["admin"]),
            client: Client::default(),
            publishers,
            messages: 0,
            blocks: 0,
            _touching: touching,
        };
        site.until_heard().await?;
        Ok(site)
    }

    /// Publishes until each publisher was heard once: what is published before a
    /// subscription is in place is lost, and nobody can tell when that is.
    async fn until_heard(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let wanted = self.publishers.len() as u64;
        loop {
            let before = self.count("source_messages").await?;
            self.publish_all().await?;
            sleep(Duration::from_secs(1)).await;
            let heard = self.count("source_messages").await? - before;
            if heard >= wanted {
                return self.until_quiet().await;
            }
            ensure!(Instant::now() < deadline, "only {heard} are heard");
        }
    }

    /// Waits until nothing more comes of what was published so far, and counts from there.
    async fn until_quiet(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let before = (self.messages, self.blocks);
            self.messages = self.count("source_messages").await?;
            self.blocks = self.held().await?;
            if (self.messages, self.blocks) == before {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "events keep coming");
            sleep(Duration::from_millis(300)).await;
        }
    }

    /// A block of each publisher.
    pub(super) async fn publish_all(&mut self) -> Result<()> {
        for publisher in 0..self.publishers.len() {
            self.publish_block(publisher).await?;
        }
        Ok(())
    }

    /// A block of one publisher.
    pub(super) async fn publish_block(&mut self, publisher: usize) -> Result<()> {
        self.publishers[publisher].publish_block().await?;
        self.blocks += 1;
        self.messages += 1;
        Ok(())
    }

    /// Publishes the next blocks of prompts, no faster than the relay takes them.
    pub(super) async fn publish_prompts(
        &mut self,
        prompts: &mut Prompts,
        blocks: u64,
    ) -> Result<()> {
        let mut heard = 0;
        for message in 0..blocks / MESSAGE as u64 {
            let mut events: Vec<KvEvent> = Vec::new();
            let mut worker = 0;
            for (key, event) in prompts.stored(MESSAGE) {
                worker = key.publisher;
                events.push(event);
            }
            let worker = usize::try_from(worker)? % self.publishers.len();
            self.publishers[worker].publish(events).await?;
            self.blocks += MESSAGE as u64;
            self.messages += 1;
            if message % (AHEAD / 4) == 0 {
                while self.messages > heard + AHEAD {
                    heard = self.count("source_messages").await?;
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        Ok(())
    }

    /// Publishes the next blocks of a prompt, and the eviction of as many; gives how many blocks
    /// these are together.
    pub(super) async fn publish_change(&mut self, prompts: &mut Prompts) -> Result<u64> {
        let mut changes = 0;
        for (key, event) in prompts.stored(RUN).into_iter().chain(prompts.removed(RUN)) {
            changes += event.blocks() as u64;
            let worker = usize::try_from(key.publisher)? % self.publishers.len();
            self.publishers[worker].publish(vec![event]).await?;
            self.messages += 1;
        }
        Ok(changes)
    }

    /// Each publisher, and its last message.
    pub(super) fn last_messages(&self) -> impl Iterator<Item = (u64, u64)> {
        let publishers = self.publishers.iter();
        publishers.map(|publisher| (publisher.id(), publisher.next_message() - 1))
    }

    /// Blocks that the relay's filter has.
    pub(super) async fn held(&self) -> Result<u64> {
        self.count("pool_filter_blocks").await
    }

    /// Blocks that were published.
    pub(super) const fn published(&self) -> u64 {
        self.blocks
    }

    /// Waits until the relay's filter has all blocks that were published.
    pub(super) async fn until_held(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.held().await? < self.blocks {
            ensure!(
                Instant::now() < deadline,
                "{} of {} blocks are held",
                self.held().await?,
                self.blocks
            );
        }
        Ok(())
    }

    /// The sum of a metric's values at the relay.
    pub(super) async fn count(&self, metric: &str) -> Result<u64> {
        let page = self.client.get(&self.metrics_url).await?;
        let page = String::from_utf8_lossy(&page.body).into_owned();
        let of = |line: &str| -> Option<u64> {
            let rest = line.strip_prefix("kvgrid_relay_")?.strip_prefix(metric)?;
            let rest = rest.strip_prefix("_total").unwrap_or(rest);
            rest.starts_with(['{', ' ']).then_some(())?;
            rest.rsplit(' ').next()?.parse().ok()
        };
        Ok(page.lines().filter_map(of).sum())
    }

    /// The relay's process.
    pub(super) fn process(&self) -> Result<u32> {
        self.relay.id().context("the relay has ended")
    }
}

fn configure(ground: &Ground, name: &str, discovery: &Path, frontend: &str) -> Result<Process> {
    ground.certify_relay(name)?;
    let beside = Beside {
        metrics: vec![format!("{frontend}/metrics")],
        frontend: frontend.to_owned(),
        source: Source::DynamoEvents {
            meet: Meet::Files(discovery.to_owned()),
            namespace: publisher::NAMESPACE.to_owned(),
            has_host_tier: false,
        },
    };
    let network = RelayNetwork::default();
    let text = config::relay(ground.dir(), name, &beside, config::ANY, &network);
    config::write(ground.dir(), name, &text)?;
    Ok(ground.process("relay", name))
}

/// Shows for ever that the owners of these entries live.
async fn touch(entries: Vec<PathBuf>) {
    loop {
        let now = SystemTime::now();
        for entry in &entries {
            let file = fs::File::options().append(true).open(entry);
            // An entry that is gone is missed by the relay as well, which the figures show.
            let _ = file.and_then(|file| file.set_modified(now));
        }
        sleep(TOUCH).await;
    }
}
