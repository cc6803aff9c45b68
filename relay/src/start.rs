//! From a configuration to a running relay, and its end.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kvgrid_certs::Accepts;
use kvgrid_core::membership::Addresses;
use kvgrid_core::replication::PublisherConfig;
use kvgrid_core::{ModelId, ModelName};
use kvgrid_runtime::admin::Admin;
use kvgrid_runtime::http::{ListenError, listen};
use kvgrid_runtime::{
    BindError, Clock, CloseReason, Node, NodeConfig, Protocol, ReadyFile, Tasks, Termination, luck,
};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::info;

use crate::admin;
use crate::card::{self, CardReport};
use crate::catalog::{self, Offer};
use crate::config::{CardSettings, Connect};
use crate::discovery::{self, Sightings};
use crate::edges::Dialler;
use crate::frontend::{self, Served};
use crate::gossip::{self, GenerationError, GenerationFile, Gossip, GossipConfig};
use crate::leaving::Leaving;
use crate::load::{self, Gateway, Pages, Scraper, Tellers};
use crate::metrics::{self, Readings};
use crate::pools::{self, PoolReport};
use crate::prepared::Prepared;
use crate::proxy::{ProxyContext, ProxyLimits};
use crate::publish::{Hub, HubConfig};
use crate::services::Services;
use crate::sources::dynamo_events::Usage;

mod sources;
mod stand_by;

/// Why a relay ends with a failure. Starting again may help.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// The system refuses what every process needs.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The UDP address can't be bound.
    #[error("listen.quic: {0}")]
    Bind(#[from] BindError),
    /// The admin address can't be bound.
    #[error("admin.listen: {0}")]
    Listen(#[from] ListenError),
    /// The number of this life can't be kept.
    #[error("state.dir: {0}")]
    Generation(#[from] GenerationError),
    /// The file that says that the relay has started can't be written.
    #[error("admin.ready_file: {path}: {error}")]
    ReadyFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A task that the relay can't do without has ended; the log says which.
    #[error("a vital task ended")]
    Broken,
}

/// Runs a relay until it is told to stop.
pub(crate) fn run(prepared: Prepared) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(prepared))
}

async fn serve(prepared: Prepared) -> Result<(), RunError> {
    let tasks = Tasks::new();
    let served = serve_until_stopped(prepared, &tasks).await;
    // Also those of a start that failed half way.
    tasks.finish(LAST_TASKS).await;
    served
}

async fn serve_until_stopped(prepared: Prepared, tasks: &Tasks) -> Result<(), RunError> {
    let mut termination = Termination::new(tasks)?;
    if prepared.config.file.frontend.leader == Some(false) {
        return stand_by::until_stopped(&prepared.config, &mut termination, tasks).await;
    }
    let grace = prepared.config.file.limits.stop_grace;
    let relay = Relay::bind(prepared, tasks)?;
    let node = relay.node.clone();
    let (leaving, ready) = relay.start()?;
    termination.next().await;
    let broken = tasks.is_stopping();
    if !broken {
        termination.unless_again(leaving.leave(grace)).await;
    }
    // First the tasks: those that can't do without the node end in order.
    tasks.stop();
    node.close(CloseReason::Stopping).await;
    drop(ready);
    info!("Stopped");
    if broken {
        Err(RunError::Broken)
    } else {
        Ok(())
    }
}

/// How long tasks may take to end once nothing is left for them to do.
const LAST_TASKS: Duration = Duration::from_secs(2);

/// What workers say of their use, by their models.
type Usages = Vec<(ModelId, watch::Receiver<Usage>)>;

/// A relay whose addresses are bound and whose tasks are not started.
struct Relay {
    prepared: Prepared,
    node: Node,
    admin: TcpListener,
    hub: Hub,
    gateway: Gateway,
    clock: Clock,
    tasks: Tasks,
}

impl Relay {
    fn bind(prepared: Prepared, tasks: &Tasks) -> Result<Self, RunError> {
        let clock = Clock::start();
        let gateway = Gateway::default();
        let listen_quic = prepared.config.file.listen.quic;
        let node = NodeConfig::new(listen_quic, prepared.credentials.clone())
            .serve(Protocol::View, Accepts::Edges)
            .serve(Protocol::Request, Accepts::Edges)
            .serve(Protocol::Gossip, Accepts::Relays)
            .transport(prepared.config.file.transport.clone());
        let hub = Hub::new(HubConfig {
            key: Arc::new(prepared.key.clone()),
            incarnation: incarnation(),
            publisher: PublisherConfig::default(),
            gateway: gateway.clone(),
            clock,
        });
        Ok(Self {
            node: Node::bind(node, tasks)?,
            admin: listen(prepared.config.admin)?,
            prepared,
            hub,
            gateway,
            clock,
            tasks: tasks.clone(),
        })
    }

    /// Starts all tasks; the file that comes back says where the relay listens.
    fn start(self) -> Result<(Leaving, Option<ReadyFile>), RunError> {
        let gossip = self.gossip()?;
        let served = self.watch_frontend();
        let sightings = self.watch_discovery();
        let (pools, usage) = self.follow_sources(&sightings);
        self.tell_facts(pools.clone());
        let pages = self.watch_load(usage, pools.clone());
        let cards = self.follow_card(&sightings);
        let facts = catalog::Facts {
            cards: cards.subscribe(),
            served: served.clone(),
            pages,
            sightings: self.by_model(&sightings),
        };
        self.tell_catalog(facts);
        let readings = Readings {
            pools: pools.clone(),
            served: served.clone(),
            card: self.prepared.config.card.as_ref().map(|card| {
                let model = card.model().clone();
                (model, cards.subscribe())
            }),
            hub: self.hub.clone(),
            gateway: self.gateway.clone(),
            gossip: gossip.clone(),
            models: by_id(self.prepared.models()),
            sightings: self.by_model(&sightings),
            clock: self.clock,
        };
        let registry = Arc::new(metrics::registry(readings));
        let health = admin::health(served, pools);
        let admin = Admin::new(health.clone(), registry);
        let (quic, admin_at) = (self.node.local_addr(), self.admin.local_addr()?);
        let ready_file = self.prepared.config.file.admin.ready_file.clone();
        let identity = self.node.identity();
        let leaving = Leaving {
            health,
            hub: self.hub.clone(),
            gossip: gossip.clone(),
            gateway: self.gateway.clone(),
            clock: self.clock,
        };
        self.connect(gossip);
        let tasks = self.tasks.clone();
        self.tasks
            .spawn_vital("admin server", admin.serve(self.admin, tasks));
        info!(%identity, %quic, admin = %admin_at, "Relay started");
        let bound = BTreeMap::from([("quic", quic), ("admin", admin_at)]);
        let write = |path: PathBuf| {
            ReadyFile::write(&path, &bound).map_err(|error| RunError::ReadyFile { path, error })
        };
        let written = ready_file.map(write);
        Ok((leaving, written.transpose()?))
    }

    fn watch_frontend(&self) -> watch::Receiver<Served> {
        let (sender, served) = watch::channel(Served::default());
        let interval = self.prepared.config.file.frontend.check_interval;
        let watching =
            frontend::watch_models(self.prepared.config.frontend.clone(), interval, sender);
        self.spawn("frontend watch", watching);
        served
    }

    /// What each source's site says of itself, where it does.
    fn watch_discovery(&self) -> BTreeMap<usize, Sightings> {
        let mut sightings = BTreeMap::new();
        for (source, settings) in self.prepared.config.sources.iter().enumerate() {
            if let Some(discovery) = settings.feeds.discovery() {
                let (sender, receiver) = watch::channel(None);
                let (discovery, model) = (discovery.clone(), settings.model.clone());
                self.spawn("discovery", discovery::watch(discovery, model, sender));
                sightings.insert(source, receiver);
            }
        }
        sightings
    }

    fn follow_card(&self, sightings: &BTreeMap<usize, Sightings>) -> watch::Sender<CardReport> {
        let card = self.prepared.card.clone();
        let cards =
            watch::Sender::new(card.map_or_else(CardReport::default, CardReport::configured));
        if let Some(CardSettings::Dynamo { source, wanted }) = &self.prepared.config.card
            && let Some(sightings) = sightings.get(source)
        {
            let following = card::follow(wanted.clone(), sightings.clone(), cards.clone());
            self.spawn("card", following);
        }
        cards
    }

    fn watch_load(
        &self,
        usage: Usages,
        pools: watch::Receiver<Vec<PoolReport>>,
    ) -> watch::Receiver<Arc<Pages>> {
        let (sender, pages) = watch::channel(Arc::default());
        let clock = self.clock;
        let load = &self.prepared.config.file.load;
        let scraper = Scraper::new(self.prepared.config.load_pages.clone(), load.interval);
        let stop = self.tasks.token();
        self.spawn(
            "load scraper",
            scraper.run(move || clock.now(), sender, stop.clone()),
        );
        let tellers = Tellers {
            pages: pages.clone(),
            usage,
            pools,
            rank_requests: load.max_requests,
        };
        let samples = load::publish_samples(
            self.gateway.clone(),
            tellers,
            self.hub.load().clone(),
            move || clock.now(),
            stop.clone(),
        );
        self.spawn("load reports", samples);
        pages
    }

    /// What each model's workers say of it; of several sources of a model, the first one's.
    fn by_model(&self, sightings: &BTreeMap<usize, Sightings>) -> BTreeMap<ModelId, Sightings> {
        let mut by_model = BTreeMap::new();
        for (source, settings) in self.prepared.config.sources.iter().enumerate() {
            if let Some(seen) = sightings.get(&source) {
                let seen = || seen.clone();
                by_model.entry(settings.model.id()).or_insert_with(seen);
            }
        }
        by_model
    }

    fn tell_catalog(&self, facts: catalog::Facts) {
        let offer = Offer {
            models: self.prepared.models(),
        };
        let catalog = self.hub.catalog().clone();
        let telling = catalog::tell(offer, facts, catalog);
        self.spawn("catalog", telling);
    }

    /// Tells edges how pools are fed. It ends with the pools, which may be none.
    fn tell_facts(&self, reports: watch::Receiver<Vec<PoolReport>>) {
        let telling = pools::tell_facts(reports, self.hub.facts().clone());
        let stop = self.tasks.token().clone();
        self.tasks.spawn("pool facts", async move {
            stop.run_until_cancelled_owned(telling).await;
        });
    }

    /// Joins the other relays, and tells edges of them.
    fn gossip(&self) -> Result<Gossip, GenerationError> {
        let config = &self.prepared.config;
        let generation = config.file.state.dir.join("generation");
        let mut addresses = config.addresses.clone();
        let bound = self.node.local_addr();
        // Who listens at one address and says nothing else is reached there, unless it dials
        // because nobody reaches it.
        let is_dialled = config.file.edges.connect == Connect::Edge;
        if addresses.is_empty() && is_dialled && !bound.ip().is_unspecified() {
            let bound = bound.to_string();
            addresses = Addresses::new([("public", bound.as_str())]).unwrap_or_default();
        }
        Ok(gossip::start(
            GossipConfig {
                relay: self.prepared.relay.clone(),
                addresses,
                seeds: config.file.gossip.seeds.clone(),
                scopes: config.scopes.clone(),
                generation: GenerationFile::next(&generation)?,
                members: self.hub.members().clone(),
                luck: luck(),
            },
            &self.node,
            self.clock,
            &self.tasks,
        ))
    }

    fn services(&self) -> Services {
        let limits = &self.prepared.config.file.limits;
        let proxy = ProxyContext::new(
            self.prepared.frontend.clone(),
            self.prepared.config.allowed.clone(),
            ProxyLimits {
                body_bytes: limits.body_bytes,
                requests: limits.requests,
            },
            self.gateway.clone(),
            (self.clock, self.tasks.clone()),
        );
        Services::new(self.hub.clone(), Arc::new(proxy), self.tasks.clone())
    }

    /// Takes connections, and makes those that only this end can make.
    fn connect(&self, gossip: Gossip) {
        let (node, services) = (self.node.clone(), self.services());
        let edges = self.prepared.config.file.edges.addresses.clone();
        if !edges.is_empty() {
            let tasks = self.tasks.clone();
            let dialler = Dialler::new(node.clone(), services.clone(), self.clock, tasks);
            self.spawn("dial edges", dialler.run(edges, luck()));
        }
        self.spawn("accept", async move {
            while let Some(peer) = node.accept().await {
                match peer.protocol {
                    Protocol::View => services.serve_view(peer),
                    Protocol::Request => services.serve_requests(peer),
                    Protocol::Gossip => gossip.accept(peer).await,
                }
            }
        });
    }

    /// Runs a task that the relay can't do without, until the relay stops.
    fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.tasks.token().clone();
        self.tasks.spawn_vital(name, async move {
            stop.run_until_cancelled_owned(task).await;
        });
    }
}

fn by_id(models: BTreeSet<ModelName>) -> BTreeMap<ModelId, ModelName> {
    models.into_iter().map(|name| (name.id(), name)).collect()
}

/// Grows with every start, as long as the system's clock does.
fn incarnation() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}
