//! How a Dynamo site is found and heard.

use std::path::PathBuf;
use std::time::Duration;

use kvgrid_core::event::Tier;
use serde::{Deserialize, Serialize};

use crate::discovery::KubernetesMode;
use crate::secret::Secret;

/// A site's discovery. Which keys it takes goes by its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiscoveryTable {
    /// What it is kept in.
    pub(crate) kind: DiscoveryKind,
    /// File: the directory, as `DYN_FILE_KV` says.
    pub(crate) root: Option<PathBuf>,
    /// File: how often it is read.
    #[serde(default, with = "humantime_serde")]
    pub(crate) interval: Option<Duration>,
    /// File: how long a process may leave its entries untouched before it is taken for dead.
    #[serde(default, with = "humantime_serde")]
    pub(crate) dead_after: Option<Duration>,
    /// etcd: its members, `http://host:port` or `https://host:port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) endpoints: Vec<String>,
    /// etcd: who to be there.
    pub(crate) user: Option<String>,
    /// etcd: where the user's password is.
    pub(crate) password: Option<Secret>,
    /// Kubernetes: its API server, `https://host:port`.
    pub(crate) url: Option<String>,
    /// Kubernetes: where what is shown to the server is.
    pub(crate) token: Option<Secret>,
    /// Kubernetes: the namespace of the cluster that the workers' pods are in.
    pub(crate) namespace: Option<String>,
    /// Kubernetes: what registers as one worker, as `DYN_KUBE_DISCOVERY_MODE` says.
    pub(crate) mode: Option<KubernetesMode>,
    /// Kubernetes: the labels of the objects that tell who is ready.
    pub(crate) selector: Option<String>,
    /// etcd, Kubernetes: whom to trust.
    pub(crate) tls: Option<TlsTable>,
    /// etcd, Kubernetes: how long after its last word what it said is not stale.
    #[serde(default, with = "humantime_serde")]
    pub(crate) stale_after: Option<Duration>,
}

/// What a discovery is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DiscoveryKind {
    /// Files, as with `DYN_DISCOVERY_BACKEND=file`.
    File,
    /// etcd, as with `DYN_DISCOVERY_BACKEND=etcd`.
    Etcd,
    /// Kubernetes' API, as with `DYN_DISCOVERY_BACKEND=kubernetes`.
    Kubernetes,
}

impl DiscoveryKind {
    /// As it is written.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Etcd => "etcd",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// A storage of a worker's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TierName {
    /// Accelerator memory.
    Device,
    /// Host memory.
    HostPinned,
    /// A local disk.
    Disk,
}

impl From<TierName> for Tier {
    fn from(name: TierName) -> Self {
        match name {
            TierName::Device => Self::Device,
            TierName::HostPinned => Self::HostPinned,
            TierName::Disk => Self::Disk,
        }
    }
}

/// Certificates of a connection that the relay makes to a service of its site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsTable {
    /// Those who may certify the server, PEM.
    pub(crate) ca: PathBuf,
    /// What to show to the server, PEM.
    pub(crate) cert: Option<PathBuf>,
    /// The key of `cert`, PEM.
    pub(crate) key: Option<PathBuf>,
}

/// NATS servers. At most one way to say who the relay is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NatsTable {
    /// Their addresses, `nats://host:port` or `tls://host:port`; one that is alive is enough.
    pub(crate) servers: Vec<String>,
    /// Who to be there.
    pub(crate) user: Option<String>,
    /// Where the user's password is.
    pub(crate) password: Option<Secret>,
    /// Where a token is.
    pub(crate) token: Option<Secret>,
    /// Where credentials are, as `nsc` writes them: a JWT and the seed of its key.
    pub(crate) credentials: Option<Secret>,
    /// Whom to trust.
    pub(crate) tls: Option<TlsTable>,
}
