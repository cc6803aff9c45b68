//! What is discovered of a cluster whose API server is the test's own.

use std::collections::{BTreeMap, BTreeSet};

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use api_server::ApiServer;
use objects::{slice, worker};

mod access;
mod api_server;
mod following;
mod objects;
mod serving;
mod tls;

const WORKERS: &str = "dynamoworkermetadatas";
const SLICES: &str = "endpointslices";
const PODS: &str = "pods";

const READY: Option<bool> = Some(true);

/// A server, and who follows it.
struct Rig {
    server: ApiServer,
    changes: mpsc::Receiver<Change>,
    entries: BTreeMap<String, Vec<u8>>,
    /// Why the store was called lost, if it has not been found since.
    lost: Option<String>,
    /// How often the store was called lost.
    losses: usize,
    _task: JoinSet<()>,
}

fn settings(server: &ApiServer) -> KubernetesSettings {
    KubernetesSettings {
        url: format!("http://{}", server.address),
        tls: None,
        token: None,
        namespace: "default".into(),
        mode: KubernetesMode::Pod,
        selector: "nvidia.com/dynamo-discovery-enabled=true".into(),
        stale_after: Duration::from_secs(30),
    }
}

impl Rig {
    /// A cluster with these workers, all ready, and who follows it.
    async fn with(workers: &[&str]) -> Self {
        let server = ApiServer::start(None).await;
        serve(&server, workers);
        let settings = settings(&server);
        let mut rig = Self::start(server, settings);
        rig.until_served(workers).await;
        rig.server.watched(WORKERS, 1).await;
        rig.server.watched(SLICES, 1).await;
        rig
    }

    fn start(server: ApiServer, settings: KubernetesSettings) -> Self {
        let (sender, changes) = mpsc::channel(4);
        let mut task = JoinSet::new();
        task.spawn(follow(settings, sender));
        Self {
            server,
            changes,
            entries: BTreeMap::new(),
            lost: None,
            losses: 0,
            _task: task,
        }
    }

    async fn until(&mut self, is: impl Fn(&Self) -> bool) {
        while !is(self) {
            let change = timeout(Duration::from_secs(20), self.changes.recv()).await;
            match change.expect("in time").unwrap() {
                Change::All(all) => (self.entries, self.lost) = (all, None),
                Change::Some(changes) => {
                    for (name, document) in changes {
                        match document {
                            Some(document) => drop(self.entries.insert(name, document)),
                            None => drop(self.entries.remove(&name)),
                        }
                    }
                }
                Change::Lost(reason) => {
                    self.lost = Some(reason);
                    self.losses += 1;
                }
            }
        }
    }

    /// The workers that have entries.
    fn workers(&self) -> BTreeSet<&str> {
        let workers = self.entries.keys().map(|name| name.split('/').nth(1));
        workers.collect::<Option<_>>().unwrap()
    }

    async fn until_served(&mut self, workers: &[&str]) {
        let expected: BTreeSet<_> = workers.iter().copied().collect();
        self.until(|rig| rig.workers() == expected).await;
    }
}

/// Puts workers there, all ready by one slice.
fn serve(server: &ApiServer, workers: &[&str]) {
    for (number, name) in (1..).zip(workers) {
        server.put(WORKERS, worker(name, number));
    }
    let ready: Vec<_> = workers.iter().map(|name| (*name, READY)).collect();
    server.put(SLICES, slice("all", &ready));
}
