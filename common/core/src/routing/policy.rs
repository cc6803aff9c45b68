//! How an edge weighs what it knows.

use core::time::Duration;

use crate::event::Tier;
use crate::label::SiteRules;

/// An edge's policy; every number has the unit its name says.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Sites this edge may use at all.
    pub rules: SiteRules,
    /// Prefill time per token where a site has not measured its own; above 0.
    pub prior_prefill_ms_per_token: f64,
    /// How long a request is computed from its first token on, where a site has not measured it;
    /// above 0.
    pub prior_serving_ms: f64,
    /// Width of the band in which the deepest overlap wins, as a share of the least cost.
    pub band_share: f64,
    /// Least width of that band.
    pub band_floor_ms: f64,
    /// Most that expected arrivals may widen the band between sites that differ in their
    /// queues alone.
    pub spread_limit_ms: f64,
    /// Age past which a load report counts as unknown.
    pub load_stale_after: Duration,
    /// Least wait assumed where a site's load is not known.
    pub unknown_queue_ms: f64,
    /// Tokens assumed for a waiting request of which an engine tells only that it waits.
    pub assumed_request_tokens: f64,
    /// Bytes of a request body that are taken for one token where none are counted.
    pub bytes_per_token: f64,
    /// Time in which half of a stale replica's depth is expected to have been evicted.
    pub stale_half_life: Duration,
    /// What each term of the cost counts; 1 each by default.
    pub weights: Weights,
    /// What a cached block is worth, by where it is kept.
    pub tiers: TierCredits,
}

/// Factors of the cost's terms, 0 or above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Of the round trip.
    pub rtt: f64,
    /// Of sending the body.
    pub upload: f64,
    /// Of waiting for a place.
    pub queue: f64,
    /// Of computing what is not cached.
    pub prefill: f64,
}

/// Share of the prefill that a cached block saves, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierCredits {
    /// In GPU memory.
    pub device: f64,
    /// In pinned host memory.
    pub host_pinned: f64,
    /// On a local disk.
    pub disk: f64,
    /// In a store shared between workers.
    pub external: f64,
}

impl TierCredits {
    /// The credit of a tier.
    pub const fn of(&self, tier: Tier) -> f64 {
        match tier {
            Tier::Device => self.device,
            Tier::HostPinned => self.host_pinned,
            Tier::Disk => self.disk,
            Tier::External => self.external,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            rules: SiteRules::default(),
            prior_prefill_ms_per_token: 0.02,
            prior_serving_ms: 1000.0,
            band_share: 0.05,
            band_floor_ms: 5.0,
            spread_limit_ms: 500.0,
            load_stale_after: Duration::from_secs(10),
            unknown_queue_ms: 50.0,
            assumed_request_tokens: 1000.0,
            bytes_per_token: 4.0,
            stale_half_life: Duration::from_secs(60),
            weights: Weights {
                rtt: 1.0,
                upload: 1.0,
                queue: 1.0,
                prefill: 1.0,
            },
            tiers: TierCredits {
                device: 1.0,
                host_pinned: 0.75,
                disk: 0.25,
                external: 0.25,
            },
        }
    }
}
