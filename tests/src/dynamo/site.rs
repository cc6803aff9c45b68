//! One Dynamo site: a frontend and a mocked worker that publishes its engine's events, and
//! Dynamo's own relay beside them where ours is to follow that.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::StatusCode;
use kvgrid_core::block::{HashFormat, HashSeed, block_hashes};
use rand::RngExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::cluster::pod;
use super::commands::{
    discovery, environment, frontend_arguments, peer_arguments, worker_arguments,
};
use super::filter::Filter;
use super::meeting::Meeting;
use super::plane::{Plane, Published};
use super::process::Daemon;
use super::services::Services;
use super::{Answer, Dynamo, Engine, ports};
use crate::client::Client;
use crate::harness::MODEL;
use crate::harness::config::{Beside, Source};

/// How long a start may take on a machine that is busy with other things.
const START_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// How many tokens the question has by whose event the tests know what was published.
const MARK_TOKENS: usize = 16;
/// How long that event may take before the question is put again.
const MARK_PATIENCE: Duration = Duration::from_secs(2);
/// Ids that aren't special in the fixture's vocabulary.
const IDS: Range<u32> = 10..2000;

/// By which events a relay knows what a site has cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// The engine's own, raw.
    EngineZmq,
    /// Dynamo's event plane; then the engine publishes none itself, and the relay has its card
    /// from Dynamo's discovery.
    DynamoEvents,
    /// The same as by its event plane, with discovery in etcd and events by NATS.
    DynamoNats,
    /// The same as by its event plane, with discovery in Kubernetes.
    DynamoKubernetes,
    /// The filters of Dynamo's own relay; the card comes from discovery in files.
    DynamoRelay,
}

impl KvSource {
    /// Whether the engine itself publishes.
    pub const fn is_engine(self) -> bool {
        matches!(self, Self::EngineZmq)
    }

    /// Whether a relay that comes late can be told all of it.
    pub const fn is_told_again(self) -> bool {
        matches!(self, Self::EngineZmq | Self::DynamoRelay)
    }
}

/// Which Dynamo a site runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// 1.6.1.
    Current,
    /// 1.5.1.
    Older,
}

/// What differs between sites.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    /// The site's name and its Dynamo namespace.
    pub name: String,
    /// Tokens in a block.
    pub block_size: NonZeroU32,
    /// Blocks in the cache.
    pub blocks: usize,
    /// How many times faster than the mocker's model of an engine.
    pub speedup: u32,
    /// By which events a relay follows it.
    pub source: KvSource,
    /// How many frontends it has, each with a relay beside it: one or two.
    pub relays: usize,
    /// Which Dynamo it runs.
    pub release: Release,
    /// How many workers it has, all of one process.
    pub workers: usize,
    /// How many data-parallel ranks each of them has.
    pub ranks: usize,
    /// Blocks that each rank has in host memory; relays tell of that tier as well if there are
    /// any.
    pub host_blocks: usize,
}

impl SiteOptions {
    /// A site of 2,048 blocks of 16 tokens, ten times as fast as the mocker's model.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            block_size: const { NonZeroU32::new(16).expect("16 is not zero") },
            blocks: 2048,
            speedup: 10,
            source: KvSource::EngineZmq,
            relays: 1,
            release: Release::Current,
            workers: 1,
            ranks: 1,
            host_blocks: 0,
        }
    }
}

/// A running site. Dropping it ends its processes; after a panic it shows their output.
#[derive(Debug)]
pub struct Site {
    options: SiteOptions,
    ports: Ports,
    worker: Daemon,
    frontends: Vec<Daemon>,
    /// Dynamo's own relay, where ours follows it.
    peer: Option<Daemon>,
    meeting: Meeting,
    engine: Engine,
    plane: Plane,
    filter: Filter,
    client: Client,
    directory: TempDir,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) http: [u16; 2],
    pub(super) system: u16,
    pub(super) events: u16,
    pub(super) replay: u16,
    pub(super) peer: u16,
    pub(super) peer_system: u16,
}

impl Site {
    /// Starts a site and waits until it answers a request.
    pub async fn start(dynamo: &Dynamo, options: SiteOptions) -> Result<Self> {
        let mut site = Self::new(dynamo, options)?;
        site.start_processes().await?;
        Ok(site)
    }

    /// A site of which nothing runs yet.
    pub(super) fn new(dynamo: &Dynamo, options: SiteOptions) -> Result<Self> {
        let directory = tempfile::tempdir().context("no temporary directory")?;
        let ports = Ports {
            http: [ports::free()?, ports::free()?],
            system: ports::free()?,
            events: ports::free()?,
            replay: ports::free()?,
            peer: ports::free()?,
            peer_system: ports::free()?,
        };
        let meeting = Meeting::new(options.source, dynamo, &directory, ports.system)?;
        let mut environment = environment(&options, &directory, &meeting);
        if options.release == Release::Older {
            environment.push(("PYTHONPATH", dynamo.older()?.display().to_string()));
        }
        let daemon = |name, module: &str, arguments| Daemon {
            environment: environment.iter().cloned().chain(pod(name)).collect(),
            name,
            python: dynamo.installation().python().to_owned(),
            module: String::from(module),
            arguments,
            log: directory.path().join(format!("{name}.log")),
            child: None,
        };
        let mut worker = daemon("worker", "dynamo.mocker", worker_arguments(&options, ports));
        worker
            .environment
            .push(("DYN_SYSTEM_PORT", ports.system.to_string()));
        let frontends = ["frontend", "second frontend"].into_iter().zip(ports.http);
        let frontends = frontends.take(options.relays).map(|(name, port)| {
            let arguments = frontend_arguments(&options, port);
            daemon(name, "dynamo.frontend", arguments)
        });
        let frontends = frontends.collect();
        let peer = (options.source == KvSource::DynamoRelay).then(|| {
            let mut peer = daemon(
                "relay",
                "dynamo.kv_dc_relay",
                peer_arguments(&options, ports),
            );
            // It is a member of the site's discovery under a name of its own.
            peer.environment.extend([
                ("DYN_NAMESPACE", format!("relay-{}", options.name)),
                ("DYN_SYSTEM_PORT", ports.peer_system.to_string()),
            ]);
            peer
        });
        Ok(Self {
            peer,
            filter: Filter::at(format!("http://127.0.0.1:{}", ports.peer)),
            engine: Engine::new(format!("tcp://127.0.0.1:{}", ports.replay)),
            plane: meeting.plane(&directory, &options.name),
            meeting,
            options,
            ports,
            worker,
            frontends,
            client: Client::default(),
            directory,
        })
    }

    /// Starts all of it and waits until it answers a request.
    pub(super) async fn start_processes(&mut self) -> Result<()> {
        self.start_services().await?;
        self.start_worker()?;
        self.start_frontend()?;
        if self.peer.is_some() {
            self.start_peer()?;
        }
        self.until_serving().await
    }

    /// Starts what its processes meet by, unless it runs.
    pub(super) async fn start_services(&mut self) -> Result<()> {
        self.meeting.start().await
    }

    /// Its etcd and NATS.
    ///
    /// # Panics
    ///
    /// If its processes meet by something else.
    pub fn services(&mut self) -> &mut Services {
        let Meeting::Services(services) = &mut self.meeting else {
            panic!("the site has neither etcd nor NATS");
        };
        services
    }

    /// The site's name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// The first frontend's address for clients and relays.
    pub fn frontend_url(&self) -> String {
        frontend_url(self.ports.http[0])
    }

    /// What the relay beside a frontend needs to know of it; the first frontend is 0.
    pub(crate) fn beside(&self, frontend: usize) -> Beside {
        let frontend = frontend_url(self.ports.http[frontend]);
        Beside {
            metrics: match self.options.source {
                KvSource::EngineZmq => format!("http://127.0.0.1:{}/metrics", self.ports.system),
                // How full the worker is comes by its events.
                KvSource::DynamoEvents
                | KvSource::DynamoNats
                | KvSource::DynamoKubernetes
                | KvSource::DynamoRelay => format!("{frontend}/metrics"),
            },
            frontend,
            source: match self.options.source {
                KvSource::EngineZmq => Source::EngineZmq {
                    events: format!("tcp://127.0.0.1:{}", self.ports.events),
                    replay: format!("tcp://127.0.0.1:{}", self.ports.replay),
                    block_size: self.options.block_size,
                    capacity_blocks: self.options.blocks,
                },
                KvSource::DynamoEvents | KvSource::DynamoNats | KvSource::DynamoKubernetes => {
                    Source::DynamoEvents {
                        meet: self.meeting.meet(&self.directory),
                        namespace: self.options.name.clone(),
                        has_host_tier: self.options.host_blocks > 0,
                    }
                }
                KvSource::DynamoRelay => Source::DynamoRelay {
                    url: format!("http://127.0.0.1:{}", self.ports.peer),
                    discovery: discovery(&self.directory),
                    namespace: self.options.name.clone(),
                },
            },
        }
    }

    /// How many relays follow it, each beside a frontend of its own.
    pub fn relays(&self) -> usize {
        self.options.relays
    }

    /// By which events a relay follows it.
    pub fn source(&self) -> KvSource {
        self.options.source
    }

    /// Waits until all that the site has done is published, on Dynamo's event plane or by
    /// Dynamo's relay, and heard, and says how far that goes. Takes a question of a block, for
    /// its event comes last.
    pub async fn until_published(&mut self) -> Result<Published> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let name = self.ask_mark().await?;
            let heard = match self.options.source {
                KvSource::DynamoRelay => self.filter.hear(name, MARK_PATIENCE).await,
                KvSource::EngineZmq
                | KvSource::DynamoEvents
                | KvSource::DynamoNats
                | KvSource::DynamoKubernetes => self.plane.hear(name, MARK_PATIENCE).await?,
            };
            if let Some(published) = heard {
                return Ok(published);
            }
            // The subscription was not in place yet.
            if Instant::now() > deadline {
                bail!("site {} publishes nothing", self.name());
            }
        }
    }

    /// Asks what nobody has asked before, and gives the name of its block.
    async fn ask_mark(&mut self) -> Result<u64> {
        let mut rng = rand::rng();
        let ids: Vec<u32> = (0..MARK_TOKENS).map(|_| rng.random_range(IDS)).collect();
        let name = block_hashes(
            &ids,
            self.options.block_size,
            HashFormat::Standard,
            HashSeed::default(),
        );
        let name = name.into_iter().next().context("a whole block")?;
        let question = json!({"model": MODEL, "max_tokens": 1, "prompt": ids});
        self.until_answered("/v1/completions", &question).await?;
        Ok(name.0)
    }

    /// The names of the blocks that the worker holds by its events on Dynamo's plane, as far
    /// as they were heard.
    pub fn heard(&self) -> BTreeSet<u64> {
        self.plane.held()
    }

    /// What the engine published.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Kills all frontends with SIGKILL.
    pub fn kill_frontend(&mut self) {
        self.frontends.iter_mut().for_each(Daemon::kill);
    }

    /// Kills the worker with SIGKILL; what it had cached is gone.
    pub fn kill_worker(&mut self) {
        self.worker.kill();
        self.plane.killed();
    }

    /// Ends the worker with SIGTERM: it says goodbye, and its cache is gone.
    pub async fn stop_worker(&mut self) {
        self.worker.stop().await;
        self.plane.killed();
    }

    /// Kills Dynamo's own relay with SIGKILL.
    pub fn kill_peer(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.kill();
        }
    }

    /// Starts Dynamo's own relay on its old port, as another life of it.
    pub fn start_peer(&mut self) -> Result<()> {
        self.peer.as_mut().context("the site has none")?.start()
    }

    /// Starts the frontends on their old ports; they serve some time after.
    pub fn start_frontend(&mut self) -> Result<()> {
        self.frontends.iter_mut().try_for_each(Daemon::start)
    }

    /// Starts a worker on the old ports, with an empty cache; it serves some time after.
    pub fn start_worker(&mut self) -> Result<()> {
        self.engine.restarted();
        self.worker.start()
    }

    /// Waits until a request gets 200. The model is listed earlier than that.
    pub async fn until_serving(&mut self) -> Result<()> {
        // A completion is enabled last, and this one is too short to leave a block behind.
        let question = json!({"model": MODEL, "max_tokens": 1, "prompt": "a"});
        self.until_answered("/v1/completions", &question).await?;
        Ok(())
    }

    /// Waits until this request gets 200.
    ///
    /// For some seconds after a worker's restart the frontend still prefers the dead one
    /// for the prompts that it had cached, and answers 503.
    pub async fn until_answered(&mut self, path: &str, body: &Value) -> Result<Answer> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            self.check_processes()?;
            let answer = self.post(path, body).await;
            match answer {
                Ok(answer) if answer.status == StatusCode::OK => return Ok(answer),
                answer if Instant::now() > deadline => {
                    bail!("site {} doesn't serve: {answer:?}", self.name())
                }
                _ => sleep(POLL).await,
            }
        }
    }

    /// Sends JSON to the frontend, past any edge.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        let url = format!("{}{path}", self.frontend_url());
        Ok(self.client.post(&url, body).await?.into())
    }

    fn check_processes(&mut self) -> Result<()> {
        let frontends = self.frontends.iter_mut();
        for daemon in frontends.chain([&mut self.worker]).chain(&mut self.peer) {
            if daemon.ended_by_itself() {
                bail!(
                    "the {} of site {} ended by itself:\n{}",
                    daemon.name,
                    self.options.name,
                    daemon.last_output(),
                );
            }
        }
        Ok(())
    }
}

fn frontend_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

impl Drop for Site {
    #[allow(
        clippy::print_stderr,
        reason = "the test runner shows it with the failed test"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let daemons = self.frontends.iter().chain([&self.worker]);
            for daemon in daemons.chain(&self.peer) {
                eprintln!(
                    "--- last output of the {} of site {}\n{}",
                    daemon.name,
                    self.options.name,
                    daemon.last_output(),
                );
            }
            for (name, output) in self.meeting.last_outputs() {
                eprintln!(
                    "--- last output of {name} of site {}\n{output}",
                    self.options.name
                );
            }
        }
    }
}
