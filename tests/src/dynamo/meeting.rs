//! By what a site's processes find and hear each other, and who follows them as well.

use anyhow::Result;
use tempfile::TempDir;

use super::Dynamo;
use super::cluster::Cluster;
use super::commands::discovery;
use super::options::KvSource;
use super::plane::Plane;
use super::services::Services;
use crate::harness::config::Meet;

/// What they meet by.
#[derive(Debug)]
pub(super) enum Meeting {
    /// Files, and a socket for each publisher.
    Files,
    /// etcd and NATS.
    Services(Services),
    /// A Kubernetes cluster's API, and a socket for each publisher.
    Cluster(Cluster),
}

impl Meeting {
    /// What processes with these events meet by; nothing runs yet. The worker's health is told
    /// on this port.
    pub(super) fn new(
        source: KvSource,
        dynamo: &Dynamo,
        directory: &TempDir,
        health: u16,
    ) -> Result<Self> {
        let path = directory.path();
        Ok(match source {
            KvSource::EngineZmq | KvSource::DynamoEvents | KvSource::DynamoRelay => Self::Files,
            KvSource::DynamoNats => Self::Services(Services::new(dynamo, path)?),
            KvSource::DynamoKubernetes => {
                Self::Cluster(Cluster::new(dynamo, path, &discovery(directory), health)?)
            }
        })
    }

    /// Starts what doesn't run, and waits until it answers.
    pub(super) async fn start(&mut self) -> Result<()> {
        match self {
            Self::Files => Ok(()),
            Self::Services(services) => services.start().await,
            Self::Cluster(cluster) => cluster.start().await,
        }
    }

    /// What Dynamo's processes are told of it.
    pub(super) fn environment(&self, directory: &TempDir) -> Vec<(&'static str, String)> {
        match self {
            Self::Files => vec![
                ("DYN_DISCOVERY_BACKEND", "file".to_owned()),
                ("DYN_FILE_KV", discovery(directory).display().to_string()),
                ("DYN_EVENT_PLANE", "zmq".to_owned()),
            ],
            Self::Services(services) => services.environment(),
            Self::Cluster(cluster) => cluster.environment(),
        }
    }

    /// The events of a site of so many publishers, for a witness.
    pub(super) fn plane(&self, directory: &TempDir, namespace: &str, publishers: usize) -> Plane {
        match self {
            Self::Files | Self::Cluster(_) => Plane::of_files(&discovery(directory), publishers),
            Self::Services(services) => Plane::of_nats(services.nats(), namespace, publishers),
        }
    }

    /// What a relay is told of it.
    pub(super) fn meet(&self, directory: &TempDir) -> Meet {
        match self {
            Self::Files => Meet::Files(discovery(directory)),
            Self::Services(services) => Meet::Services {
                etcd: services.etcd(),
                nats: services.nats(),
            },
            Self::Cluster(cluster) => Meet::Cluster(cluster.address()),
        }
    }

    /// What each of its processes said last, by its name.
    pub(super) fn last_outputs(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Files => Vec::new(),
            Self::Services(services) => services.last_outputs().into(),
            Self::Cluster(cluster) => vec![cluster.last_output()],
        }
    }
}
