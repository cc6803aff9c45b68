//! What a Dynamo site says of itself: who publishes what and where, and the models' own cards.
//!
//! Dynamo's processes register themselves in a store and keep their entries fresh; a dead one's
//! entry goes stale. Here the store is a directory (`files`), read over and over. What counts
//! as alive is told as one [`Sighting`], whenever that changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kvgrid_core::event::dynamo::KV_EVENTS;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

mod files;
mod model_card;
mod record;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use model_card::{FileRef, ModelCard};
pub(crate) use record::Place;

use files::Files;
use record::Record;

/// Pause between looks while a new worker's publisher is awaited. Measured with Dynamo 1.6.1,
/// it registers 100 ms after the model, and has its first requests 15 ms later.
const HURRY: Duration = Duration::from_millis(5);

/// How long a new worker's publisher is awaited; some publish nothing.
const AWAITED: Duration = Duration::from_secs(3);

/// Where a store is and whom to look for in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiscoverySettings {
    /// The directory, as the site's `DYN_FILE_KV` says.
    pub(crate) root: PathBuf,
    /// How often it is read.
    pub(crate) interval: Duration,
    /// How long an entry may go without being touched.
    pub(crate) dead_after: Duration,
    /// Whose entries count.
    pub(crate) scope: Scope,
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
}

/// What has been seen; nothing before the first look.
pub(crate) type Sightings = watch::Receiver<Option<Arc<Sighting>>>;

/// Reads a store over and over, and tells what is alive in it when that changes.
pub(crate) async fn watch(
    settings: DiscoverySettings,
    sightings: watch::Sender<Option<Arc<Sighting>>>,
) {
    let mut files = Files::new(settings.root.clone());
    let mut newcomers = Newcomers::default();
    loop {
        let dead_after = settings.dead_after;
        // Disks may be slow; a read that is under way when the relay stops ends by itself.
        let read = spawn_blocking(move || {
            let result = files.read(SystemTime::now(), dead_after);
            (files, result)
        });
        let Ok((returned, result)) = read.await else {
            return;
        };
        files = returned;
        let was_readable = sightings.borrow().as_ref().is_none_or(|last| last.readable);
        match &result {
            Err(error) if was_readable => {
                warn!(root = %settings.root.display(), %error, "Discovery can't be read");
            }
            Ok(()) if !was_readable => {
                info!(root = %settings.root.display(), "Discovery can be read again");
            }
            _ => {}
        }
        let sighting = sight(&files, &settings.scope, result.is_ok());
        let pause = match newcomers.look(&sighting, Instant::now()) {
            true => settings.interval.min(HURRY),
            false => settings.interval,
        };
        sightings.send_if_modified(|last| {
            let changed = last.as_deref() != Some(&sighting);
            if changed {
                *last = Some(Arc::new(sighting));
            }
            changed
        });
        sleep(pause).await;
    }
}

/// Workers that have registered their model and may soon register what they publish. Then they
/// have requests at once, and the relay must hear them by then.
#[derive(Default)]
struct Newcomers {
    /// Models' entries, with when they came up.
    since: BTreeMap<String, Instant>,
}

impl Newcomers {
    /// Takes note of who is there, and says whether somebody is awaited.
    fn look(&mut self, seen: &Sighting, now: Instant) -> bool {
        self.since.retain(|name, _| seen.models.contains_key(name));
        let publish = |worker: u64| {
            let mut all = seen.publishers.values();
            all.any(|by| by.topic == KV_EVENTS && by.worker.is_some_and(|of| of.worker == worker))
        };
        let mut awaited = false;
        for (name, model) in &seen.models {
            let since = *self.since.entry(name.clone()).or_insert(now);
            awaited |= now.duration_since(since) < AWAITED && !publish(model.worker);
        }
        awaited
    }
}

/// Joins the live entries of a scope.
fn sight(files: &Files, scope: &Scope, readable: bool) -> Sighting {
    let mut sighting = Sighting {
        readable,
        ..Sighting::default()
    };
    let mut workers = BTreeMap::new();
    for (name, record) in files.live() {
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
