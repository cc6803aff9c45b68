//! The relay's metrics: every name in one place, read when they are asked for.
//!
//! Labels are names from the configuration, models and fixed words, so their number is bounded.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kvgrid_core::event::{Refusal, Tier};
use kvgrid_core::replication::Completeness;
use kvgrid_core::residency::ResidencyStats;
use kvgrid_core::{Instant, ModelId, ModelName};
use kvgrid_runtime::Clock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::card::{CardReport, CardState};
use crate::discovery::Sightings;
use crate::frontend::Served;
use crate::gossip::Gossip;
use crate::load::Gateway;
use crate::pools::PoolReport;
use crate::publish::Hub;
use crate::sources::FeedState;

/// Where the numbers are.
pub(crate) struct Readings {
    /// The pools as of the last message.
    pub(crate) pools: watch::Receiver<Vec<PoolReport>>,
    /// The frontend as of the last check.
    pub(crate) served: watch::Receiver<Served>,
    /// The card as of now, and the model it is of, if one is wanted.
    pub(crate) card: Option<(ModelName, watch::Receiver<CardReport>)>,
    /// What edges are told.
    pub(crate) hub: Hub,
    /// The requests under way.
    pub(crate) gateway: Gateway,
    /// The other relays.
    pub(crate) gossip: Gossip,
    /// The models that requests may name.
    pub(crate) models: BTreeMap<ModelId, ModelName>,
    /// What a model's workers say of it, where they do.
    pub(crate) sightings: BTreeMap<ModelId, Sightings>,
    /// The time now.
    pub(crate) clock: Clock,
}

/// A registry that shows the readings.
pub(crate) fn registry(readings: Readings) -> Registry {
    let mut registry = Registry::with_prefix("kvgrid_relay");
    registry.register_collector(Box::new(readings));
    registry
}

impl fmt::Debug for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readings")
    }
}

impl Collector for Readings {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let up = u64::from(self.served.borrow().reachable);
        page.gauge(
            "frontend_up",
            "Whether the frontend answers",
            [(vec![], up)],
        )?;
        let edges = self.hub.edges() as u64;
        page.gauge("edges", "Edges that follow", [(vec![], edges)])?;
        self.requests(&mut page)?;
        self.gossip(&mut page)?;
        self.card(&mut page)?;
        self.apart(&mut page)?;
        let pools = self.pools.borrow();
        blocks(&mut page, &pools)?;
        events(&mut page, &pools)?;
        knowledge(&mut page, &pools)?;
        peers(&mut page, &pools)?;
        ages(&mut page, &pools, self.clock.now())
    }
}

impl Readings {
    fn gossip(&self, page: &mut Page<'_>) -> fmt::Result {
        let members = self.gossip.members().borrow().len() as u64;
        let help = "Relays believed alive, this one among them";
        page.gauge("members", help, [(vec![], members)])?;
        let counters = self.gossip.counters();
        let refused = [
            ("wrong_sender", counters.wrong_sender),
            ("undecodable", counters.undecodable),
            ("too_many", counters.too_many),
        ];
        let refused = refused.map(|(reason, count)| (vec![("reason", reason.to_owned())], count));
        page.counter(
            "gossip_refused",
            "Datagrams of other relays refused",
            refused,
        )?;
        let lost = [
            ("unroutable", counters.unroutable),
            ("dropped", counters.dropped),
        ];
        let lost = lost.map(|(reason, count)| (vec![("reason", reason.to_owned())], count));
        page.counter("gossip_lost", "Datagrams to other relays not sent", lost)
    }

    fn card(&self, page: &mut Page<'_>) -> fmt::Result {
        let states = self.card.iter().flat_map(|(model, report)| {
            let now = report.borrow().state;
            CardState::ALL.map(|state| {
                let labels = vec![
                    ("model", model.to_string()),
                    ("state", card_state_name(state).to_owned()),
                ];
                (labels, u64::from(state == now))
            })
        });
        page.gauge("card", "Where the model's card comes from", states)
    }

    fn apart(&self, page: &mut Page<'_>) -> fmt::Result {
        let workers = self.sightings.iter().map(|(model, seen)| {
            let seen = seen.borrow();
            let apart = seen.iter().flat_map(|seen| &seen.leadership.apart);
            let workers: usize = apart.map(|group| group.workers).sum();
            let name = self.models.get(model).map_or("other", ModelName::as_str);
            (vec![("model", name.to_owned())], workers as u64)
        });
        page.gauge(
            "workers_apart",
            "Workers whose card differs from the one that serves",
            workers,
        )
    }

    fn requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let load = self.gateway.load(self.clock.now());
        let of = |value: fn(&kvgrid_core::load::GatewayLoad) -> u64| {
            load.iter().map(move |(model, load)| {
                let name = self.models.get(model).map_or("other", ModelName::as_str);
                (vec![("model", name.to_owned())], value(load))
            })
        };
        page.gauge(
            "requests_in_flight",
            "Requests under way",
            of(|load| u64::from(load.in_flight)),
        )?;
        page.gauge(
            "queued_tokens",
            "Uncached prompt tokens of requests without a first byte",
            of(|load| load.queued_tokens),
        )
    }
}

fn blocks(page: &mut Page<'_>, pools: &[PoolReport]) -> fmt::Result {
    let of = |value: fn(&ResidencyStats) -> u64| {
        let value = move |pool: &PoolReport| (pool.labels(), value(&pool.stats));
        pools.iter().map(value)
    };
    page.gauge(
        "pool_published_chains",
        "Chains that edges can find",
        of(|stats| stats.published as u64),
    )?;
    page.gauge(
        "pool_held_blocks",
        "Blocks that workers hold, each of each worker once",
        of(|stats| stats.held as u64),
    )?;
    page.gauge(
        "pool_orphaned_blocks",
        "Held blocks that miss an ancestor and are not told",
        of(|stats| stats.orphans as u64),
    )?;
    page.gauge(
        "pool_block_copies",
        "Physical copies",
        of(|stats| stats.copies),
    )?;
    page.gauge(
        "pool_workers",
        "Workers with blocks",
        of(|stats| stats.workers as u64),
    )?;
    page.counter(
        "pool_refused_blocks",
        "Blocks refused because a limit was reached",
        of(|stats| stats.refused),
    )?;
    page.counter(
        "pool_unknown_removals",
        "Removals of blocks that were not held",
        of(|stats| stats.unknown_removals),
    )?;
    page.counter(
        "pool_renamed_blocks",
        "Blocks whose name came back with other content",
        of(|stats| stats.renamed + stats.self_parents),
    )
}

fn events(page: &mut Page<'_>, pools: &[PoolReport]) -> fmt::Result {
    page.counter(
        "source_messages",
        "Messages applied",
        pools.iter().map(|pool| (pool.labels(), pool.batches)),
    )?;
    page.counter(
        "source_blocks",
        "Blocks that the messages stored or removed",
        pools.iter().map(|pool| (pool.labels(), pool.blocks)),
    )?;
    page.counter(
        "source_gaps",
        "How often messages were lost for good",
        pools.iter().map(|pool| (pool.labels(), pool.gaps)),
    )?;
    let repairs = pools.iter();
    page.counter(
        "source_repairs",
        "How often messages that had not come were had by asking again",
        repairs.filter_map(|pool| Some((pool.labels(), pool.repairs?))),
    )?;
    let refused = pools.iter().flat_map(|pool| {
        Refusal::ALL.into_iter().map(|refusal| {
            let mut labels = pool.labels();
            labels.push(("reason", refusal.name().to_owned()));
            (labels, pool.refused.of(refusal))
        })
    });
    page.counter(
        "source_refused_events",
        "Events that could not be used",
        refused,
    )
}

fn knowledge(page: &mut Page<'_>, pools: &[PoolReport]) -> fmt::Result {
    let feeds = pools.iter().flat_map(|pool| {
        pool.feeds.iter().map(|(state, count)| {
            let mut labels = pool.labels();
            labels.push(("state", state_name(*state).to_owned()));
            (labels, *count)
        })
    });
    page.gauge(
        "source_feeds",
        "Publishers, by how much of them is known",
        feeds,
    )?;
    page.gauge(
        "pool_filter_blocks",
        "Blocks in the filter as of the last batch",
        pools.iter().map(|pool| {
            let blocks = pool.told.map_or(0, |told| told.blocks);
            (pool.labels(), blocks)
        }),
    )?;
    let whole = |pool: &PoolReport| {
        let whole = pool.completeness == Completeness::Whole;
        (pool.labels(), u64::from(whole))
    };
    page.gauge(
        "pool_whole",
        "Whether everything that workers hold is known",
        pools.iter().map(whole),
    )
}

/// What only sources tell that have a peer.
fn peers(page: &mut Page<'_>, pools: &[PoolReport]) -> fmt::Result {
    let ends = pools.iter().flat_map(|pool| {
        pool.ends.iter().map(|(reason, count)| {
            let mut labels = pool.labels();
            labels.push(("reason", (*reason).to_owned()));
            (labels, *count)
        })
    });
    page.counter("source_stream_ends", "Streams of a peer that ended", ends)?;
    let ready = pools
        .iter()
        .filter_map(|pool| Some((pool.labels(), u64::from(pool.ready?))));
    page.gauge(
        "source_model_ready",
        "Whether a peer says that the model is served, where it knows",
        ready,
    )
}

fn ages(page: &mut Page<'_>, pools: &[PoolReport], now: Instant) -> fmt::Result {
    let ages = pools.iter().filter_map(|pool| {
        let age = now.saturating_since(pool.heard_at?);
        Some((pool.labels(), age.as_secs()))
    });
    page.gauge(
        "source_last_message_age_seconds",
        "Seconds since the last message that was applied",
        ages,
    )?;
    let evicted = pools
        .iter()
        .filter_map(|pool| Some((pool.labels(), millis(pool.eviction_age?))));
    page.gauge(
        "pool_eviction_age_milliseconds",
        "Age at which blocks that nobody uses are evicted, where it is known",
        evicted,
    )
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const fn state_name(state: FeedState) -> &'static str {
    match state {
        FeedState::Connecting => "connecting",
        FeedState::Whole => "whole",
        FeedState::Partial => "partial",
        FeedState::Gone => "gone",
        FeedState::Unfit => "unfit",
    }
}

const fn card_state_name(state: CardState) -> &'static str {
    match state {
        CardState::Missing => "missing",
        CardState::Current => "current",
        CardState::Remembered => "remembered",
        CardState::Unsupported => "unsupported",
        CardState::Unreachable => "unreachable",
    }
}

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;

struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            let none: Option<&Exemplar<Labels, u64>> = None;
            metric
                .encode_family(&labels)?
                .encode_counter(&value, none)?;
        }
        Ok(())
    }
}

impl PoolReport {
    fn labels(&self) -> Labels {
        let mut labels = vec![
            ("source", self.source.to_string()),
            ("model", self.model.to_string()),
        ];
        // Most sources have no other pool than the device's.
        if self.tier != Tier::Device {
            labels.push(("tier", self.tier.name().to_owned()));
        }
        labels
    }
}
