//! Who is ready, by the word of several objects.
//!
//! A pod may stand in two slices while its service's are laid out anew; it is ready until the
//! last of them lets it go. Two pods of one name, of which one must be gone, are none.

use std::collections::{BTreeMap, BTreeSet};

use tracing::debug;

use super::objects::{Ready, ReadyWorker};

/// Who is ready.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    objects: BTreeMap<String, BTreeSet<ReadyWorker>>,
    /// By worker and pod, how many objects say so.
    pods: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Readiness {
    /// The pod of a worker that is ready, by uid.
    pub(super) fn pod(&self, worker: &str) -> Option<&str> {
        let pods = self.pods.get(worker)?;
        let mut uids = pods.keys();
        let uid = uids.next()?;
        if uids.next().is_some() {
            debug!(worker, "Two pods of one name are called ready, so none is");
            return None;
        }
        Some(uid)
    }

    /// How many objects tell.
    pub(super) fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Whether an object tells.
    pub(super) fn knows(&self, object: &str) -> bool {
        self.objects.contains_key(object)
    }

    /// Takes an object's word in place of what it said before. Returns whose readiness may be
    /// another now.
    pub(super) fn put(&mut self, ready: Ready) -> BTreeSet<String> {
        let mut touched = self.remove(&ready.object);
        for ReadyWorker { worker, pod } in &ready.workers {
            touched.insert(worker.clone());
            let pods = self.pods.entry(worker.clone()).or_default();
            *pods.entry(pod.clone()).or_default() += 1;
        }
        self.objects.insert(ready.object, ready.workers);
        touched
    }

    /// Forgets an object. Returns whose readiness may be another now.
    pub(super) fn remove(&mut self, object: &str) -> BTreeSet<String> {
        let said = self.objects.remove(object).unwrap_or_default();
        let mut touched = BTreeSet::new();
        for ReadyWorker { worker, pod } in said {
            if let Some(pods) = self.pods.get_mut(&worker) {
                if let Some(objects) = pods.get_mut(&pod) {
                    *objects -= 1;
                }
                pods.retain(|_, objects| *objects > 0);
                if pods.is_empty() {
                    self.pods.remove(&worker);
                }
            }
            touched.insert(worker);
        }
        touched
    }

    /// Forgets all objects but these. Returns whose readiness may be another now.
    pub(super) fn keep_only(&mut self, objects: &BTreeSet<String>) -> BTreeSet<String> {
        let gone = self.objects.keys();
        let gone: Vec<_> = gone
            .filter(|name| !objects.contains(*name))
            .cloned()
            .collect();
        let mut touched = BTreeSet::new();
        for object in gone {
            touched.extend(self.remove(&object));
        }
        touched
    }
}
