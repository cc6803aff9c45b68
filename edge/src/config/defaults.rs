//! What holds where the configuration says nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use kvgrid_core::prediction::PredictionConfig;
use kvgrid_core::routing::Policy;

use super::{
    CanaryTable, LimitsTable, ListenTable, PolicyTable, PredictTable, PromptTable, RetryTable,
    TiersTable, WeightsTable,
};

/// Where the admin server listens: the loopback interface, because it asks nobody who he is.
pub(super) const fn admin() -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9440)
}

const fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

impl Default for ListenTable {
    fn default() -> Self {
        Self {
            quic: everywhere(7440),
            client: everywhere(8080),
        }
    }
}

/// The core's own defaults, in the units people write.
impl Default for PolicyTable {
    fn default() -> Self {
        let policy = Policy::default();
        let millis = |millis: f64| Duration::from_secs_f64(millis / 1000.0);
        Self {
            regions: None,
            labels: Vec::new(),
            prefill_ms_per_token: policy.prior_prefill_ms_per_token,
            serving: millis(policy.prior_serving_ms),
            band_share: policy.band_share,
            band_floor: millis(policy.band_floor_ms),
            spread_limit: millis(policy.spread_limit_ms),
            load_stale_after: policy.load_stale_after,
            unknown_queue: millis(policy.unknown_queue_ms),
            stale_half_life: policy.stale_half_life,
            weights: WeightsTable::default(),
            tiers: TiersTable::default(),
        }
    }
}

impl Default for WeightsTable {
    fn default() -> Self {
        let weights = Policy::default().weights;
        Self {
            rtt: weights.rtt,
            upload: weights.upload,
            queue: weights.queue,
            prefill: weights.prefill,
        }
    }
}

impl Default for TiersTable {
    fn default() -> Self {
        let tiers = Policy::default().tiers;
        Self {
            device: tiers.device,
            host_pinned: tiers.host_pinned,
            disk: tiers.disk,
            external: tiers.external,
        }
    }
}

impl Default for PromptTable {
    fn default() -> Self {
        Self {
            memo_bytes: 64 << 20,
            deadline: Duration::from_millis(250),
        }
    }
}

impl Default for LimitsTable {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            connections: 10_000,
            requests: 10_000,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(120),
            stop_delay: Duration::from_secs(3),
            stop_grace: Duration::from_secs(25),
        }
    }
}

impl Default for RetryTable {
    fn default() -> Self {
        Self {
            sites: 3,
            answer_timeout: Duration::from_secs(600),
            failures: 3,
            breaker_min: Duration::from_secs(1),
            breaker_max: Duration::from_secs(30),
        }
    }
}

impl Default for PredictTable {
    fn default() -> Self {
        Self {
            enabled: true,
            until_told: Duration::from_secs(2),
            ttl: Duration::from_secs(120),
            max_blocks: PredictionConfig::default().max_blocks,
        }
    }
}

impl Default for CanaryTable {
    fn default() -> Self {
        Self {
            enabled: false,
            every: Duration::from_secs(10),
            renew_after: Duration::from_secs(600),
        }
    }
}
