//! Keeps the edge's view of the grid: what every site serves, has cached and bears.
//!
//! Relays are found at seeds and told of by other relays; the directory keeps one follower
//! for each. A follower dials its relay, or waits until that has dialled; it holds a view and a request connection to it, and
//! keeps replicas of its pools where these are wanted. What it knows goes into a watch; the
//! grid's task chooses which relay of a site is followed, puts all of them together and
//! publishes one immutable [`GridView`]. A relay that is out of reach keeps its place in the
//! view, with its replicas stale: it is not eligible, and nothing is forgotten.
//!
//! Who a relay is and where it stands comes from its certificate alone.

use std::sync::Arc;

use arc_swap::ArcSwap;
use kvgrid_core::backoff::BackoffConfig;
use kvgrid_core::membership::Scope;
use kvgrid_core::replication::ReplicaConfig;
use kvgrid_core::view::{CardDigest, GridView};
use kvgrid_prompt::Cards;
use kvgrid_runtime::{Clock, Node, Protocol, Seed, Tasks, seek};
use tokio::sync::{Notify, watch};

pub(crate) use links::Links;

use crate::open::OpenRequests;

use directory::{Event, Registry, Relays};
use grid::Grid;
use relay_state::RelayState;

mod background;
mod catalog;
mod dialled;
mod directory;
mod follow;
mod grid;
mod inbound;
mod links;
mod memory;
mod pairs;
mod relay_state;
mod roster;
mod session;

/// What following relays needs.
pub(crate) struct SubscribeConfig {
    /// Addresses of relays, `HOST:PORT`.
    pub(crate) seeds: Vec<String>,
    /// Networks that this edge reaches, the best first.
    pub(crate) scopes: Vec<Scope>,
    /// How replicas are kept, in what form where that can be, with the grid's keys.
    pub(crate) replica: ReplicaConfig,
    /// Delays between attempts to reach a relay.
    pub(crate) backoff: BackoffConfig,
    /// Seeds the jitter of those delays.
    pub(crate) jitter_seed: u64,
    /// To these, what relays send of their caches gives way.
    pub(crate) open: OpenRequests,
}

/// What the tasks of all relays share.
#[derive(Clone)]
struct Context {
    node: Node,
    clock: Clock,
    tasks: Tasks,
    cards: Arc<Cards>,
    links: Links,
    /// Wakes who assembles the view.
    changed: Arc<Notify>,
    replica: ReplicaConfig,
    backoff: BackoffConfig,
    open: OpenRequests,
}

/// Where one relay's task publishes what it knows.
struct Publish {
    state: watch::Sender<RelayState>,
    changed: Arc<Notify>,
}

impl Publish {
    fn update(&self, change: impl FnOnce(&mut RelayState)) {
        self.state.send_modify(change);
        self.changed.notify_one();
    }
}

/// What the rest of the edge sees: the view, and the connections that requests take.
#[derive(Clone)]
pub(crate) struct Subscriptions {
    /// The newest view.
    pub(crate) view: Arc<ArcSwap<GridView>>,
    /// Request connections by relay.
    pub(crate) links: Links,
}

/// Starts to follow all seeds.
pub(crate) fn start(
    config: SubscribeConfig,
    node: Node,
    cards: Arc<Cards>,
    clock: Clock,
    tasks: &Tasks,
) -> Subscriptions {
    let view = Arc::new(ArcSwap::from_pointee(GridView::default()));
    let links = Links::default();
    let changed = Arc::new(Notify::new());
    let context = Context {
        node,
        clock,
        tasks: tasks.clone(),
        cards: Arc::clone(&cards),
        links: links.clone(),
        changed: Arc::clone(&changed),
        replica: config.replica,
        backoff: config.backoff,
        open: config.open,
    };
    let relays = Relays::default();
    let (registry, directory) = Registry::new(
        context.clone(),
        config.scopes,
        relays.clone(),
        config.jitter_seed,
    );
    let stop = tasks.token().clone();
    tasks.spawn_vital("directory of relays", async move {
        stop.run_until_cancelled(registry.run()).await;
    });
    let accepting = dialled::accept(context.clone(), directory.clone());
    let stop = tasks.token().clone();
    tasks.spawn_vital("take relays that dial", async move {
        stop.run_until_cancelled(accepting).await;
    });
    for (address, luck) in config.seeds.into_iter().zip(config.jitter_seed..) {
        let seed = Seed {
            address,
            protocol: Protocol::View,
            backoff: config.backoff,
            luck,
        };
        let (links, directory) = (links.clone(), directory.clone());
        let seeking = seek(
            context.node.clone(),
            seed,
            move |relay, _| links.get(relay).is_some(),
            move |found| {
                let directory = directory.clone();
                async move { directory.tell(Event::Found(found)).await }
            },
        );
        let stop = tasks.token().clone();
        tasks.spawn_vital("seek relays", async move {
            stop.run_until_cancelled(seeking).await;
        });
    }
    let usable = Arc::new(move |digest: &CardDigest| cards.get(&digest.0).is_some());
    let grid = Grid::new(relays, clock, changed, usable, Arc::clone(&view));
    let stop = tasks.token().clone();
    tasks.spawn_vital("assemble the view", async move {
        stop.run_until_cancelled(grid.run()).await;
    });
    Subscriptions { view, links }
}
