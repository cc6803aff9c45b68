//! One Dynamo site: frontends and mocked workers that publish their engines' events, and
//! Dynamo's own relay beside them where ours is to follow that.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use http::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::cluster::pod;
use super::commands::{
    WorkerKind, discovery, environment, frontend_arguments, peer_arguments, worker_arguments,
};
use super::filter::Filter;
use super::heard::Place;
use super::meeting::Meeting;
use super::options::{KvSource, Release, SiteOptions};
use super::plane::Plane;
use super::process::Daemon;
use super::services::Services;
use super::{Answer, Dynamo, Engine, ports};
use crate::client::Client;
use crate::harness::config::{Beside, Source};
use crate::harness::{MODEL, model_dir};

mod marks;
mod said;

pub use said::EngineRequests;

/// How long a start may take on a machine that is busy with other things.
const START_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A running site. Dropping it ends its processes; after a panic it shows their output.
#[derive(Debug)]
pub struct Site {
    options: SiteOptions,
    ports: Ports,
    workers: Vec<Daemon>,
    /// Those that are started apart.
    others: Vec<Daemon>,
    frontends: Vec<Daemon>,
    /// Dynamo's own relay, where ours follows it.
    peer: Option<Daemon>,
    meeting: Meeting,
    /// One for each rank of each worker.
    engines: Vec<Engine>,
    plane: Plane,
    /// The ranks of the workers, once they are known.
    places: BTreeSet<Place>,
    filter: Filter,
    client: Client,
    directory: TempDir,
}

#[derive(Clone, Debug)]
pub(super) struct Ports {
    http: [u16; 2],
    /// Those of workers that publish come first.
    workers: Vec<WorkerPorts>,
    pub(super) peer: u16,
    peer_system: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerPorts {
    system: u16,
    /// Its ranks' are this one and those that follow.
    pub(super) events: u16,
    pub(super) replay: u16,
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
            workers: (0..options.workers + options.prefill_workers + options.others.len())
                .map(|_| WorkerPorts::free(options.ranks))
                .collect::<Result<_>>()?,
            peer: ports::free()?,
            peer_system: ports::free()?,
        };
        let health = ports.workers.first().context("no worker")?.system;
        let meeting = Meeting::new(options.source, dynamo, &directory, health)?;
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
        let usual = model(options.chat_template, &directory.path().join("model"))?;
        let worker = |name, kind, model: &Path, ports: WorkerPorts| {
            let arguments = worker_arguments(&options, kind, model, ports);
            let mut worker = daemon(name, "dynamo.mocker", arguments);
            let system = ("DYN_SYSTEM_PORT", ports.system.to_string());
            worker.environment.push(system);
            worker
        };
        let mut free = ports.workers.iter().copied();
        let mut workers = Vec::new();
        let prefill = ["prefill worker", "second prefill worker"].into_iter();
        for (name, ports) in prefill.take(options.prefill_workers).zip(&mut free) {
            workers.push(worker(name, WorkerKind::prefill(&options), &usual, ports));
        }
        let others = ["worker", "second worker"]
            .into_iter()
            .take(options.workers);
        for (name, ports) in others.zip(&mut free) {
            workers.push(worker(name, WorkerKind::usual(&options), &usual, ports));
        }
        let mut others = Vec::new();
        let names = ["other worker", "second other worker"];
        for ((other, name), ports) in options.others.iter().zip(names).zip(&mut free) {
            let model = model(other.chat_template, &directory.path().join(name))?;
            let kind = WorkerKind {
                component: other.component,
                block_size: other.block_size,
                mode: None,
            };
            others.push(worker(name, kind, &model, ports));
        }
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
                peer_arguments(&options, &ports),
            );
            // It is a member of the site's discovery under a name of its own.
            peer.environment.extend([
                ("DYN_NAMESPACE", format!("relay-{}", options.name)),
                ("DYN_SYSTEM_PORT", ports.peer_system.to_string()),
            ]);
            peer
        });
        let publishers = options.publishing() * options.ranks;
        let engines = endpoints(&ports, &options);
        Ok(Self {
            peer,
            filter: Filter::at(format!("http://127.0.0.1:{}", ports.peer)),
            engines: engines.map(|(_, replay)| Engine::new(replay)).collect(),
            plane: meeting.plane(&directory, &options.name, publishers),
            places: BTreeSet::new(),
            meeting,
            options,
            ports,
            workers,
            others,
            frontends,
            client: Client::default(),
            directory,
        })
    }

    /// Starts all of it and waits until it answers a request.
    pub(super) async fn start_processes(&mut self) -> Result<()> {
        self.start_services().await?;
        self.start_workers()?;
        if !self.options.aliases.is_empty() {
            self.name_workers().await?;
        }
        self.start_frontend()?;
        if self.peer.is_some() {
            self.start_peer()?;
        }
        self.until_serving().await
    }

    /// Gives the workers' model its other names, for the mocker can't be told any. Frontends read
    /// a card when they find it, and the workers don't write it again.
    async fn name_workers(&self) -> Result<()> {
        let entries = discovery(&self.directory).join("v1/mdc");
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let found: Vec<_> = fs::read_dir(&entries).into_iter().flatten().collect();
            if found.len() >= self.workers.len() {
                return found.into_iter().try_for_each(|entry| {
                    let (entry, aside) = (entry?.path(), self.directory.path().join("named"));
                    let mut card: Value = serde_json::from_slice(&fs::read(&entry)?)?;
                    card["card_json"]["aliases"] = json!(self.options.aliases);
                    fs::write(&aside, card.to_string())?;
                    Ok(fs::rename(&aside, &entry)?)
                });
            }
            ensure!(Instant::now() < deadline, "the workers tell no cards");
            sleep(POLL).await;
        }
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
                KvSource::EngineZmq => {
                    let systems = self.ports.workers.iter().map(|worker| worker.system);
                    systems.map(metrics_url).collect()
                }
                // How full the workers are comes by their events.
                KvSource::DynamoEvents
                | KvSource::DynamoNats
                | KvSource::DynamoKubernetes
                | KvSource::DynamoRelay => vec![format!("{frontend}/metrics")],
            },
            frontend,
            source: match self.options.source {
                KvSource::EngineZmq => Source::EngineZmq {
                    endpoints: endpoints(&self.ports, &self.options).collect(),
                    role: (self.options.prefill_workers > 0).then_some("prefill"),
                    block_size: self.options.block_size,
                    capacity_blocks: self.options.blocks * self.engines.len(),
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

    /// What the first worker's first rank published.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engines[0]
    }

    /// The sequence of the last message of each rank that has published any.
    pub(super) async fn last_sequences(&mut self) -> Result<Vec<u64>> {
        let mut last = Vec::new();
        for engine in &mut self.engines {
            last.extend(engine.last_sequence().await?);
        }
        Ok(last)
    }

    /// Kills all frontends with SIGKILL.
    pub fn kill_frontend(&mut self) {
        self.frontends.iter_mut().for_each(Daemon::kill);
    }

    /// Kills the workers with SIGKILL; what they had cached is gone.
    pub fn kill_workers(&mut self) {
        self.workers.iter_mut().for_each(Daemon::kill);
        self.forget_workers();
    }

    /// Ends the workers with SIGTERM: they say goodbye, and their cache is gone.
    pub async fn stop_workers(&mut self) {
        for worker in &mut self.workers {
            worker.stop().await;
        }
        self.forget_workers();
    }

    fn forget_workers(&mut self) {
        self.plane.killed();
        self.places.clear();
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

    /// Starts the workers on their old ports, with empty caches; they serve some time after.
    pub fn start_workers(&mut self) -> Result<()> {
        self.engines.iter_mut().for_each(Engine::restarted);
        self.workers.iter_mut().try_for_each(Daemon::start)
    }

    /// Starts one of the workers that are unlike the usual ones; it serves some time after, if
    /// the frontend takes it.
    pub fn start_other(&mut self, number: usize) -> Result<()> {
        let other = self.others.get_mut(number);
        other.context("there is no such worker")?.start()
    }

    /// Ends such a worker with SIGTERM.
    pub async fn stop_other(&mut self, number: usize) {
        if let Some(other) = self.others.get_mut(number) {
            other.stop().await;
        }
    }

    /// Ends the workers that only compute prompts with SIGTERM, and starts them with empty caches.
    pub async fn restart_prefill_workers(&mut self) -> Result<()> {
        let prefill = self.options.prefill_workers;
        for worker in self.workers.iter_mut().take(prefill) {
            worker.stop().await;
        }
        self.forget_workers();
        self.engines.iter_mut().for_each(Engine::restarted);
        let mut workers = self.workers.iter_mut().take(prefill);
        workers.try_for_each(Daemon::start)
    }

    /// Ends the workers with SIGTERM and starts them again, in place of them, with blocks of this
    /// size and this template: the model has another card.
    pub async fn change_workers(
        &mut self,
        block_size: NonZeroU32,
        chat_template: Option<&'static str>,
    ) -> Result<()> {
        self.stop_workers().await;
        self.options.block_size = block_size;
        self.options.chat_template = chat_template;
        // It goes with the site's own.
        let directory = tempfile::tempdir_in(self.directory.path())?.keep();
        let model = model(chat_template, &directory.join("model"))?;
        let ports = self.ports.workers.iter();
        for (worker, ports) in self.workers.iter_mut().zip(ports) {
            let kind = WorkerKind::usual(&self.options);
            worker.arguments = worker_arguments(&self.options, kind, &model, *ports);
        }
        self.start_workers()
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
        let daemons = self.frontends.iter_mut().chain(&mut self.workers);
        for daemon in daemons.chain(&mut self.others).chain(&mut self.peer) {
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

/// The directory of a model with this template, which is made if it isn't the usual one.
fn model(chat_template: Option<&str>, directory: &Path) -> Result<PathBuf> {
    let Some(template) = chat_template else {
        return Ok(model_dir());
    };
    let model = directory.to_owned();
    fs::create_dir(&model)?;
    for file in fs::read_dir(model_dir())? {
        let file = file?;
        fs::copy(file.path(), model.join(file.file_name()))?;
    }
    let config = model.join("tokenizer_config.json");
    let mut text: Value = serde_json::from_slice(&fs::read(&config)?)?;
    text["chat_template"] = template.into();
    fs::write(&config, text.to_string())?;
    Ok(model)
}

impl WorkerPorts {
    fn free(ranks: usize) -> Result<Self> {
        let ranks = u16::try_from(ranks)?;
        Ok(Self {
            system: ports::free()?,
            events: ports::first_of(ranks)?,
            replay: ports::first_of(ranks)?,
        })
    }
}

/// Where each rank of each worker that publishes does so, and where it tells it again.
fn endpoints(ports: &Ports, options: &SiteOptions) -> impl Iterator<Item = (String, String)> {
    let ranks = u16::try_from(options.ranks).expect("it was given so many ports");
    let at = |port: u16| format!("tcp://127.0.0.1:{port}");
    let of = move |worker: &WorkerPorts| {
        let worker = *worker;
        (0..ranks).map(move |rank| (at(worker.events + rank), at(worker.replay + rank)))
    };
    let publishing = ports.workers.iter().take(options.publishing());
    publishing.flat_map(of)
}

fn metrics_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/metrics")
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
            let daemons = self.frontends.iter().chain(&self.workers);
            for daemon in daemons.chain(&self.others).chain(&self.peer) {
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
