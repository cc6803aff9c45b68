//! The relay's configuration.
//!
//! [`ConfigFile`] is what is written, one type per table; [`Config`] is what is meant, checked,
//! with errors that name the key. Which site this is, its region and its labels stand in the
//! certificate, never here.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvgrid_prompt::TokenizerBackend;
use kvgrid_runtime::TransportConfig;
use kvgrid_runtime::admin::AdminConfig;
use kvgrid_runtime::config::{self, ConfigError, Environment, IdentityConfig};
use serde::{Deserialize, Serialize};

use crate::proxy::ProxyLimits;

pub(crate) use dynamo::{DiscoveryKind, DiscoveryTable, NatsTable, TierName, TlsTable};
pub(crate) use resolve::{CardSettings, Config, Feeds, PeerSettings, SourceSettings};

mod dynamo;
mod resolve;
#[cfg(test)]
mod tests;

/// Prefix of the variables that override the file.
const ENVIRONMENT: &str = "KVGRID_RELAY_";

/// Where Kubernetes tells a pod of a LeaderWorkerSet its number in its group; the leader's is 0.
const GROUP_INDEX: &str = "LWS_WORKER_INDEX";

/// Reads the configuration from its file and the process's environment.
pub(crate) fn load(path: &Path) -> Result<ConfigFile, ConfigError> {
    let mut file: ConfigFile = config::load(path, &Environment::of_process(ENVIRONMENT))?;
    if file.frontend.leader.is_none() {
        let index = std::env::var(GROUP_INDEX).ok();
        file.frontend.leader = Some(leads(index.as_deref())?);
    }
    Ok(file)
}

/// Whether the pod of this number in its group is its leader; one of no group is.
fn leads(index: Option<&str>) -> Result<bool, ConfigError> {
    let number = index.map_or(Ok(0), str::parse::<u32>);
    let number = number.map_err(|_| {
        let reason = format!(
            "{GROUP_INDEX} is {:?}, which is no number",
            index.unwrap_or("")
        );
        ConfigError::key("frontend.leader", &reason)
    });
    Ok(number? == 0)
}

/// The configuration as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
    /// Certificate and keys.
    pub(crate) identity: IdentityConfig,
    /// Where edges find it.
    #[serde(default)]
    pub(crate) listen: ListenTable,
    /// Where others reach it: addresses, `host:port`, by the network they are of.
    #[serde(default)]
    pub(crate) advertise: BTreeMap<String, Vec<String>>,
    /// The other relays.
    #[serde(default)]
    pub(crate) gossip: GossipTable,
    /// How edges and it come together.
    #[serde(default)]
    pub(crate) edges: EdgesTable,
    /// What it keeps from one start to the next.
    #[serde(default)]
    pub(crate) state: StateTable,
    /// Whom it hands requests to.
    pub(crate) frontend: FrontendTable,
    /// How edges tokenise for the site's model.
    pub(crate) card: Option<CardTable>,
    /// Where it learns what is cached.
    #[serde(default, rename = "source")]
    pub(crate) sources: Vec<SourceTable>,
    /// Where it learns how loaded the engines are.
    #[serde(default)]
    pub(crate) load: LoadTable,
    /// How much it takes on.
    #[serde(default)]
    pub(crate) limits: LimitsTable,
    /// How it sends.
    #[serde(default)]
    pub(crate) transport: TransportConfig,
    /// For operators.
    #[serde(default)]
    pub(crate) admin: AdminConfig,
}

/// Table `[listen]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListenTable {
    /// UDP address of the QUIC endpoint.
    pub(crate) quic: SocketAddr,
}

impl Default for ListenTable {
    fn default() -> Self {
        Self {
            quic: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7440)),
        }
    }
}

/// Table `[gossip]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GossipTable {
    /// Addresses of relays, `host:port`: one that is alive is enough to find all.
    pub(crate) seeds: Vec<String>,
    /// Networks in which relays advertise addresses that this relay reaches, the best first.
    pub(crate) scopes: Vec<String>,
}

impl Default for GossipTable {
    fn default() -> Self {
        Self {
            seeds: Vec::new(),
            scopes: vec!["public".into()],
        }
    }
}

/// Table `[edges]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EdgesTable {
    /// Who dials.
    pub(crate) connect: Connect,
    /// Addresses of edges, `host:port`, if this relay dials; a name may lead to several.
    pub(crate) addresses: Vec<String>,
}

/// Which end of the connections between edge and relay dials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Connect {
    /// Edges dial the relay.
    #[default]
    Edge,
    /// The relay dials edges, for they can't reach it.
    Relay,
}

/// Table `[state]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StateTable {
    /// A directory of its own, made when something is to be kept.
    pub(crate) dir: PathBuf,
}

impl Default for StateTable {
    fn default() -> Self {
        Self {
            dir: "/var/lib/kvgrid".into(),
        }
    }
}

/// Table `[frontend]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FrontendTable {
    /// The site's OpenAI-compatible server, `http://host:port`.
    pub(crate) url: String,
    /// How often it is asked which models it serves.
    #[serde(default = "check_interval", with = "humantime_serde")]
    pub(crate) check_interval: Duration,
    /// How long a connection to it may take.
    #[serde(default = "connect_timeout", with = "humantime_serde")]
    pub(crate) connect_timeout: Duration,
    /// Whether the engine's server runs on this node, where one of several has it; as
    /// `LWS_WORKER_INDEX` says if left out. Without it the relay stands by.
    pub(crate) leader: Option<bool>,
    /// What edges may ask of it, as `METHOD /path`; what they offer to clients if left out.
    pub(crate) allow: Option<Vec<String>>,
}

const fn connect_timeout() -> Duration {
    Duration::from_secs(1)
}

const fn check_interval() -> Duration {
    Duration::from_millis(250)
}

/// Where a card comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CardSource {
    /// A directory beside the relay.
    #[default]
    Dir,
    /// What the site's workers say in Dynamo's discovery.
    Dynamo,
}

/// Table `[card]`: which model, and what its directory or its workers don't say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CardTable {
    /// The name clients ask for.
    pub(crate) model: String,
    /// Where the rest comes from.
    #[serde(default)]
    pub(crate) from: CardSource,
    /// The model's directory, with its tokenizer.
    pub(crate) dir: Option<PathBuf>,
    /// Tokens per block.
    pub(crate) block_size: Option<NonZeroU32>,
    /// Whether blocks overlap by one token (EAGLE).
    pub(crate) eagle: Option<bool>,
    /// Device blocks of all ranks together; workers or the frontend's metrics tell if left out.
    pub(crate) capacity_blocks: Option<u64>,
    /// The longest sequence, in tokens; the model's own if left out.
    pub(crate) context_length: Option<u32>,
    /// The adapter's canonical name, if the model is a LoRA adapter.
    pub(crate) lora: Option<String>,
    /// The tokenizer implementation the site was told to use.
    pub(crate) tokenizer: Option<TokenizerBackend>,
    /// Time zone of the site's frontend; the relay's own if left out.
    pub(crate) time_zone: Option<String>,
    /// A template that the site uses instead of the model's own.
    pub(crate) chat_template: Option<PathBuf>,
    /// The site's reasoning parser; some imply template arguments.
    pub(crate) reasoning_parser: Option<String>,
    /// The site's tool call parser; some imply template arguments.
    pub(crate) tool_call_parser: Option<String>,
}

/// A table of `[[source]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceTable {
    /// What speaks at its endpoints.
    pub(crate) kind: SourceKind,
    /// Names it in metrics and on edges; its kind if left out.
    pub(crate) name: Option<String>,
    /// The model whose blocks it tells of; the card's if left out.
    pub(crate) model: Option<String>,
    /// Tokens per block; the card's if left out.
    pub(crate) block_size: Option<NonZeroU32>,
    /// Whether blocks overlap by one token (EAGLE); as the card says if left out.
    pub(crate) eagle: Option<bool>,
    /// Which part of requests its workers do; all of it if left out.
    pub(crate) role: Option<SourceRole>,
    /// The prefix of topics to subscribe to; engines publish without one unless told.
    pub(crate) topic: Option<String>,
    /// How long a publisher may be disconnected before its blocks go.
    #[serde(default, with = "humantime_serde")]
    pub(crate) gone_after: Option<Duration>,
    /// One for each rank of each engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) endpoints: Vec<EndpointTable>,
    /// Where the site's processes register themselves.
    pub(crate) discovery: Option<DiscoveryTable>,
    /// Dynamo's own relay, `http://host:port`.
    pub(crate) url: Option<String>,
    /// Most bytes of one message from it.
    pub(crate) message_bytes: Option<usize>,
    /// The NATS servers that they publish by, if they do.
    pub(crate) nats: Option<NatsTable>,
    /// Which of the workers' storages it tells of, a pool each; the device's if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tiers: Vec<TierName>,
    /// The site's Dynamo namespace.
    pub(crate) namespace: Option<String>,
    /// The component of the workers; any if left out.
    pub(crate) component: Option<String>,
    /// The workers' endpoint; any if left out.
    pub(crate) endpoint: Option<String>,
}

/// Which part of requests a source's workers do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SourceRole {
    /// All of it.
    #[default]
    Aggregated,
    /// They compute prompts, for others that answer.
    Prefill,
    /// They answer prompts that others have computed.
    Decode,
}

impl SourceRole {
    /// Whether a prompt whose blocks they hold is not computed anew.
    pub(crate) const fn spares_prefill(self) -> bool {
        match self {
            Self::Aggregated | Self::Prefill => true,
            Self::Decode => false,
        }
    }
}

/// What a source speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SourceKind {
    /// Raw engine events over ZeroMQ: vLLM, SGLang, TensorRT-LLM.
    EngineZmq,
    /// Dynamo's own event plane, over ZeroMQ without a broker or over NATS.
    DynamoEvents,
    /// Dynamo's own relay (`kv_dc_relay`), over gRPC.
    DynamoRelay,
}

impl SourceKind {
    /// As it is written.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::EngineZmq => "engine-zmq",
            Self::DynamoEvents => "dynamo-events",
            Self::DynamoRelay => "dynamo-relay",
        }
    }
}

/// A publisher of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndpointTable {
    /// Its events, `tcp://host:port`.
    pub(crate) events: String,
    /// Its replay of past events, `tcp://host:port`; without one a late relay is never whole.
    pub(crate) replay: Option<String>,
    /// The rank of messages that name none.
    #[serde(default)]
    pub(crate) rank: u32,
}

/// Table `[load]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LoadTable {
    /// Metrics pages of engines or of the frontend, `http://host:port/metrics`.
    pub(crate) urls: Vec<String>,
    /// How often they are read.
    #[serde(with = "humantime_serde")]
    pub(crate) interval: Duration,
    /// Requests that each rank computes at once, where neither a card nor a page tells.
    pub(crate) max_requests: Option<u32>,
}

impl Default for LoadTable {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            interval: Duration::from_millis(500),
            max_requests: None,
        }
    }
}

/// Table `[limits]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsTable {
    /// Most (worker, block) entries per pool, at about 64 bytes each; blocks past it are not
    /// told to edges.
    pub(crate) entries: usize,
    /// Most workers per pool at a time.
    pub(crate) workers: u16,
    /// How long a pool may be partial before it is called incomplete.
    #[serde(with = "humantime_serde")]
    pub(crate) partial_after: Duration,
    /// Most requests at a time; past it edges go elsewhere.
    pub(crate) requests: usize,
    /// Most bytes of a request's body; past it the answer is 413.
    pub(crate) body_bytes: u64,
    /// How long open requests may go on after the relay was told to stop.
    #[serde(with = "humantime_serde")]
    pub(crate) stop_grace: Duration,
}

impl Default for LimitsTable {
    fn default() -> Self {
        let proxy = ProxyLimits::default();
        Self {
            entries: 20_000_000,
            workers: 4096,
            partial_after: Duration::from_secs(600),
            requests: proxy.requests,
            body_bytes: proxy.body_bytes,
            stop_grace: Duration::from_secs(25),
        }
    }
}
