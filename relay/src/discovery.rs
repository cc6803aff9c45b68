//! What a Dynamo site says of itself: who publishes what and where, and the models' own cards.
//!
//! Dynamo's processes register themselves in a store and keep their entries fresh; a dead one's
//! entry goes. The store is a directory (`files`), read over and over (`polled`), or one that tells
//! what changes (`board`): etcd (`etcd`) or Kubernetes (`kubernetes`). What counts as alive is
//! told as one [`Sighting`], whenever that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::ModelName;
use tokio::sync::watch;

mod board;
mod cohorts;
mod etcd;
mod files;
mod kubernetes;
mod model_card;
mod polled;
mod record;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use cohorts::{Apart, Leadership};
pub(crate) use etcd::EtcdSettings;
pub(crate) use kubernetes::{KubernetesMode, KubernetesSettings};
pub(crate) use model_card::{CohortId, FileRef, ModelCard, Role};
pub(crate) use record::Place;

use board::Board;
use record::Record;

/// Where a store is and whom to look for in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiscoverySettings {
    /// Where it is.
    pub(crate) store: Store,
    /// Whose entries count.
    pub(crate) scope: Scope,
}

/// Where a site's processes register themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// A directory.
    Files(FileSettings),
    /// etcd.
    Etcd(EtcdSettings),
    /// A Kubernetes cluster's API.
    Kubernetes(KubernetesSettings),
}

/// The store is a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSettings {
    /// The directory, as the site's `DYN_FILE_KV` says.
    pub(crate) root: PathBuf,
    /// How often it is read.
    pub(crate) interval: Duration,
    /// How long an entry may go without being touched.
    pub(crate) dead_after: Duration,
}

/// Which endpoints' entries count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The Dynamo namespace.
    pub(crate) namespace: String,
    /// The component in it; any if absent.
    pub(crate) component: Option<String>,
    /// The component's endpoint; any if absent.
    pub(crate) endpoint: Option<String>,
}

impl Scope {
    /// Sites before Dynamo 1.5 name no endpoint, which fits any.
    fn covers(&self, place: &Place) -> bool {
        let fits = |wanted: &Option<String>, found: &str| {
            found.is_empty() || wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        self.namespace == place.namespace
            && fits(&self.component, &place.component)
            && fits(&self.endpoint, &place.endpoint)
    }
}

/// A rank of a worker, as Dynamo names both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerRank {
    /// The worker's instance.
    pub(crate) worker: u64,
    /// Its data-parallel rank.
    pub(crate) rank: u32,
}

/// A process that publishes on one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publisher {
    /// The topic.
    pub(crate) topic: String,
    /// For which endpoint.
    pub(crate) place: Place,
    /// How to hear it.
    pub(crate) transport: Transport,
    /// For whom it speaks, where that is told.
    pub(crate) worker: Option<WorkerRank>,
}

/// How a publisher is heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Its own ZeroMQ socket, `tcp://host:port`.
    Zmq(String),
    /// A NATS server, by the subjects that begin like this.
    Nats(String),
    /// Something else, by its name.
    Other(String),
}

/// A worker that serves a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServedModel {
    /// At which endpoint.
    pub(crate) place: Place,
    /// The worker's instance.
    pub(crate) worker: u64,
    /// The model, as the worker describes it.
    pub(crate) card: Arc<ModelCard>,
}

/// What is alive in a scope.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sighting {
    /// Whether the store could be read the last time.
    pub(crate) readable: bool,
    /// Publishers by their own ids.
    pub(crate) publishers: BTreeMap<u64, Publisher>,
    /// Models by the names of their entries.
    pub(crate) models: BTreeMap<String, ServedModel>,
    /// Which cards of the model that is looked for count.
    pub(crate) leadership: Leadership,
}

/// Most names of a model beside its own.
const ALIASES: usize = 64;

impl Sighting {
    /// By which other names than this the workers that lead call the model.
    pub(crate) fn other_names(&self, model: &ModelName) -> Vec<ModelName> {
        let leads = |it: &&ServedModel| Some(it.card.cohort) == self.leadership.leading;
        let ours = self.models.values().filter(leads);
        let ours = ours.filter(|it| it.card.is_called(model.as_str()));
        let names: BTreeSet<&str> = ours.flat_map(|it| it.card.names()).collect();
        let names = names.into_iter().filter(|name| *name != model.as_str());
        // What can't be asked for by a name of ours is none.
        let names = names.filter_map(|name| ModelName::new(name).ok());
        names.take(ALIASES).collect()
    }
}

/// What has been seen; nothing before the first look.
pub(crate) type Sightings = watch::Receiver<Option<Arc<Sighting>>>;

/// Follows a store, and tells what is alive in it when that changes, and whose card counts
/// among the workers of this model.
pub(crate) async fn watch(
    settings: DiscoverySettings,
    model: ModelName,
    told: watch::Sender<Option<Arc<Sighting>>>,
) {
    let (seen, sightings) = watch::channel(None);
    tokio::join!(
        look(settings, seen),
        cohorts::follow(model.as_str(), sightings, told)
    );
}

async fn look(settings: DiscoverySettings, sightings: watch::Sender<Option<Arc<Sighting>>>) {
    let told = Teller {
        scope: settings.scope,
        sightings,
    };
    match settings.store {
        Store::Files(files) => polled::watch(files, told).await,
        Store::Etcd(etcd) => {
            let (changes, board) = Board::new(etcd.stale_after, told);
            tokio::join!(etcd::follow(etcd, changes), board.run());
        }
        Store::Kubernetes(cluster) => {
            let (changes, board) = Board::new(cluster.stale_after, told);
            tokio::join!(kubernetes::follow(cluster, changes), board.run());
        }
    }
}

/// Tells what is seen in a scope.
struct Teller {
    scope: Scope,
    sightings: watch::Sender<Option<Arc<Sighting>>>,
}

impl Teller {
    /// What these entries, by their names, are together.
    fn sight<'a>(
        &self,
        live: impl Iterator<Item = (&'a str, &'a Record)>,
        readable: bool,
    ) -> Sighting {
        sight(live, &self.scope, readable)
    }

    fn tell(&self, sighting: Sighting) {
        self.sightings.send_if_modified(|last| {
            let changed = last.as_deref() != Some(&sighting);
            if changed {
                *last = Some(Arc::new(sighting));
            }
            changed
        });
    }

    /// Whether the last sighting was of a store that could be read.
    fn was_readable(&self) -> bool {
        let last = self.sightings.borrow();
        last.as_ref().is_none_or(|last| last.readable)
    }
}

/// Joins the live entries of a scope.
fn sight<'a>(
    live: impl Iterator<Item = (&'a str, &'a Record)>,
    scope: &Scope,
    readable: bool,
) -> Sighting {
    let mut sighting = Sighting {
        readable,
        ..Sighting::default()
    };
    let mut workers = BTreeMap::new();
    for (name, record) in live {
        if !record.place().is_some_and(|place| scope.covers(place)) {
            continue;
        }
        match record {
            Record::Channel(id, publisher) => {
                sighting.publishers.insert(*id, publisher.clone());
            }
            Record::Source {
                publisher, worker, ..
            } => {
                workers.insert(*publisher, *worker);
            }
            Record::Model(model) => {
                sighting.models.insert(name.to_owned(), model.clone());
            }
            Record::Other => {}
        }
    }
    for (id, publisher) in &mut sighting.publishers {
        publisher.worker = workers.get(id).copied();
    }
    sighting
}
