//! Metrics that are read from the view when they are asked for.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kvgrid_core::ckf::Naming;
use kvgrid_core::replication::ReplicaState;
use kvgrid_core::view::{GridView, PoolView, SiteView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Reads the current view.
pub(super) struct Grid(pub(super) Arc<ArcSwap<GridView>>);

impl fmt::Debug for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grid")
    }
}

impl Collector for Grid {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let view = self.0.load();
        let mut page = Page(encoder);
        page.gauge(
            (
                "site_alive",
                "Whether a relay of the site is connected",
                None,
            ),
            &alive(&view),
        )?;
        page.gauge(
            ("relay_rtt", "Round trip to a relay", Some(&Unit::Seconds)),
            &round_trips(&view),
        )?;
        page.gauge(
            ("pool_blocks", "Blocks that can be searched", None),
            &pools(&view, |pool| count(pool.replica.blocks)),
        )?;
        page.gauge(
            (
                "pool_table",
                "Memory of what is searched of a pool",
                Some(&Unit::Bytes),
            ),
            &pools(&view, |pool| count(table_bytes(pool))),
        )?;
        page.gauge(
            (
                "pool_live",
                "Whether the replica follows its publisher",
                None,
            ),
            &pools(&view, |pool| {
                truth(pool.replica.state == ReplicaState::Live)
            }),
        )?;
        page.gauge(
            (
                "pool_searchable",
                "Whether it is known here by what names the pool holds its blocks",
                None,
            ),
            &pools(&view, |pool| truth(pool.naming != Naming::Unknown)),
        )
    }
}

/// Values with their labels.
pub(super) type Values = Vec<(Labels, f64)>;

/// What a gauge is of.
pub(super) type Labels = Vec<(&'static str, String)>;

fn alive(view: &GridView) -> Values {
    let value = |site: &SiteView| (vec![("site", site.site.to_string())], truth(site.alive));
    view.sites().iter().map(value).collect()
}

fn round_trips(view: &GridView) -> Values {
    let mut values = Values::new();
    for site in view.sites() {
        for relay in site.relays.iter().filter(|relay| relay.connected) {
            let labels = vec![
                ("site", site.site.to_string()),
                ("relay", relay.id.to_string()),
            ];
            values.push((labels, relay.rtt.as_secs_f64()));
        }
    }
    values
}

fn pools(view: &GridView, value: fn(&PoolView) -> f64) -> Values {
    let mut values = Values::new();
    for site in view.sites() {
        for pool in &site.pools {
            let labels = vec![
                ("site", site.site.to_string()),
                ("pool", format!("{:016x}", pool.id.0)),
            ];
            values.push((labels, value(pool)));
        }
    }
    values
}

fn table_bytes(pool: &PoolView) -> u64 {
    let filter = pool.replica.filter.as_ref();
    filter.map_or(0, |filter| filter.reader.geometry().bytes())
}

/// A page of gauges that is written.
pub(super) struct Page<'a>(pub(super) DescriptorEncoder<'a>);

impl Page<'_> {
    pub(super) fn gauge(
        &mut self,
        (name, help, unit): (&str, &str, Option<&Unit>),
        values: &Values,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(labels)?.encode_gauge(value)?;
        }
        Ok(())
    }
}

fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// A count as a metric shows it: exact up to 2^53.
pub(super) fn count(value: u64) -> f64 {
    value as f64
}
