//! The edge's metrics: every name in one place.
//!
//! Counters are kept here and counted where things happen; what the view knows is read from
//! it at each scrape. Labels are sites, relays, pools and fixed words, all of which
//! certificates and this code bound, never what a client sends.

use std::sync::Arc;

use arc_swap::ArcSwap;
use kvgrid_core::SiteId;
use kvgrid_core::routing::{Decision, Pick, Refusal};
use kvgrid_core::view::GridView;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::open::{InFlight, OpenRequests};

pub(crate) use cards::CardMetrics;
pub(crate) use load::SiteLoads;
use parity::ParityMetrics;
pub(crate) use unmatched::Unmatched;

mod cards;
mod grid;
mod load;
mod parity;
mod unmatched;

/// What the edge counts; clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    decisions: Family<Outcome, Counter>,
    decision_seconds: Histogram,
    prompt_tokens: Family<Site, Counter>,
    overlap_tokens: Family<Site, Counter>,
    blind: Counter,
    prompts: Family<Tokens, Counter>,
    requests: Family<Answered, Counter>,
    passed_over: Family<PassedOver, Counter>,
    broken: Family<Site, Counter>,
    open: OpenRequests,
    parity: ParityMetrics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Site {
    site: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tokens {
    tokens: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    /// Empty if no site answered.
    site: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassedOver {
    site: String,
    reason: &'static str,
}

impl Metrics {
    /// Metrics that count from zero, and the registry that shows them with the view's own.
    pub(crate) fn new(view: Arc<ArcSwap<GridView>>, open: OpenRequests) -> (Self, Registry) {
        let metrics = Self {
            decisions: Family::default(),
            // From a microsecond to a quarter of a second.
            decision_seconds: Histogram::new(exponential_buckets(1e-6, 4.0, 10)),
            prompt_tokens: Family::default(),
            overlap_tokens: Family::default(),
            blind: Counter::default(),
            prompts: Family::default(),
            requests: Family::default(),
            passed_over: Family::default(),
            broken: Family::default(),
            open,
            parity: ParityMetrics::default(),
        };
        let mut registry = Registry::with_prefix("kvgrid_edge");
        metrics.register(&mut registry);
        registry.register_collector(Box::new(grid::Grid(view)));
        (metrics, registry)
    }

    fn register(&self, registry: &mut Registry) {
        let mut counter = |name: &str, help: &str, counter: Family<Site, Counter>| {
            registry.register(name, help, counter);
        };
        counter(
            "prompt_tokens",
            "Prompt tokens of requests sent to a site",
            self.prompt_tokens.clone(),
        );
        counter(
            "overlap_tokens",
            "Of these, tokens that the site had cached, as far as the edge knew",
            self.overlap_tokens.clone(),
        );
        counter(
            "broken_answers",
            "Answers of a site that ended early, after the client had seen their beginning",
            self.broken.clone(),
        );
        registry.register("decisions", "Decisions, by outcome", self.decisions.clone());
        registry.register_with_unit(
            "decision",
            "Time to search and score",
            Unit::Seconds,
            self.decision_seconds.clone(),
        );
        registry.register(
            "blind_decisions",
            "Decisions without the prompt's tokens",
            self.blind.clone(),
        );
        registry.register(
            "prompts",
            "Prompts, by how their tokens were found or why they were not",
            self.prompts.clone(),
        );
        registry.register(
            "requests",
            "Requests answered, by site and status",
            self.requests.clone(),
        );
        registry.register(
            "passed_over",
            "Sites that a request was sent to in vain",
            self.passed_over.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests that are being answered",
            self.open.gauge(),
        );
        self.parity.register(registry);
    }

    /// Counts a decision and how long it took.
    pub(crate) fn decided(&self, decision: &Decision, seconds: f64) {
        self.decision_seconds.observe(seconds);
        let outcome = match &decision.outcome {
            Ok(choice) => {
                if choice.prompt_tokens.is_none() {
                    self.blind.inc();
                }
                match choice.pick {
                    Pick::Cheapest => "cheapest",
                    Pick::Deepest => "deepest",
                    Pick::Drawn(_) => "drawn",
                    Pick::Affine(_) => "affine",
                }
            }
            Err(Refusal::UnknownModel) => "unknown_model",
            Err(Refusal::TooLong { .. }) => "too_long",
            Err(Refusal::Unavailable) => "unavailable",
        };
        self.decisions.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a prompt: `tokens` says how its tokens were found, or why they were not.
    pub(crate) fn prompt(&self, tokens: &'static str) {
        self.prompts.get_or_create(&Tokens { tokens }).inc();
    }

    /// Counts the tokens of a request that is sent to a site.
    pub(crate) fn sent(&self, site: &SiteId, prompt_tokens: u32, overlap_tokens: u32) {
        let site = label(site);
        let add = |family: &Family<Site, Counter>, tokens: u32| {
            family.get_or_create(&site).inc_by(u64::from(tokens));
        };
        add(&self.prompt_tokens, prompt_tokens);
        add(&self.overlap_tokens, overlap_tokens);
    }

    /// Counts a request that a client got this status for, from a site or from the edge.
    pub(crate) fn answered(&self, site: Option<&SiteId>, code: u16) {
        let site = site.map_or_else(String::new, |site| site.as_str().to_owned());
        self.requests.get_or_create(&Answered { site, code }).inc();
    }

    /// Counts a site that a request was sent to in vain.
    pub(crate) fn passed_over(&self, site: &SiteId, reason: &'static str) {
        let site = site.as_str().to_owned();
        let label = PassedOver { site, reason };
        self.passed_over.get_or_create(&label).inc();
    }

    /// Counts an answer that ended early.
    pub(crate) fn broken(&self, site: &SiteId) {
        self.broken.get_or_create(&label(site)).inc();
    }

    /// Counts a request in; dropping the guard counts it out.
    pub(crate) fn begin(&self) -> InFlight {
        self.open.begin()
    }
}

fn label(site: &SiteId) -> Site {
    Site {
        site: site.as_str().to_owned(),
    }
}
