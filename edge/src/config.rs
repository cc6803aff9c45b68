//! The edge's configuration.
//!
//! [`ConfigFile`] is what is written, one type per table, with every default in one place;
//! [`Config`] is what is meant, checked, with errors that name the key.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use kvgrid_core::filter::Form;
use kvgrid_runtime::TransportConfig;
use kvgrid_runtime::admin::AdminConfig;
use kvgrid_runtime::config::{self, ConfigError, Environment, IdentityConfig};
use serde::{Deserialize, Serialize};

pub(crate) use resolve::Config;

mod defaults;
mod resolve;

/// Prefix of the variables that override the file.
const ENVIRONMENT: &str = "KVGRID_EDGE_";

/// Reads the configuration from its file and the process's environment.
pub(crate) fn load(path: &Path) -> Result<ConfigFile, ConfigError> {
    config::load(path, &Environment::of_process(ENVIRONMENT))
}

/// The configuration as written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
    /// Certificate and keys.
    pub(crate) identity: IdentityConfig,
    /// Where it listens.
    #[serde(default)]
    pub(crate) listen: ListenTable,
    /// Where it finds the grid.
    pub(crate) relays: RelaysTable,
    /// What it keeps of what sites have cached.
    #[serde(default)]
    pub(crate) view: ViewTable,
    /// How it decides.
    #[serde(default)]
    pub(crate) policy: PolicyTable,
    /// What it tells clients.
    #[serde(default)]
    pub(crate) headers: HeadersTable,
    /// How it tokenises.
    #[serde(default)]
    pub(crate) prompt: PromptTable,
    /// What clients may take of it.
    #[serde(default)]
    pub(crate) limits: LimitsTable,
    /// When it gives up on a site.
    #[serde(default)]
    pub(crate) retry: RetryTable,
    /// What it expects to be cached where it has sent it.
    #[serde(default)]
    pub(crate) predict: PredictTable,
    /// What it asks sites itself.
    #[serde(default)]
    pub(crate) canary: CanaryTable,
    /// How it sends.
    #[serde(default)]
    pub(crate) transport: TransportConfig,
    /// For operators.
    #[serde(default)]
    pub(crate) admin: AdminConfig,
}

/// Table `[listen]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListenTable {
    /// UDP address of the QUIC endpoint.
    pub(crate) quic: SocketAddr,
    /// TCP address for clients.
    pub(crate) client: SocketAddr,
}

/// Table `[relays]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RelaysTable {
    /// Addresses of relays, `host:port`; a name is looked up again at each dial. None where all
    /// relays dial this edge.
    pub(crate) seeds: Vec<String>,
    /// Networks in which relays advertise addresses that this edge reaches, the best first.
    #[serde(default = "scopes")]
    pub(crate) scopes: Vec<String>,
    /// Live sites that make this edge ready.
    #[serde(default = "one")]
    pub(crate) quorum: usize,
}

fn scopes() -> Vec<String> {
    vec!["public".into()]
}

const fn one() -> usize {
    1
}

/// Table `[view]`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ViewTable {
    /// How much of each block's hash it keeps, where a relay can tell all of it.
    pub(crate) form: ViewForm,
}

/// How much of a hash is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ViewForm {
    /// A fingerprint.
    #[default]
    Filter,
    /// All 64 bits.
    Exact,
}

impl From<ViewForm> for Form {
    fn from(form: ViewForm) -> Self {
        match form {
            ViewForm::Filter => Self::Filter,
            ViewForm::Exact => Self::Exact,
        }
    }
}

/// Table `[policy]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PolicyTable {
    /// Regions whose sites may serve; all if left out.
    pub(crate) regions: Option<Vec<String>>,
    /// Rules on sites' labels: `key=a|b` or `key!=a|b`.
    pub(crate) labels: Vec<String>,
    /// Prefill time per token where a site has not measured its own.
    pub(crate) prefill_ms_per_token: f64,
    /// How long a request keeps its place from its first token on, where a site has not measured
    /// it.
    #[serde(with = "humantime_serde")]
    pub(crate) serving: Duration,
    /// Width of the band in which the deepest overlap wins, as a share of the least cost.
    pub(crate) band_share: f64,
    /// Least width of that band.
    #[serde(with = "humantime_serde")]
    pub(crate) band_floor: Duration,
    /// Most that expected arrivals widen the band between sites that only differ in queues.
    #[serde(with = "humantime_serde")]
    pub(crate) spread_limit: Duration,
    /// Age past which a load report counts as unknown.
    #[serde(with = "humantime_serde")]
    pub(crate) load_stale_after: Duration,
    /// Least wait assumed where a site's load is not known.
    #[serde(with = "humantime_serde")]
    pub(crate) unknown_queue: Duration,
    /// Time in which half of a stale replica's depth is expected to be gone.
    #[serde(with = "humantime_serde")]
    pub(crate) stale_half_life: Duration,
    /// Factors of the cost's terms.
    pub(crate) weights: WeightsTable,
    /// What a cached block saves, by where it is kept.
    pub(crate) tiers: TiersTable,
}

/// Table `[policy.weights]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WeightsTable {
    /// Of the round trip.
    pub(crate) rtt: f64,
    /// Of sending the body.
    pub(crate) upload: f64,
    /// Of waiting for a place.
    pub(crate) queue: f64,
    /// Of computing what is not cached.
    pub(crate) prefill: f64,
}

/// Table `[policy.tiers]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TiersTable {
    /// In GPU memory.
    pub(crate) device: f64,
    /// In pinned host memory.
    pub(crate) host_pinned: f64,
    /// On a local disk.
    pub(crate) disk: f64,
    /// In a store shared between workers.
    pub(crate) external: f64,
}

/// Table `[headers]`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HeadersTable {
    /// Whether answers carry `x-kvgrid-*` headers; overlap tells clients what is cached.
    pub(crate) explain: bool,
}

/// Table `[prompt]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PromptTable {
    /// Bytes that remembered token segments may take, for each card.
    pub(crate) memo_bytes: usize,
    /// How long a request waits for its tokens; past it, it is decided without.
    #[serde(with = "humantime_serde")]
    pub(crate) deadline: Duration,
}

/// Table `[limits]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsTable {
    /// Largest request body, in bytes; larger ones get 413.
    pub(crate) body_bytes: usize,
    /// Connections of clients at the same time; more wait.
    pub(crate) connections: usize,
    /// Requests at the same time; more get 503.
    pub(crate) requests: usize,
    /// How long a client may take to send a request's head.
    #[serde(with = "humantime_serde")]
    pub(crate) head_timeout: Duration,
    /// How long a client may take to send a request's body.
    #[serde(with = "humantime_serde")]
    pub(crate) body_timeout: Duration,
    /// How long it takes new requests on after it was told to stop and is not ready any more,
    /// so that load balancers notice.
    #[serde(with = "humantime_serde")]
    pub(crate) stop_delay: Duration,
    /// How long requests under way may go on after that.
    #[serde(with = "humantime_serde")]
    pub(crate) stop_grace: Duration,
}

/// Table `[predict]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PredictTable {
    /// Whether what was sent to a site counts as cached there.
    pub(crate) enabled: bool,
    /// For how long after an answer has begun, at a site that tells what it has cached: until
    /// its events have come.
    #[serde(with = "humantime_serde")]
    pub(crate) until_told: Duration,
    /// For how long at a site that does not.
    #[serde(with = "humantime_serde")]
    pub(crate) ttl: Duration,
    /// Most blocks that are remembered; past it those go first that would be forgotten first.
    pub(crate) max_blocks: usize,
}

/// Table `[retry]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RetryTable {
    /// Sites that one request is sent to at most, the first included.
    pub(crate) sites: usize,
    /// How long a site may take until its answer begins; a long prompt takes its time.
    #[serde(with = "humantime_serde")]
    pub(crate) answer_timeout: Duration,
    /// Failures in a row that keep requests away from a relay.
    pub(crate) failures: u32,
    /// How long the first time; it doubles with each failed trial, up to `breaker_max`.
    #[serde(with = "humantime_serde")]
    pub(crate) breaker_min: Duration,
    /// Longest time that requests are kept away between trials.
    #[serde(with = "humantime_serde")]
    pub(crate) breaker_max: Duration,
}

/// Table `[canary]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CanaryTable {
    /// Whether sites are asked by small requests of the edge's own how many tokens they make of
    /// a prompt, and whether it is cached afterwards.
    pub(crate) enabled: bool,
    /// Pause between two canaries, over all sites; each is two requests.
    #[serde(with = "humantime_serde")]
    pub(crate) every: Duration,
    /// A kind of request of which clients' answers, or a canary's, told so recently is not
    /// asked about.
    #[serde(with = "humantime_serde")]
    pub(crate) renew_after: Duration,
}

#[cfg(test)]
mod tests;
