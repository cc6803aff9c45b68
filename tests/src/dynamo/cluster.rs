//! The Kubernetes cluster that a site's processes take themselves to be in: an API server of
//! the tests' own, of which their pods are.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result};

use super::process::Daemon;
use super::services::Service;
use super::{Dynamo, ports};

const SERVER: &str = include_str!("api_server.py");
/// The server's name as a Python module.
const MODULE: &str = "kvgrid_api_server";

/// A site's cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    server: Service,
    kubeconfig: String,
}

impl Cluster {
    /// A cluster that doesn't run yet, whose worker's pod is ready while it answers on this
    /// port. What the publishers say is also written to `discovery`, for witnesses.
    pub(super) fn new(
        dynamo: &Dynamo,
        directory: &Path,
        discovery: &Path,
        health: u16,
    ) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
        fs::write(directory.join(format!("{MODULE}.py")), SERVER)?;
        let kubeconfig = directory.join("kubeconfig");
        fs::write(&kubeconfig, config(address)).context("no kubeconfig")?;
        let arguments = [
            address.port().to_string(),
            discovery.display().to_string(),
            pod_name("worker"),
            pod_uid("worker"),
            health.to_string(),
        ];
        let daemon = Daemon {
            name: "the API server",
            python: dynamo.installation().python().to_owned(),
            module: MODULE.to_owned(),
            arguments: arguments.into(),
            environment: vec![("PYTHONPATH", directory.display().to_string())],
            log: directory.join("api-server.log"),
            child: None,
        };
        Ok(Self {
            server: Service { daemon, address },
            kubeconfig: kubeconfig.display().to_string(),
        })
    }

    /// Starts it unless it runs, and waits until it answers.
    pub(super) async fn start(&mut self) -> Result<()> {
        self.server.start().await
    }

    /// What Dynamo's processes are told of it.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("DYN_DISCOVERY_BACKEND", "kubernetes".to_owned()),
            ("DYN_EVENT_PLANE", "zmq".to_owned()),
            ("KUBECONFIG", self.kubeconfig.clone()),
        ]
    }

    /// Where its API server is.
    pub(super) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// What its API server said last.
    pub(super) fn last_output(&self) -> (&'static str, String) {
        self.server.last_output()
    }
}

/// What a process is told of the pod that it takes itself to be in.
pub(super) fn pod(process: &str) -> [(&'static str, String); 3] {
    [
        ("POD_NAME", pod_name(process)),
        ("POD_UID", pod_uid(process)),
        ("POD_NAMESPACE", "default".to_owned()),
    ]
}

fn pod_name(process: &str) -> String {
    format!("{}-0", process.replace(' ', "-"))
}

fn pod_uid(process: &str) -> String {
    format!("uid-of-{}", pod_name(process))
}

fn config(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: site\n\
         clusters: [{{name: site, cluster: {{server: \"http://{address}\"}}}}]\n\
         users: [{{name: site, user: {{}}}}]\n\
         contexts: [{{name: site, context: {{cluster: site, user: site, namespace: default}}}}]\n"
    )
}
