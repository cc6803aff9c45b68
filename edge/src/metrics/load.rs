//! How busy sites are, as far as that is known: what isn't, or is too old, is left out.

use std::fmt;

use kvgrid_core::load::{EngineSum, ModelLoad};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::grid::{Labels, Page, Values, count};
use crate::route::Router;

/// Reads the loads that decisions go by.
pub(crate) struct SiteLoads(pub(crate) Router);

impl fmt::Debug for SiteLoads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SiteLoads")
    }
}

/// What of a load is shown, under which name and help.
type Shown = (&'static str, &'static str, fn(&ModelLoad) -> Option<f64>);

const SHOWN: [Shown; 8] = [
    (
        "site_requests",
        "Requests at the site, computed or waiting, whichever way they came",
        |load| load.requests().map(f64::from),
    ),
    (
        "site_requests_running",
        "Requests that the site's engines compute",
        |load| engines(load, |sum| Some(sum.running.into())),
    ),
    (
        "site_requests_waiting",
        "Requests that wait in the site's engines",
        |load| engines(load, |sum| sum.waiting.map(f64::from)),
    ),
    (
        "site_max_requests",
        "Requests that the site computes at once",
        |load| engines(load, |sum| sum.max_requests.map(f64::from)),
    ),
    (
        "site_backlog_tokens",
        "Prompt tokens to be computed before another request's",
        |load| load.backlog_tokens().map(count),
    ),
    (
        "site_kv_use",
        "Share of the site's KV cache that requests hold",
        |load| engines(load, |sum| sum.kv_use.map(f64::from)),
    ),
    (
        "site_kv_cached",
        "Share of the site's KV cache that is kept for reuse",
        |load| engines(load, |sum| sum.kv_cached.map(f64::from)),
    ),
    (
        "site_kv_tokens",
        "Tokens that the site's KV cache has room for",
        |load| engines(load, |sum| sum.kv_tokens.map(count)),
    ),
];

impl Collector for SiteLoads {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let loads = self.loads();
        for (name, help, value) in SHOWN {
            let value = |(labels, load): &(Labels, ModelLoad)| Some((labels.clone(), value(load)?));
            let values: Values = loads.iter().filter_map(value).collect();
            page.gauge((name, help, None), &values)?;
        }
        Ok(())
    }
}

impl SiteLoads {
    /// Of models that sites' catalogs name.
    fn loads(&self) -> Vec<(Labels, ModelLoad)> {
        let mut loads = Vec::new();
        for site in self.0.view().sites() {
            for load in self.0.fresh_load(site) {
                if let Some(model) = site.model(load.model) {
                    let labels = vec![
                        ("site", site.site.to_string()),
                        ("model", model.name.to_string()),
                    ];
                    loads.push((labels, load));
                }
            }
        }
        loads
    }
}

fn engines(load: &ModelLoad, value: fn(&EngineSum) -> Option<f64>) -> Option<f64> {
    value(load.engines.as_ref()?)
}
