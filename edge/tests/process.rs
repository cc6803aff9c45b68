//! A running edge: it says when it is ready, shows what it knows, and stops when told.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use kvgrid_certs::{Identity, Overwrite, TrustDomain, Validity};
use kvgrid_core::{EdgeId, Region};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Longer than a start takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Edge {
    process: Child,
    dir: TempDir,
    bound: Value,
}

impl Edge {
    /// Starts an edge of region eu whose one seed nobody listens at.
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = configure(dir.path());
        let process = Command::new(env!("CARGO_BIN_EXE_kvgrid-edge"))
            .arg("--config")
            .arg(config)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let ready = dir.path().join("ready.json");
        let bound = tokio::time::timeout(PATIENCE, wait_for(&ready)).await;
        Self {
            process,
            bound: bound.expect("the edge writes its ready file"),
            dir,
        }
    }

    fn address(&self, name: &str) -> SocketAddr {
        self.bound[name].as_str().unwrap().parse().unwrap()
    }

    async fn get(&self, name: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address(name)).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// Sends SIGTERM and gives the exit code.
    async fn stop(&mut self) -> Option<i32> {
        let pid = self.process.id().unwrap().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status().await;
        assert!(killed.unwrap().success());
        let ended = tokio::time::timeout(PATIENCE, self.process.wait()).await;
        ended.expect("the edge stops when told").unwrap().code()
    }
}

/// Makes certificates and a configuration in `dir`.
fn configure(dir: &Path) -> std::path::PathBuf {
    let domain = TrustDomain::new("grid.example").unwrap();
    kvgrid_certs::init(dir, domain.clone(), Overwrite::Refuse).unwrap();
    let (region, edge) = (Region::new("eu").unwrap(), EdgeId::new("eu-1").unwrap());
    let identity = Identity::edge(domain, region, edge);
    let validity = Validity::days(1).unwrap();
    let leaf = kvgrid_certs::issue(dir, &identity, validity, Overwrite::Refuse).unwrap();
    let config = format!(
        "[identity]\ncert = {:?}\nkey = {:?}\nca = {:?}\ngrid_key = {:?}\n\
         [listen]\nquic = \"127.0.0.1:0\"\nclient = \"127.0.0.1:0\"\n\
         [relays]\nseeds = [\"127.0.0.1:1\"]\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nready_file = {:?}\n",
        leaf.cert,
        leaf.key,
        dir.join("ca.pem"),
        dir.join("grid.key"),
        dir.join("ready.json"),
    );
    let path = dir.join("edge.toml");
    std::fs::write(&path, config).unwrap();
    path
}

/// The file's content, once it is there; it appears whole.
async fn wait_for(path: &Path) -> Value {
    loop {
        if let Ok(text) = tokio::fs::read_to_string(path).await {
            return serde_json::from_str(&text).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_edge_without_sites_is_alive_but_not_ready_and_stops_when_told() {
    let mut edge = Edge::start().await;

    assert_eq!(edge.get("admin", "/livez").await.0, 200);
    let (status, reason) = edge.get("admin", "/readyz").await;
    assert_eq!((status, reason.trim()), (503, "0 of 1 sites in view"));
    let (status, sites) = edge.get("admin", "/kvgrid/v1/sites").await;
    let sites: Value = serde_json::from_str(&sites).unwrap();
    assert_eq!(status, 200);
    assert_eq!(sites, serde_json::json!({"edge": "eu-1", "sites": []}));
    let (_, metrics) = edge.get("admin", "/metrics").await;
    assert!(
        metrics.contains("kvgrid_edge_decision_seconds_count 0"),
        "{metrics}"
    );

    assert_eq!(edge.stop().await, Some(0));
    assert!(!edge.dir.path().join("ready.json").exists());
}

#[tokio::test]
async fn an_address_that_is_taken_ends_with_1_and_its_key() {
    let edge = Edge::start().await;
    let taken = edge.address("admin").to_string();

    let second = Command::new(env!("CARGO_BIN_EXE_kvgrid-edge"))
        .arg("--config")
        .arg(edge.dir.path().join("edge.toml"))
        .env("KVGRID_EDGE_ADMIN__LISTEN", taken)
        .env("KVGRID_LOG", "off")
        .output()
        .await
        .unwrap();

    assert_eq!(second.status.code(), Some(1));
    let complaint = String::from_utf8(second.stderr).unwrap();
    assert!(complaint.contains("admin.listen: "), "{complaint}");
}
