//! The configuration files of a grid's nodes.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

use super::process::ready_file;
use crate::emulator::{EmulatorConfig, EngineConfig};
use crate::node::Addresses;

/// What clients call the model of every grid.
pub const MODEL: &str = "tiny-chat";

/// Any free port.
pub(crate) const ANY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// The directory of a small model, with a tokenizer and a chat template but no weights.
pub fn model_dir() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tiny-chat").into()
}

/// Writes `<dir>/<name>.toml`.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = dir.join(format!("{name}.toml"));
    std::fs::write(&path, text).with_context(|| format!("{} can't be written", path.display()))
}

/// An emulated engine. `bound` are the ports of an earlier life, taken again.
pub(super) fn emulator(
    dir: &Path,
    name: &str,
    engine: &EngineConfig,
    bound: &Addresses,
) -> anyhow::Result<String> {
    let at = |what: &str| bound.get(what).copied().unwrap_or(ANY);
    let mut config = EmulatorConfig {
        model: MODEL.into(),
        model_dir: Some(model_dir()),
        listen: at("http"),
        ready_file: Some(ready_file(dir, name)),
        engine: engine.clone(),
        ..EmulatorConfig::default()
    };
    config.events.publish = at("publish");
    config.events.replay = at("replay");
    Ok(toml::to_string(&config)?)
}

/// What a relay stands beside.
pub(crate) struct Beside {
    pub(crate) frontend: String,
    pub(crate) metrics: Vec<String>,
    pub(crate) source: Source,
}

/// By what it knows what is cached there, and how to tokenise.
pub(crate) enum Source {
    /// Nothing tells what is cached; a model's directory.
    None { block_size: NonZeroU32 },
    /// An engine's raw events, and a model's directory.
    EngineZmq {
        /// Each publisher's address, and its replay port's.
        endpoints: Vec<(String, String)>,
        block_size: NonZeroU32,
        capacity_blocks: usize,
        /// Which part of requests the workers do, if not all of it.
        role: Option<&'static str>,
    },
    /// All that a Dynamo site says in its discovery.
    DynamoEvents {
        meet: Meet,
        namespace: String,
        has_host_tier: bool,
    },
    /// The filters of Dynamo's own relay, and a Dynamo site's discovery for the card.
    DynamoRelay {
        url: String,
        discovery: PathBuf,
        namespace: String,
    },
}

/// By what a Dynamo site's processes find and hear each other.
pub(crate) enum Meet {
    /// Files in this directory, and a socket for each publisher.
    Files(PathBuf),
    /// etcd and NATS at these addresses.
    Services { etcd: SocketAddr, nats: SocketAddr },
    /// A Kubernetes API server at this address, and a socket for each publisher.
    Cluster(SocketAddr),
}

impl Beside {
    /// An emulated engine with these addresses, which is its own frontend.
    pub(super) fn engine(engine: &EngineConfig, addresses: &Addresses, events: bool) -> Self {
        let at = |what: &str| addresses[what];
        let block_size = engine.block_size;
        let source = match events {
            false => Source::None { block_size },
            true => Source::EngineZmq {
                endpoints: vec![(
                    format!("tcp://{}", at("publish")),
                    format!("tcp://{}", at("replay")),
                )],
                block_size,
                capacity_blocks: engine.capacity_blocks,
                role: None,
            },
        };
        Self {
            frontend: format!("http://{}", at("http")),
            metrics: vec![format!("http://{}/metrics", at("http"))],
            source,
        }
    }
}

/// How a relay is reached by others, and reaches them.
#[derive(Debug, Default)]
pub(crate) struct RelayNetwork {
    /// Where it finds others.
    pub(crate) seeds: Vec<SocketAddr>,
    /// Addresses that it tells, by the networks they are of; none: its own, to everybody.
    pub(crate) advertise: Vec<(&'static str, SocketAddr)>,
    /// The networks that it reaches.
    pub(crate) scopes: Vec<&'static str>,
}

/// A relay.
pub(crate) fn relay(
    dir: &Path,
    name: &str,
    beside: &Beside,
    quic: SocketAddr,
    network: &RelayNetwork,
) -> String {
    format!(
        "{identity}\
         [listen]\nquic = \"{quic}\"\n\
         {network}\
         [state]\ndir = {state}\n\
         [frontend]\nurl = {frontend:?}\n\
         {source}\
         [load]\nurls = {metrics:?}\n\
         {admin}",
        identity = identity(dir, name),
        network = self::network(network),
        state = quoted(dir.join(format!("{name}-state"))),
        frontend = beside.frontend,
        source = source(&beside.source),
        metrics = beside.metrics,
        admin = admin(dir, name),
    )
}

fn network(network: &RelayNetwork) -> String {
    let seeds: Vec<String> = network.seeds.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    for (scope, address) in &network.advertise {
        text.push_str(&format!("{scope} = [\"{address}\"]\n"));
    }
    if !text.is_empty() {
        text.insert_str(0, "[advertise]\n");
    }
    text.push_str(&format!("[gossip]\nseeds = {seeds:?}\n"));
    if !network.scopes.is_empty() {
        text.push_str(&format!("scopes = {:?}\n", network.scopes));
    }
    text
}

fn source(source: &Source) -> String {
    let model = quoted(MODEL);
    let dir = quoted(model_dir());
    match source {
        Source::None { block_size } => {
            format!("[card]\nmodel = {model}\ndir = {dir}\nblock_size = {block_size}\n")
        }
        Source::EngineZmq {
            endpoints,
            block_size,
            capacity_blocks,
            role,
        } => format!(
            "[card]\nmodel = {model}\ndir = {dir}\nblock_size = {block_size}\n\
             capacity_blocks = {capacity_blocks}\n\
             [[source]]\nkind = \"engine-zmq\"\n{role}endpoints = [{endpoints}]\n",
            role = role.map_or_else(String::new, |role| format!("role = {role:?}\n")),
            endpoints = endpoints
                .iter()
                .map(|(events, replay)| format!("{{ events = {events:?}, replay = {replay:?} }}"))
                .collect::<Vec<_>>()
                .join(", "),
        ),
        Source::DynamoEvents {
            meet,
            namespace,
            has_host_tier,
        } => format!(
            "[card]\nmodel = {model}\nfrom = \"dynamo\"\n\
             [[source]]\nkind = \"dynamo-events\"\nnamespace = {namespace:?}\n\
             tiers = {tiers:?}\n{meet}",
            tiers = match has_host_tier {
                true => &["device", "host_pinned"][..],
                false => &["device"],
            },
            meet = match meet {
                Meet::Files(root) => format!(
                    "discovery = {{ kind = \"file\", root = {} }}\n",
                    quoted(root)
                ),
                Meet::Services { etcd, nats } => format!(
                    "discovery = {{ kind = \"etcd\", endpoints = [\"http://{etcd}\"], \
                     stale_after = \"2s\" }}\n\
                     nats = {{ servers = [\"nats://{nats}\"] }}\n"
                ),
                Meet::Cluster(server) => format!(
                    "discovery = {{ kind = \"kubernetes\", url = \"http://{server}\", \
                     namespace = \"default\", stale_after = \"2s\" }}\n"
                ),
            }
        ),
        Source::DynamoRelay {
            url,
            discovery,
            namespace,
        } => format!(
            "[card]\nmodel = {model}\nfrom = \"dynamo\"\n\
             [[source]]\nkind = \"dynamo-relay\"\nurl = {url:?}\nnamespace = {namespace:?}\n\
             discovery = {{ kind = \"file\", root = {root} }}\n",
            root = quoted(discovery),
        ),
    }
}

/// What a relay is told besides if it dials edges at these addresses.
pub(super) fn dials(edges: &[SocketAddr]) -> String {
    let edges: Vec<String> = edges.iter().map(ToString::to_string).collect();
    format!("[edges]\nconnect = \"relay\"\naddresses = {edges:?}\n")
}

/// Where an edge finds the grid.
#[derive(Debug)]
pub(crate) struct Seeds {
    /// Addresses of relays, or of links to them.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether it goes to relays where they say that they are, past all links.
    pub(crate) straight: bool,
    /// Sites that make it ready.
    pub(crate) quorum: usize,
}

/// An edge. It may take its time to tokenise: on a machine that is busy with a whole grid,
/// decisions without tokens would come by chance.
pub(crate) fn edge(dir: &Path, name: &str, quic: SocketAddr, seeds: &Seeds) -> String {
    let scopes: &[&str] = if seeds.straight { &["public"] } else { &[] };
    let quorum = seeds.quorum;
    // Clients of straight edges go elsewhere once one is not ready.
    let stop_delay = if seeds.straight { "500ms" } else { "0s" };
    let seeds: Vec<String> = seeds.addresses.iter().map(ToString::to_string).collect();
    format!(
        "{identity}\
         [listen]\nquic = \"{quic}\"\nclient = \"{ANY}\"\n\
         [relays]\nseeds = {seeds:?}\nscopes = {scopes:?}\nquorum = {quorum}\n\
         [headers]\nexplain = true\n\
         [prompt]\ndeadline = \"10s\"\n\
         [limits]\nstop_delay = \"{stop_delay}\"\n\
         {admin}",
        identity = identity(dir, name),
        admin = admin(dir, name),
    )
}

fn identity(dir: &Path, name: &str) -> String {
    format!(
        "[identity]\ncert = {}\nkey = {}\nca = {}\ngrid_key = {}\n",
        quoted(dir.join(format!("{name}.pem"))),
        quoted(dir.join(format!("{name}-key.pem"))),
        quoted(dir.join("ca.pem")),
        quoted(dir.join("grid.key")),
    )
}

fn admin(dir: &Path, name: &str) -> String {
    let ready_file = quoted(ready_file(dir, name));
    format!("[admin]\nlisten = \"{ANY}\"\nready_file = {ready_file}\n")
}

/// As TOML writes a text.
fn quoted(text: impl AsRef<Path>) -> String {
    let mut quoted = String::new();
    text.as_ref()
        .to_string_lossy()
        .serialize(toml::ser::ValueSerializer::new(&mut quoted))
        .expect("a text can be written as TOML");
    quoted
}
