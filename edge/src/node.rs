//! An edge, assembled: what it is made of, in the order it starts and stops.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvgrid_certs::{Accepts, CredentialsError, GridKeyError, NodeCredentials, read_grid_key};
use kvgrid_core::EdgeId;
use kvgrid_core::backoff::BackoffConfig;
use kvgrid_core::filter::MixKey;
use kvgrid_core::replication::ReplicaConfig;
use kvgrid_prompt::{Cards, CardsConfig, LoadOptions};
use kvgrid_runtime::admin::Health;
use kvgrid_runtime::http::{HttpLimits, ListenError};
use kvgrid_runtime::{
    BindError, Clock, CloseReason, Node, NodeConfig, Protocol, ReadyFile, Tasks, Termination, http,
    luck,
};
use thiserror::Error;
use tokio::net::TcpListener;
use tracing::info;

use crate::admin;
use crate::api::{Api, ApiConfig, ApiParts};
use crate::config::Config;
use crate::forward::Forwarder;
use crate::metrics::{CardMetrics, Metrics, SiteLoads, Unmatched};
use crate::open::OpenRequests;
use crate::route::{Router, RouterConfig};
use crate::subscribe::{self, SubscribeConfig};

/// How long tasks may take to end once nothing is left for them to do.
const LAST_TASKS: Duration = Duration::from_secs(2);

/// Why an edge did not start, or not stop in order. What had been started is stopped.
#[derive(Debug, Error)]
pub(crate) enum NodeError {
    /// The certificate or its keys cannot be used; the configuration is at fault.
    #[error("identity: {0}")]
    Credentials(#[from] CredentialsError),
    /// The grid's key cannot be used; the configuration is at fault.
    #[error("identity.grid_key: {0}")]
    GridKey(#[from] GridKeyError),
    /// The certificate is a relay's; the configuration is at fault.
    #[error("identity.cert: {0} is no edge's identity")]
    NoEdge(String),
    /// The UDP address cannot be had.
    #[error("listen.quic: {0}")]
    Quic(#[from] BindError),
    /// A TCP address cannot be had.
    #[error("{key}: {error}")]
    Listen {
        /// The key of the address.
        key: &'static str,
        /// What the system says.
        error: ListenError,
    },
    /// The ready file cannot be written.
    #[error("admin.ready_file: {0}")]
    ReadyFile(io::Error),
    /// The system gives no threads or signals.
    #[error(transparent)]
    System(io::Error),
}

impl NodeError {
    /// Whether the configuration is at fault, so that starting again will not help.
    pub(crate) const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Credentials(_) | Self::GridKey(_) | Self::NoEdge(_)
        )
    }
}

/// Runs an edge until it is told to stop.
pub(crate) fn run(config: Config) -> Result<(), NodeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(NodeError::System)?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<(), NodeError> {
    let tasks = Tasks::new();
    let served = serve_until_stopped(config, &tasks).await;
    // Also those of a start that failed half way.
    tasks.finish(LAST_TASKS).await;
    served
}

/// Reads what the configuration names, and says who the edge is.
pub(crate) fn identify(config: &Config) -> Result<(NodeCredentials, EdgeId, MixKey), NodeError> {
    let credentials = NodeCredentials::load(&config.identity.files())?;
    let edge = edge_id(&credentials)?;
    let key = MixKey::from_bytes(&read_grid_key(&config.identity.grid_key)?);
    Ok((credentials, edge, key))
}

async fn serve_until_stopped(config: Config, tasks: &Tasks) -> Result<(), NodeError> {
    let mut termination = Termination::new(tasks).map_err(NodeError::System)?;
    let (credentials, edge, key) = identify(&config)?;
    // Most relays are dialled; those behind a NAT dial.
    let node = NodeConfig::new(config.listen.quic, credentials)
        .serve(Protocol::View, Accepts::Relays)
        .serve(Protocol::Request, Accepts::Relays)
        .transport(config.transport.clone());
    let node = Node::bind(node, tasks)?;
    let doors = Doors::open(&config)?;
    let bound = doors.bound(&node)?;
    let ready_file = config.ready_file.clone();
    let limits = config.limits;
    let leaving = start(config, (edge.clone(), key), &node, doors, tasks)?;

    let ready = ready_file.map(|path| ReadyFile::write(&path, &bound));
    let ready = ready.transpose().map_err(NodeError::ReadyFile)?;
    info!(%edge, quic = %bound["quic"], client = %bound["client"], admin = %bound["admin"], "Started");

    termination.next().await;
    if !tasks.is_stopping() {
        let leave = leaving.leave(limits.stop_delay, limits.stop_grace);
        termination.unless_again(leave).await;
    }
    // First the tasks: those that can't do without the node end in order.
    tasks.stop();
    node.close(CloseReason::Stopping).await;
    drop(ready);
    info!("Stopped");
    Ok(())
}

/// What has to hear of it when the edge leaves.
struct Leaving {
    health: Health,
    /// The server of clients and their connections.
    clients: Tasks,
}

impl Leaving {
    /// Is not ready any more, goes on for `delay` so that this is noticed, and then takes no
    /// new requests and waits for those under way, but not beyond `grace`.
    async fn leave(self, delay: Duration, grace: Duration) {
        self.health.leave();
        tokio::time::sleep(delay).await;
        self.clients.finish(grace).await;
    }
}

/// Where people and programs come in.
struct Doors {
    clients: TcpListener,
    operators: TcpListener,
}

impl Doors {
    fn open(config: &Config) -> Result<Self, NodeError> {
        Ok(Self {
            clients: listen("listen.client", config.listen.client)?,
            operators: listen("admin.listen", config.admin)?,
        })
    }

    /// The addresses that were bound, by what listens there.
    fn bound(&self, node: &Node) -> Result<BTreeMap<&'static str, SocketAddr>, NodeError> {
        let address = |door: &TcpListener| door.local_addr().map_err(NodeError::System);
        Ok(BTreeMap::from([
            ("quic", node.local_addr()),
            ("client", address(&self.clients)?),
            ("admin", address(&self.operators)?),
        ]))
    }
}

/// Starts everything: what keeps the view, what decides by it, and what serves.
fn start(
    config: Config,
    (edge, key): (EdgeId, MixKey),
    node: &Node,
    doors: Doors,
    tasks: &Tasks,
) -> Result<Leaving, NodeError> {
    let clock = Clock::start();
    let cards = Arc::new(Cards::new(cards_config(&config)).map_err(NodeError::System)?);
    let api_config = ApiConfig::of(&config);
    let open = OpenRequests::default();
    let follow = SubscribeConfig {
        seeds: config.seeds,
        scopes: config.scopes,
        replica: ReplicaConfig {
            form: config.form,
            ..ReplicaConfig::with_keys(vec![Arc::new(key)])
        },
        backoff: BackoffConfig::default(),
        jitter_seed: luck(),
        open: open.clone(),
    };
    let grid = subscribe::start(follow, node.clone(), Arc::clone(&cards), clock, tasks);
    let (metrics, mut registry) = Metrics::new(Arc::clone(&grid.view), open);
    registry.register_collector(Box::new(CardMetrics(Arc::clone(&cards))));
    let router = Router::new(
        Arc::clone(&grid.view),
        RouterConfig {
            policy: config.policy,
            retry: config.retry,
            predict: config.predict,
        },
        (clock, luck()),
        metrics.clone(),
    );
    registry.register_collector(Box::new(Unmatched(router.clone())));
    registry.register_collector(Box::new(SiteLoads(router.clone())));
    let (expiry, stop) = (router.clone().expire(), tasks.token().clone());
    tasks.spawn_vital("expire predictions", async move {
        stop.run_until_cancelled(expiry).await;
    });
    let health = admin::health(grid.view, config.quorum);

    let api = Api::new(
        api_config,
        ApiParts {
            router: router.clone(),
            sites: Forwarder::new(grid.links),
            cards,
            health: health.clone(),
            metrics,
        },
    );
    if config.canary.enabled {
        let (canaries, stop) = (
            api.clone().run_canaries(config.canary),
            tasks.token().clone(),
        );
        tasks.spawn_vital("canaries", async move {
            stop.run_until_cancelled(canaries).await;
        });
    }
    let limits = HttpLimits {
        connections: config.limits.connections,
        head_timeout: config.limits.head_timeout,
    };
    let clients = Tasks::new();
    let (serving, stop) = (clients.clone(), tasks.clone());
    tasks.spawn_vital("api", async move {
        http::serve(doors.clients, limits, serving, api.into_service()).await;
        // It ends in order before the rest does.
        stop.stopping().await;
    });
    let admin = admin::admin(health.clone(), registry, edge, router);
    tasks.spawn_vital("admin", admin.serve(doors.operators, tasks.clone()));
    Ok(Leaving { health, clients })
}

fn cards_config(config: &Config) -> CardsConfig {
    CardsConfig {
        load: LoadOptions {
            memo_bytes: config.prompt.memo_bytes,
            ..LoadOptions::default()
        },
        ..CardsConfig::default()
    }
}

fn edge_id(credentials: &NodeCredentials) -> Result<EdgeId, NodeError> {
    let identity = credentials.identity();
    let edge = identity.as_edge().map(|(_, edge)| edge.clone());
    edge.ok_or_else(|| NodeError::NoEdge(identity.uri()))
}

fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, NodeError> {
    http::listen(address).map_err(|error| NodeError::Listen { key, error })
}
