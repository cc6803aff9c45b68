//! Dynamo's discovery in Kubernetes: each worker writes one resource of its own, in which all
//! its documents are that the other stores have one by one.
//!
//! Two collections of one namespace are followed, each by itself (`collection`): these
//! resources, and what tells which pods are ready. What they are together is joined as Dynamo
//! itself does it (`join`).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tracing::info;

use super::board::Change;
use crate::secret::{Secret, TlsFiles};

mod api;
mod collection;
mod join;
mod objects;
mod readiness;
#[cfg(test)]
mod tests;

use collection::{Told, follow_collection};
use join::{Heard, Join};
use objects::{EndpointSlice, Pod, WorkerMetadata};

/// What both collections say on its way to be joined. Who has read it waits while it is full.
const CHANNEL_CAPACITY: usize = 16;

/// Where the API of a cluster is, and what to look for there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubernetesSettings {
    /// Its server, `https://host:port` or `http://host:port`.
    pub(crate) url: String,
    /// Whom to trust; needed by `https`.
    pub(crate) tls: Option<TlsFiles>,
    /// What to show to the server. Read anew for each request, for it is replaced in time.
    pub(crate) token: Option<Secret>,
    /// The namespace of the cluster that the workers' pods are in.
    pub(crate) namespace: String,
    /// What registers there.
    pub(crate) mode: KubernetesMode,
    /// The labels by which the objects are known that tell who is ready.
    pub(crate) selector: String,
    /// How long after its last word what it said is not stale.
    pub(crate) stale_after: Duration,
}

/// What registers as one worker, as `DYN_KUBE_DISCOVERY_MODE` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KubernetesMode {
    /// A pod, ready as an EndpointSlice says.
    #[default]
    Pod,
    /// A container, ready as its pod's status says.
    Container,
}

/// One of a namespace's collections of objects.
#[derive(Clone, Debug)]
struct Collection {
    /// The group and version it is of, from the server's root.
    api: &'static str,
    /// Its name in there.
    plural: &'static str,
    namespace: String,
    selector: Option<String>,
}

impl Collection {
    fn path(&self) -> String {
        let Self {
            api,
            plural,
            namespace,
            ..
        } = self;
        format!("/{api}/namespaces/{namespace}/{plural}")
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.plural, self.namespace)
    }
}

impl KubernetesSettings {
    /// What workers say of themselves.
    fn workers(&self) -> Collection {
        self.collection("apis/nvidia.com/v1alpha1", "dynamoworkermetadatas", None)
    }

    /// What tells who is ready.
    fn readiness(&self) -> Collection {
        let selector = Some(self.selector.clone());
        match self.mode {
            KubernetesMode::Pod => {
                self.collection("apis/discovery.k8s.io/v1", "endpointslices", selector)
            }
            KubernetesMode::Container => self.collection("api/v1", "pods", selector),
        }
    }

    fn collection(
        &self,
        api: &'static str,
        plural: &'static str,
        selector: Option<String>,
    ) -> Collection {
        Collection {
            api,
            plural,
            namespace: self.namespace.clone(),
            selector,
        }
    }
}

/// Tells what there is and how it changes, for ever.
pub(super) async fn follow(settings: KubernetesSettings, changes: mpsc::Sender<Change>) {
    let (said, heard) = mpsc::channel(CHANNEL_CAPACITY);
    let of_readiness = said.clone();
    info!(url = settings.url, namespace = settings.namespace, mode = ?settings.mode,
        "Kubernetes is asked who is there");
    let workers = follow_collection(&settings, settings.workers(), said, workers_said);
    let collection = settings.readiness();
    let readiness = async {
        match settings.mode {
            KubernetesMode::Pod => {
                follow_collection(&settings, collection, of_readiness, slices_said).await;
            }
            KubernetesMode::Container => {
                follow_collection(&settings, collection, of_readiness, pods_said).await;
            }
        }
    };
    tokio::join!(workers, readiness, tell(heard, changes));
}

/// Joins what is heard, until nobody listens or nobody says anything any more.
async fn tell(mut heard: mpsc::Receiver<Heard>, changes: mpsc::Sender<Change>) {
    let mut join = Join::default();
    while let Some(heard) = heard.recv().await {
        let Some(change) = join.handle(heard) else {
            continue;
        };
        if changes.send(change).await.is_err() {
            return;
        }
    }
}

fn workers_said(told: Told<WorkerMetadata>) -> Heard {
    Heard::Workers(told)
}

fn slices_said(told: Told<EndpointSlice>) -> Heard {
    Heard::Readiness(told.map(EndpointSlice::ready))
}

fn pods_said(told: Told<Pod>) -> Heard {
    Heard::Readiness(told.map(Pod::ready))
}
