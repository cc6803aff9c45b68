//! What a site's processes meet by where that is not files: etcd and NATS, each its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::debian::Packaged;
use super::process::Daemon;
use super::{Dynamo, ports};
use crate::harness::process::POLL;
use crate::lock::target_dir;

const ETCD: Packaged = Packaged {
    program: "etcd",
    package: "etcd-server",
};
const NATS: Packaged = Packaged {
    program: "nats-server",
    package: "nats-server",
};

/// How long a dead process's entries stay in etcd, in seconds; Dynamo's own is 30.
const LEASE_TTL: u32 = 10;

/// How long a start may take on a machine that is busy with other things.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A site's etcd and NATS server.
#[derive(Debug)]
pub struct Services {
    etcd: Service,
    nats: Service,
}

/// A server that listens on one address.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) daemon: Daemon,
    pub(super) address: SocketAddr,
}

impl Services {
    /// Services of which nothing runs yet, with their files in this directory.
    pub(super) fn new(dynamo: &Dynamo, directory: &Path) -> Result<Self> {
        let (etcd, peer, nats) = (ports::free()?, ports::free()?, ports::free()?);
        let etcd_arguments = [
            ("--data-dir", directory.join("etcd").display().to_string()),
            ("--listen-client-urls", format!("http://127.0.0.1:{etcd}")),
            (
                "--advertise-client-urls",
                format!("http://127.0.0.1:{etcd}"),
            ),
            ("--listen-peer-urls", format!("http://127.0.0.1:{peer}")),
            (
                "--initial-advertise-peer-urls",
                format!("http://127.0.0.1:{peer}"),
            ),
            (
                "--initial-cluster",
                format!("default=http://127.0.0.1:{peer}"),
            ),
            ("--logger", "zap".to_owned()),
        ];
        let nats_arguments = [
            ("--addr", "127.0.0.1".to_owned()),
            ("--port", nats.to_string()),
        ];
        let service = |packaged: Packaged, port, arguments: &[(&str, String)]| {
            let program = packaged.find(&target_dir()?)?;
            let flat = |(flag, value): &(&str, String)| [(*flag).to_owned(), value.clone()];
            anyhow::Ok(Service {
                daemon: Daemon {
                    name: packaged.program,
                    python: dynamo.installation().python().to_owned(),
                    module: program.display().to_string(),
                    arguments: arguments.iter().flat_map(flat).collect(),
                    environment: Vec::new(),
                    log: directory.join(format!("{}.log", packaged.program)),
                    child: None,
                },
                address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            })
        };
        Ok(Self {
            etcd: service(ETCD, etcd, &etcd_arguments)?,
            nats: service(NATS, nats, &nats_arguments)?,
        })
    }

    /// Starts what doesn't run, and waits until it answers.
    pub(super) async fn start(&mut self) -> Result<()> {
        self.etcd.start().await?;
        self.nats.start().await
    }

    /// What Dynamo's processes are told of them.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("DYN_DISCOVERY_BACKEND", "etcd".to_owned()),
            ("ETCD_ENDPOINTS", format!("http://{}", self.etcd.address)),
            ("ETCD_LEASE_TTL", LEASE_TTL.to_string()),
            ("DYN_EVENT_PLANE", "nats".to_owned()),
            ("NATS_SERVER", format!("nats://{}", self.nats.address)),
        ]
    }

    /// Where etcd is.
    pub(super) const fn etcd(&self) -> SocketAddr {
        self.etcd.address
    }

    /// Where the NATS server is.
    pub(super) const fn nats(&self) -> SocketAddr {
        self.nats.address
    }

    /// Kills etcd with SIGKILL; what it knew stays on its disk.
    pub fn kill_etcd(&mut self) {
        self.etcd.daemon.kill();
    }

    /// Starts etcd again at its old address.
    pub async fn start_etcd(&mut self) -> Result<()> {
        self.etcd.start().await
    }

    /// Kills the NATS server with SIGKILL.
    pub fn kill_nats(&mut self) {
        self.nats.daemon.kill();
    }

    /// Starts the NATS server again at its old address.
    pub async fn start_nats(&mut self) -> Result<()> {
        self.nats.start().await
    }

    /// What each said last, by its name.
    pub(super) fn last_outputs(&self) -> [(&'static str, String); 2] {
        [&self.etcd, &self.nats].map(Service::last_output)
    }
}

impl Service {
    /// What it said last, and its name.
    pub(super) fn last_output(&self) -> (&'static str, String) {
        (self.daemon.name, self.daemon.last_output())
    }

    /// Starts it unless it runs, and waits until it answers.
    pub(super) async fn start(&mut self) -> Result<()> {
        if self.daemon.child.is_none() {
            self.daemon.start()?;
        }
        let deadline = Instant::now() + START_PATIENCE;
        while TcpStream::connect(self.address).await.is_err() {
            let name = self.daemon.name;
            if self.daemon.ended_by_itself() || Instant::now() > deadline {
                bail!("{name} doesn't start:\n{}", self.daemon.last_output());
            }
            sleep(POLL).await;
        }
        Ok(())
    }
}
