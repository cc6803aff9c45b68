//! Which workers' documents count: those of resources that a pod owns which is ready.
//!
//! Decides that, and what of it changes; it neither asks the server nor understands a document.
//! Nothing is told before both collections have been read. Afterwards one of them may be lost:
//! then it counts as it was, and the other goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::warn;

use super::collection::{OBJECTS, Told};
use super::objects::{Documents, Object as _, Ready, WorkerMetadata};
use super::readiness::Readiness;
use crate::discovery::board::Change;

/// What a collection says.
#[derive(Debug)]
pub(super) enum Heard {
    /// That of what workers say of themselves.
    Workers(Told<WorkerMetadata>),
    /// That of what tells who is ready.
    Readiness(Told<Ready>),
}

/// What is known of both collections.
#[derive(Debug, Default)]
pub(super) struct Join {
    workers: BTreeMap<String, Worker>,
    readiness: Readiness,
    /// What counts, by worker, as it was told last.
    served: BTreeMap<String, Arc<Documents>>,
    workers_state: State,
    readiness_state: State,
    passed_over: u64,
}

/// A resource in which a worker describes itself.
#[derive(Debug)]
struct Worker {
    uid: String,
    pod: Option<String>,
    documents: Arc<Documents>,
}

/// How far a collection is to be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It has not been read yet.
    #[default]
    Unread,
    /// It is followed.
    Followed,
    /// It was followed, and can't be any more.
    Lost,
}

impl Join {
    /// Takes what a collection says, and tells what that changes.
    pub(super) fn handle(&mut self, heard: Heard) -> Option<Change> {
        let (is_news, touched) = match heard {
            Heard::Workers(Told::Lost(error)) => {
                self.workers_state.lose();
                return Some(Change::Lost(error));
            }
            Heard::Readiness(Told::Lost(error)) => {
                self.readiness_state.lose();
                return Some(Change::Lost(error));
            }
            Heard::Workers(told) => {
                let is_news = self.workers_state.find(&told);
                (is_news, self.take_workers(told))
            }
            Heard::Readiness(told) => {
                let is_news = self.readiness_state.find(&told);
                (is_news, self.take_readiness(told))
            }
        };
        let states = [self.workers_state, self.readiness_state];
        if states.contains(&State::Unread) {
            return None;
        }
        // Of workers that were touched before both were read, all is new.
        let touched = match is_news {
            true => self
                .workers
                .keys()
                .chain(self.served.keys())
                .cloned()
                .collect(),
            false => touched,
        };
        let mut changes = Vec::new();
        for worker in touched {
            self.reconcile(&worker, &mut changes);
        }
        if is_news && !states.contains(&State::Lost) {
            return Some(Change::All(self.all()));
        }
        (!changes.is_empty()).then_some(Change::Some(changes))
    }

    fn take_workers(&mut self, told: Told<WorkerMetadata>) -> BTreeSet<String> {
        match told {
            Told::All(objects) => {
                let mut known = std::mem::take(&mut self.workers);
                for object in objects {
                    let name = object.meta().name.clone();
                    let worker = Worker::new(&object, known.remove(&name).as_ref());
                    self.workers.insert(name, worker);
                }
                BTreeSet::new()
            }
            Told::Changed(object) => {
                let name = object.meta().name.clone();
                let known = self.workers.get(&name);
                if known.is_none() && self.workers.len() >= OBJECTS {
                    self.pass_over(&name);
                    return BTreeSet::new();
                }
                let worker = Worker::new(&object, known);
                self.workers.insert(name.clone(), worker);
                [name].into()
            }
            Told::Gone(name) => {
                self.workers.remove(&name);
                [name].into()
            }
            Told::Again | Told::Lost(_) => BTreeSet::new(),
        }
    }

    fn take_readiness(&mut self, told: Told<Ready>) -> BTreeSet<String> {
        match told {
            Told::All(objects) => {
                let names = objects.iter().map(|ready| ready.object.clone());
                self.readiness.keep_only(&names.collect());
                for ready in objects {
                    self.readiness.put(ready);
                }
                BTreeSet::new()
            }
            Told::Changed(ready) => {
                let is_known = self.readiness.knows(&ready.object);
                if !is_known && self.readiness.objects() >= OBJECTS {
                    self.pass_over(&ready.object);
                    return BTreeSet::new();
                }
                self.readiness.put(ready)
            }
            Told::Gone(object) => self.readiness.remove(&object),
            Told::Again | Told::Lost(_) => BTreeSet::new(),
        }
    }

    fn pass_over(&mut self, name: &str) {
        self.passed_over += 1;
        if self.passed_over.is_power_of_two() {
            warn!(%name, all = self.passed_over, "Object passed over: too many");
        }
    }

    /// The documents of a worker that count now.
    fn serves(&self, worker: &str) -> Option<Arc<Documents>> {
        let ready = self.readiness.pod(worker)?;
        let worker = self.workers.get(worker)?;
        let is_its = worker.pod.as_deref() == Some(ready);
        is_its.then(|| Arc::clone(&worker.documents))
    }

    /// Notes what of a worker counts now, and how that differs from what was told last.
    fn reconcile(&mut self, worker: &str, changes: &mut Vec<(String, Option<Vec<u8>>)>) {
        let now = self.serves(worker);
        let before = match &now {
            Some(documents) => self.served.insert(worker.to_owned(), Arc::clone(documents)),
            None => self.served.remove(worker),
        };
        let (now, before) = (now.unwrap_or_default(), before.unwrap_or_default());
        let gone = before.keys().filter(|name| !now.contains_key(*name));
        changes.extend(gone.map(|name| (name.clone(), None)));
        let new = now
            .iter()
            .filter(|(name, document)| before.get(*name) != Some(*document));
        changes.extend(new.map(|(name, document)| (name.clone(), Some(document.clone()))));
    }

    fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let all = self.served.values().flat_map(|documents| documents.iter());
        all.map(|(name, document)| (name.clone(), document.clone()))
            .collect()
    }
}

impl Worker {
    /// A resource that says nothing that is understood is as it was, if it is still the same:
    /// Kubernetes may write an empty one for a moment.
    fn new(object: &WorkerMetadata, known: Option<&Self>) -> Self {
        let meta = object.meta();
        let known =
            known.filter(|known| known.uid == meta.uid && known.pod.as_deref() == object.pod());
        let documents = match (object.documents(), known) {
            (Some(documents), _) => Arc::new(documents),
            (None, Some(known)) => Arc::clone(&known.documents),
            (None, None) => Arc::default(),
        };
        Self {
            uid: meta.uid.clone(),
            pod: object.pod().map(ToOwned::to_owned),
            documents,
        }
    }
}

impl State {
    fn lose(&mut self) {
        if *self == Self::Followed {
            *self = Self::Lost;
        }
    }

    /// Whether the collection has been read whole just now, or is followed again.
    fn find<T>(&mut self, told: &Told<T>) -> bool {
        let is_news = matches!(told, Told::All(_) | Told::Again);
        if is_news {
            *self = Self::Followed;
        }
        is_news
    }
}

#[cfg(test)]
mod tests;
