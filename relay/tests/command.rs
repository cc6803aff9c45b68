//! The relay's program as it is started: exit codes, `--check`, start and stop.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use kvgrid_certs::{Identity, Overwrite, TrustDomain, Validity, init, issue};
use kvgrid_core::{EdgeId, Region, RelayId, SiteId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(30);

/// A directory with certificates, keys and a relay's configuration.
struct Setting {
    dir: tempfile::TempDir,
}

impl Setting {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let domain = TrustDomain::new("grid.example").unwrap();
        init(dir.path(), domain.clone(), Overwrite::Refuse).unwrap();
        let site = SiteId::new("fra").unwrap();
        let relay = Identity::relay(domain.clone(), site, RelayId::new("fra-1").unwrap());
        let region = Region::new("eu").unwrap();
        let edge = Identity::edge(domain, region, EdgeId::new("eu-1").unwrap());
        for identity in [relay, edge] {
            let validity = Validity::days(1).unwrap();
            issue(dir.path(), &identity, validity, Overwrite::Refuse).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn identity(&self, name: &str) -> String {
        let at = self.dir.path().display();
        format!(
            "[identity]\ncert = \"{at}/{name}.pem\"\nkey = \"{at}/{name}-key.pem\"\n\
             ca = \"{at}/ca.pem\"\ngrid_key = \"{at}/grid.key\"\n"
        )
    }

    fn command(&self, config: &str) -> Command {
        std::fs::write(self.path("relay.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvgrid-relay"));
        command
            .arg("--config")
            .arg(self.path("relay.toml"))
            .kill_on_drop(true);
        command
    }

    async fn check(&self, config: &str) -> Output {
        let mut command = self.command(config);
        command.arg("--check").output().await.unwrap()
    }

    /// Checks that this configuration ends the start with 64 and this sentence.
    async fn assert_refused(&self, config: &str, sentence: &str) {
        let output = self.check(config).await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{error}");
        assert!(error.contains(sentence), "{error}");
        assert_eq!(error.lines().count(), 1, "one sentence: {error}");
        assert!(output.stdout.is_empty());
    }
}

const FRONTEND: &str = "[frontend]\nurl = \"http://127.0.0.1:8000\"\n";

fn card() -> String {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tiny-chat");
    format!("[card]\nmodel = \"tiny-chat\"\ndir = \"{dir}\"\nblock_size = 16\n")
}

#[tokio::test]
async fn check_prints_what_is_meant() {
    let setting = Setting::new();
    let source = "[[source]]\nkind = \"engine-zmq\"\n\
        endpoints = [{ events = \"tcp://127.0.0.1:5557\" }]\n";
    let config = [&setting.identity("fra-1"), FRONTEND, &card(), source].concat();

    let output = setting.check(&config).await;

    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let printed: toml::Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
    let source = &printed["source"][0];
    assert_eq!(source["model"].as_str(), Some("tiny-chat"));
    assert_eq!(source["block_size"].as_integer(), Some(16));
    assert_eq!(source["gone_after"].as_str(), Some("5s"));
    assert_eq!(printed["admin"]["listen"].as_str(), Some("127.0.0.1:9441"));
    let again = setting.check(&printed.to_string()).await;
    assert_eq!(
        again.status.code(),
        Some(0),
        "it can be read again: {again:?}"
    );
}

#[tokio::test]
async fn check_prints_a_source_that_leaves_all_to_the_workers() {
    let setting = Setting::new();
    let tables = "[card]\nmodel = \"tiny-chat\"\nfrom = \"dynamo\"\n\
        [[source]]\nkind = \"dynamo-events\"\nnamespace = \"prod\"\n\
        discovery = { kind = \"file\", root = \"/nowhere\" }\n";
    let config = [&setting.identity("fra-1"), FRONTEND, tables].concat();

    let output = setting.check(&config).await;

    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed: toml::Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
    let discovery = &printed["source"][0]["discovery"];
    assert_eq!(discovery["dead_after"].as_str(), Some("10s"));
    assert_eq!(printed["state"]["dir"].as_str(), Some("/var/lib/kvgrid"));
    let again = setting.check(&printed.to_string()).await;
    assert_eq!(
        again.status.code(),
        Some(0),
        "it can be read again: {again:?}"
    );
}

#[tokio::test]
async fn a_wrong_configuration_ends_with_64_and_names_the_key() {
    let setting = Setting::new();
    let identity = setting.identity("fra-1");

    let unknown = format!("{identity}{FRONTEND}sped = 1\n");
    setting
        .assert_refused(&unknown, "frontend: unknown field `sped`")
        .await;
    let kind = "[[source]]\nkind = \"magic\"\nendpoints = []\n";
    let kind = format!("{identity}{FRONTEND}{kind}");
    setting
        .assert_refused(&kind, "source.kind: unknown variant `magic`")
        .await;
    let broken = format!("{identity}{FRONTEND}[frontend\n");
    setting.assert_refused(&broken, "relay.toml, line 8").await;
    let url = format!("{identity}[frontend]\nurl = \"https://a\"\n");
    setting.assert_refused(&url, "frontend.url: ").await;
}

#[tokio::test]
async fn what_the_configuration_names_must_be_there() {
    let setting = Setting::new();
    let identity = setting.identity("fra-1");

    let nobody = format!("{}{FRONTEND}", setting.identity("nobody"));
    setting.assert_refused(&nobody, "nobody.pem").await;
    let edge = format!("{}{FRONTEND}", setting.identity("eu-1"));
    setting.assert_refused(&edge, "identity.cert: ").await;
    let card = "[card]\nmodel = \"m\"\ndir = \"/no/such/dir\"\nblock_size = 16\n";
    let card = format!("{identity}{FRONTEND}{card}");
    setting
        .assert_refused(&card, "card.dir: /no/such/dir")
        .await;
    std::fs::write(setting.path("grid.key"), "short").unwrap();
    let key = format!("{identity}{FRONTEND}");
    setting.assert_refused(&key, "identity.grid_key: ").await;
}

#[tokio::test]
async fn a_wrong_command_line_ends_with_64_and_help_with_0() {
    let run = |arguments: &'static [&str]| async move {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvgrid-relay"));
        let output = command.args(arguments).output().await.unwrap();
        output.status.code()
    };

    assert_eq!(run(&[]).await, Some(64));
    assert_eq!(run(&["--config"]).await, Some(64));
    assert_eq!(run(&["--config", "/no/such/file"]).await, Some(64));
    assert_eq!(run(&["--help"]).await, Some(0));
}

/// Waits until something is there, looking every few milliseconds.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, found).await;
    found.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Status and body of a page, if the server answers.
async fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: relay\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// Lists one model to whoever asks.
async fn serve_models(listener: TcpListener) {
    let body = r#"{"data":[{"id":"tiny-chat"}]}"#;
    let answer = format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

struct Relay {
    child: Child,
    admin: String,
    ready_file: PathBuf,
}

impl Relay {
    /// Starts a relay of the model `tiny-chat` on free ports.
    async fn start(setting: &Setting, frontend: &str) -> Self {
        let (relay, bound) = Self::start_in_group(setting, frontend, "0").await;
        assert!(bound["quic"].is_string(), "{bound}");
        relay
    }

    /// Starts it as the node of this number in its group, and tells where it listens.
    async fn start_in_group(
        setting: &Setting,
        frontend: &str,
        number: &str,
    ) -> (Self, serde_json::Value) {
        let ready_file = setting.path("ready.json");
        let config = format!(
            "{}[frontend]\nurl = \"http://{frontend}\"\ncheck_interval = \"20ms\"\n{}\
             [listen]\nquic = \"127.0.0.1:0\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\nready_file = \"{}\"\n",
            setting.identity("fra-1"),
            card(),
            ready_file.display(),
        );
        let child = setting
            .command(&config)
            .env("LWS_WORKER_INDEX", number)
            .stderr(std::fs::File::create(setting.path("log")).unwrap())
            .spawn()
            .unwrap();
        let text = until("ready file", || async {
            std::fs::read_to_string(&ready_file).ok()
        })
        .await;
        let bound: serde_json::Value = serde_json::from_str(&text).unwrap();
        let relay = Self {
            child,
            admin: bound["admin"].as_str().unwrap().to_owned(),
            ready_file,
        };
        (relay, bound)
    }

    async fn stop(mut self) -> Option<i32> {
        let pid = self.child.id().unwrap().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status().await;
        assert!(killed.unwrap().success());
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        assert!(!self.ready_file.exists());
        ended.expect("stopped in time").unwrap().code()
    }
}

#[tokio::test]
async fn a_relay_starts_tells_its_health_and_stops() {
    let setting = Setting::new();
    let listener = TcpListener::bind("127.0.7.200:0").await.unwrap();
    let frontend = listener.local_addr().unwrap();
    drop(listener);
    let relay = Relay::start(&setting, &frontend.to_string()).await;

    let live = get(&relay.admin, "/livez").await.unwrap();
    let unready = get(&relay.admin, "/readyz").await.unwrap();
    let mut models = JoinSet::new();
    models.spawn(serve_models(TcpListener::bind(frontend).await.unwrap()));
    let ready = || async {
        let answer = get(&relay.admin, "/readyz").await?;
        (answer.0 == 200).then_some(())
    };
    until("ready", ready).await;
    let (status, metrics) = get(&relay.admin, "/metrics").await.unwrap();

    assert_eq!(live.0, 200);
    assert_eq!(unready, (503, "the frontend does not answer\n".to_owned()));
    assert_eq!(status, 200);
    assert!(metrics.contains("kvgrid_relay_frontend_up 1"), "{metrics}");
    assert_eq!(relay.stop().await, Some(0));
    let log = std::fs::read_to_string(setting.path("log")).unwrap();
    assert!(log.contains("Stopped") && !log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn a_relay_beside_no_leader_stands_by_and_is_reached_by_nobody() {
    let setting = Setting::new();

    let (relay, bound) = Relay::start_in_group(&setting, "127.0.0.1:1", "2").await;
    let ready = get(&relay.admin, "/readyz").await.unwrap();

    assert_eq!(bound.as_object().unwrap().len(), 1, "{bound}");
    assert_eq!(ready.0, 200, "it keeps no group from being complete");
    assert_eq!(relay.stop().await, Some(0));
    let mut wrong = setting.command(&format!("{}{FRONTEND}", setting.identity("fra-1")));
    let wrong = wrong.env("LWS_WORKER_INDEX", "first").output();
    let wrong = wrong.await.unwrap();
    let error = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(64), "{error}");
    assert!(
        error.contains("frontend.leader: LWS_WORKER_INDEX is \"first\""),
        "{error}"
    );
}

#[tokio::test]
async fn an_address_that_is_taken_is_a_failure() {
    let setting = Setting::new();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = taken.local_addr().unwrap();
    let config = format!(
        "{}{FRONTEND}[listen]\nquic = \"127.0.0.1:0\"\n[admin]\nlisten = \"{admin}\"\n",
        setting.identity("fra-1")
    );

    let output = setting.command(&config).output().await.unwrap();

    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains(&format!("{admin} cannot be bound")),
        "{error}"
    );
}
