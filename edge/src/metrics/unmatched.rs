//! A metric of pools that never match what is sent to their sites.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::route::Router;

/// Asks the router when it is asked.
pub(crate) struct Unmatched(pub(crate) Router);

impl fmt::Debug for Unmatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unmatched")
    }
}

impl Collector for Unmatched {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help =
            "Whether a pool misses what it should hold of the requests that were sent to its site";
        let mut family =
            encoder.encode_descriptor("pool_unmatched", help, None, MetricType::Gauge)?;
        let view = self.0.view();
        for site in view.sites() {
            for pool in &site.pools {
                let known = self.0.parity(|parity| {
                    let matching = parity.pool(&site.site, pool.model, pool.id)?;
                    Some(i64::from(matching.is_unmatched()))
                });
                if let Some(unmatched) = known {
                    let pool = format!("{:016x}", pool.id.0);
                    let labels = [("site", site.site.as_str()), ("pool", pool.as_str())];
                    ConstGauge::new(unmatched).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}
