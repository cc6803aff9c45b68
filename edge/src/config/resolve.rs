//! From what is written to what is meant.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kvgrid_core::Region;
use kvgrid_core::filter::Form;
use kvgrid_core::label::{LabelRule, SiteRules};
use kvgrid_core::membership::Scope;
use kvgrid_core::routing::{Policy, TierCredits, Weights};
use kvgrid_runtime::TransportConfig;
use kvgrid_runtime::config::{ConfigError, IdentityConfig};

use super::{
    CanaryTable, ConfigFile, HeadersTable, LimitsTable, ListenTable, PolicyTable, PredictTable,
    PromptTable, RetryTable, defaults,
};

/// Relays that may be named; the grid's others are learnt from them.
const SEEDS: usize = 1024;
/// Blocks that may be expected: about 1 GB of them.
const PREDICTED_BLOCKS: usize = 1 << 24;

/// The configuration as meant.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Certificate and keys.
    pub(crate) identity: IdentityConfig,
    /// Where it listens for QUIC and clients.
    pub(crate) listen: ListenTable,
    /// Where its admin server listens.
    pub(crate) admin: SocketAddr,
    /// The file that says that it has started.
    pub(crate) ready_file: Option<PathBuf>,
    /// Addresses of relays, `host:port`; none if all relays dial this edge.
    pub(crate) seeds: Vec<String>,
    /// Networks that this edge reaches, the best first.
    pub(crate) scopes: Vec<Scope>,
    /// Live sites that make this edge ready.
    pub(crate) quorum: usize,
    /// How much of each block's hash it keeps.
    pub(crate) form: Form,
    /// How it decides.
    pub(crate) policy: Policy,
    /// What it tells clients.
    pub(crate) headers: HeadersTable,
    /// How it tokenises.
    pub(crate) prompt: PromptTable,
    /// What clients may take of it.
    pub(crate) limits: LimitsTable,
    /// When it gives up on a site.
    pub(crate) retry: RetryTable,
    /// What it expects to be cached where it has sent it.
    pub(crate) predict: PredictTable,
    /// What it asks sites itself.
    pub(crate) canary: CanaryTable,
    /// How it sends.
    pub(crate) transport: TransportConfig,
}

impl ConfigFile {
    /// Fills in what is only known at the end, so that it prints as it is used.
    pub(crate) fn complete(mut self) -> Self {
        self.admin.listen.get_or_insert(defaults::admin());
        self
    }

    /// Checks every value and turns it into what the edge uses.
    pub(crate) fn resolve(&self) -> Result<Config, ConfigError> {
        if self.relays.quorum == 0 {
            return Err(ConfigError::key("relays.quorum", "at least 1 site"));
        }
        Ok(Config {
            identity: self.identity.clone(),
            listen: self.listen.clone(),
            admin: self.admin.listen.unwrap_or_else(defaults::admin),
            ready_file: self.admin.ready_file.clone(),
            seeds: seeds(&self.relays.seeds)?,
            scopes: scopes(&self.relays.scopes)?,
            quorum: self.relays.quorum,
            form: self.view.form.into(),
            policy: self.policy.resolve()?,
            headers: self.headers,
            prompt: prompt(self.prompt)?,
            limits: limits(self.limits)?,
            retry: retry(self.retry)?,
            predict: predict(self.predict)?,
            canary: canary(self.canary)?,
            transport: self.transport.checked()?,
        })
    }
}

fn scopes(scopes: &[String]) -> Result<Vec<Scope>, ConfigError> {
    let scope = |name: &String| Scope::new(name);
    let scopes: Result<_, _> = scopes.iter().map(scope).collect();
    scopes.map_err(|error| ConfigError::key("relays.scopes", &error))
}

fn seeds(seeds: &[String]) -> Result<Vec<String>, ConfigError> {
    let wrong = |reason: String| Err(ConfigError::key("relays.seeds", &reason));
    if seeds.len() > SEEDS {
        return wrong(format!("more than {SEEDS} relays"));
    }
    for seed in seeds {
        let port = seed.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) {
            return wrong(format!("{seed:?} is not host:port"));
        }
    }
    Ok(seeds.to_vec())
}

impl PolicyTable {
    fn resolve(&self) -> Result<Policy, ConfigError> {
        let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let policy = Policy::default();
        Ok(Policy {
            rules: self.rules()?,
            prior_prefill_ms_per_token: within(
                "policy.prefill_ms_per_token",
                self.prefill_ms_per_token,
                (1e-5, 10.0),
            )?,
            prior_serving_ms: millis(not_zero("policy.serving", self.serving)?),
            band_share: within("policy.band_share", self.band_share, (0.0, 1.0))?,
            band_floor_ms: millis(self.band_floor),
            spread_limit_ms: millis(self.spread_limit),
            load_stale_after: not_zero("policy.load_stale_after", self.load_stale_after)?,
            unknown_queue_ms: millis(self.unknown_queue),
            stale_half_life: not_zero("policy.stale_half_life", self.stale_half_life)?,
            weights: Weights {
                rtt: within("policy.weights.rtt", self.weights.rtt, WEIGHTS)?,
                upload: within("policy.weights.upload", self.weights.upload, WEIGHTS)?,
                queue: within("policy.weights.queue", self.weights.queue, WEIGHTS)?,
                prefill: within("policy.weights.prefill", self.weights.prefill, WEIGHTS)?,
            },
            tiers: TierCredits {
                device: within("policy.tiers.device", self.tiers.device, SHARE)?,
                host_pinned: within("policy.tiers.host_pinned", self.tiers.host_pinned, SHARE)?,
                disk: within("policy.tiers.disk", self.tiers.disk, SHARE)?,
                external: within("policy.tiers.external", self.tiers.external, SHARE)?,
            },
            ..policy
        })
    }

    fn rules(&self) -> Result<SiteRules, ConfigError> {
        let region = |name: &String| Region::new(name);
        let regions = self.regions.as_ref().map(|regions| {
            let regions: Result<BTreeSet<Region>, _> = regions.iter().map(region).collect();
            regions.map_err(|error| ConfigError::key("policy.regions", &error))
        });
        let labels = self.labels.iter().map(|rule| {
            let rule: Result<LabelRule, _> = rule.parse();
            rule.map_err(|error| ConfigError::key("policy.labels", &error))
        });
        Ok(SiteRules {
            regions: regions.transpose()?,
            labels: labels.collect::<Result<_, _>>()?,
        })
    }
}

const WEIGHTS: (f64, f64) = (0.0, 1000.0);
const SHARE: (f64, f64) = (0.0, 1.0);

fn within(key: &str, value: f64, (least, most): (f64, f64)) -> Result<f64, ConfigError> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        let reason = format!("{value} is not between {least} and {most}");
        Err(ConfigError::key(key, &reason))
    }
}

fn not_zero(key: &str, value: Duration) -> Result<Duration, ConfigError> {
    if value.is_zero() {
        Err(ConfigError::key(key, "must be longer than 0"))
    } else {
        Ok(value)
    }
}

fn at_least_one(key: &str, value: usize) -> Result<(), ConfigError> {
    if value == 0 {
        Err(ConfigError::key(key, "must be at least 1"))
    } else {
        Ok(())
    }
}

fn prompt(prompt: PromptTable) -> Result<PromptTable, ConfigError> {
    not_zero("prompt.deadline", prompt.deadline)?;
    Ok(prompt)
}

fn limits(limits: LimitsTable) -> Result<LimitsTable, ConfigError> {
    at_least_one("limits.body_bytes", limits.body_bytes)?;
    at_least_one("limits.connections", limits.connections)?;
    at_least_one("limits.requests", limits.requests)?;
    not_zero("limits.head_timeout", limits.head_timeout)?;
    not_zero("limits.body_timeout", limits.body_timeout)?;
    Ok(limits)
}

fn predict(predict: PredictTable) -> Result<PredictTable, ConfigError> {
    not_zero("predict.ttl", predict.ttl)?;
    at_least_one("predict.max_blocks", predict.max_blocks)?;
    if predict.max_blocks > PREDICTED_BLOCKS {
        let reason = format!("more than {PREDICTED_BLOCKS} blocks");
        return Err(ConfigError::key("predict.max_blocks", &reason));
    }
    Ok(predict)
}

fn canary(canary: CanaryTable) -> Result<CanaryTable, ConfigError> {
    not_zero("canary.every", canary.every)?;
    not_zero("canary.renew_after", canary.renew_after)?;
    Ok(canary)
}

fn retry(retry: RetryTable) -> Result<RetryTable, ConfigError> {
    at_least_one("retry.sites", retry.sites)?;
    not_zero("retry.answer_timeout", retry.answer_timeout)?;
    not_zero("retry.breaker_min", retry.breaker_min)?;
    if retry.failures == 0 {
        return Err(ConfigError::key("retry.failures", "must be at least 1"));
    }
    if retry.breaker_max < retry.breaker_min {
        let reason = "must not be shorter than retry.breaker_min";
        return Err(ConfigError::key("retry.breaker_max", reason));
    }
    Ok(retry)
}
