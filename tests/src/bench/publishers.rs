//! What two thousand publishers of one site cost its relay: descriptors, memory, and how late
//! their events are. They publish on Dynamo's event plane, a ZMQ socket each, and register in
//! files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use kvgrid_certs::{Identity, Overwrite, TrustDomain, Validity};
use kvgrid_core::{RelayId, SiteId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use self::publisher::Publisher;
use crate::bench::figure::{Better, Figure, median};
use crate::client::Client;
use crate::harness::config::{self, Beside, Meet, RelayNetwork, Source};
use crate::harness::process::Process;

mod publisher;

const PUBLISHERS: usize = 2_000;
const RELAY: &str = "fra-1";
/// How long a state may take to come.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often owners touch their entries.
const TOUCH: Duration = Duration::from_secs(3);

#[tokio::main]
pub(super) async fn run(quick: bool, program: &Path) -> Result<()> {
    let (rounds, samples) = if quick { (5, 50) } else { (50, 500) };
    let dir = tempfile::Builder::new().prefix("kvgrid-").tempdir()?;
    let discovery = dir.path().join("discovery");
    let mut site = Site::start(dir.path(), &discovery, program).await?;

    let started = Instant::now();
    for _ in 0..rounds {
        site.publish_all().await?;
    }
    site.until_held().await?;
    let seconds = started.elapsed().as_secs_f64();
    let mut late = Vec::new();
    for sample in 0..samples {
        late.push(site.lateness(sample * 7 % PUBLISHERS).await?);
    }
    let lost = site.count("source_gaps").await?;
    let (descriptors, memory) = site.relay_uses()?;

    let events = (rounds * PUBLISHERS) as f64;
    let p50 = median(&mut late);
    let p99 = late.get(late.len() * 99 / 100).copied();
    for (metric, value, unit, better, bound) in [
        ("descriptors", descriptors, "files", Better::Less, None),
        ("memory", memory, "MiB", Better::Less, None),
        (
            "events_lost",
            lost as f64,
            "events",
            Better::Less,
            Some(0.0),
        ),
        ("events", events / seconds, "events/s", Better::More, None),
        ("event_to_filter_p50", p50, "ms", Better::Less, None),
        (
            "event_to_filter_p99",
            p99.unwrap_or(f64::NAN),
            "ms",
            Better::Less,
            None,
        ),
    ] {
        Figure {
            bench: "publishers",
            metric,
            value,
            unit,
            better,
            bound,
            peer: None,
        }
        .print()?;
    }
    Ok(())
}

struct Site {
    relay: Process,
    metrics_url: String,
    client: Client,
    publishers: Vec<Publisher>,
    /// Blocks that were told so far.
    blocks: u64,
    _touching: JoinSet<()>,
}

impl Site {
    /// The relay first, so that it knows of all publishers from their beginning.
    async fn start(dir: &Path, discovery: &Path, program: &Path) -> Result<Self> {
        let mut relay = configure(dir, discovery, program)?;
        relay.start()?;
        let admin = relay.ready().await?["admin"];
        let mut publishers = Vec::new();
        let mut entries = Vec::new();
        for number in 0..PUBLISHERS {
            let (publisher, written) = Publisher::start(number, discovery).await?;
            publishers.push(publisher);
            entries.extend(written);
        }
        let mut touching = JoinSet::new();
        touching.spawn(touch(entries));
        let mut site = Self {
            relay,
            metrics_url: format!("http://{admin}/metrics"),
            client: Client::default(),
            publishers,
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
        loop {
            let before = self.count("source_messages").await?;
            self.publish_all().await?;
            sleep(Duration::from_secs(1)).await;
            let heard = self.count("source_messages").await? - before;
            if heard >= PUBLISHERS as u64 {
                self.blocks = self.held().await?;
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "only {heard} are heard");
        }
    }

    /// A block of each publisher.
    async fn publish_all(&mut self) -> Result<()> {
        for publisher in &mut self.publishers {
            publisher.publish().await?;
        }
        self.blocks += PUBLISHERS as u64;
        Ok(())
    }

    async fn held(&self) -> Result<u64> {
        self.count("pool_filter_blocks").await
    }

    async fn until_held(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.held().await? < self.blocks {
            ensure!(Instant::now() < deadline, "{} blocks", self.held().await?);
        }
        Ok(())
    }

    /// Milliseconds from an event to its block in the filter that edges get.
    async fn lateness(&mut self, publisher: usize) -> Result<f64> {
        let begun = Instant::now();
        self.publishers[publisher].publish().await?;
        self.blocks += 1;
        self.until_held().await?;
        Ok(begun.elapsed().as_secs_f64() * 1_000.0)
    }

    /// The sum of a metric's values.
    async fn count(&self, metric: &str) -> Result<u64> {
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

    /// Descriptors, and MiB of memory.
    fn relay_uses(&self) -> Result<(f64, f64)> {
        let process = PathBuf::from(format!("/proc/{}", self.relay.id().context("it ended")?));
        let descriptors = fs::read_dir(process.join("fd"))?.count();
        let status = fs::read_to_string(process.join("status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|line| line.split_whitespace().next());
        let kib: f64 = kib.context("no memory is told")?.parse()?;
        Ok((descriptors as f64, kib / 1024.0))
    }
}

fn configure(dir: &Path, discovery: &Path, program: &Path) -> Result<Process> {
    let realm = TrustDomain::new("grid.example")?;
    kvgrid_certs::init(dir, realm.clone(), Overwrite::Refuse)?;
    let identity = Identity::relay(realm, SiteId::new("fra")?, RelayId::new(RELAY)?);
    kvgrid_certs::issue(dir, &identity, Validity::days(1)?, Overwrite::Refuse)?;
    fs::create_dir_all(discovery)?;
    // Nobody serves; what is cached is all that is measured.
    let nobody = "http://127.0.0.1:9".to_owned();
    let beside = Beside {
        metrics: vec![format!("{nobody}/metrics")],
        frontend: nobody,
        source: Source::DynamoEvents {
            meet: Meet::Files(discovery.to_owned()),
            namespace: publisher::NAMESPACE.to_owned(),
            has_host_tier: false,
        },
    };
    let network = RelayNetwork::default();
    let text = config::relay(dir, RELAY, &beside, config::ANY, &network);
    config::write(dir, RELAY, &text)?;
    Ok(Process::new(program, "relay", dir, RELAY))
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
