//! Metrics of what sites say of prompts, against what was expected.

use kvgrid_core::SiteId;
use kvgrid_core::parity::{Change, Forecast, Noted, Usage};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{Metrics, Site, label};

/// What is counted of parity. Kinds are at most as many as the core has.
#[derive(Clone, Debug, Default)]
pub(super) struct ParityMetrics {
    usage: Family<Read, Counter>,
    compared: Family<Compared, Counter>,
    set_aside: Family<OfKind, Counter>,
    overlap_tokens: Family<Site, Counter>,
    cached_tokens: Family<Site, Counter>,
    canaries: Family<Canary, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Canary {
    site: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Read {
    usage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    site: String,
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Compared {
    site: String,
    kind: String,
    what: &'static str,
    equal: &'static str,
}

impl ParityMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "usage",
            "Answers to prompts, by whether they say how long the prompt was and what was cached",
            self.usage.clone(),
        );
        registry.register(
            "parity",
            "Comparisons of what a site says of a prompt with what was expected",
            self.compared.clone(),
        );
        registry.register(
            "kinds_set_aside",
            "How often a kind of request began to be routed to a site without tokens",
            self.set_aside.clone(),
        );
        registry.register(
            "parity_overlap_tokens",
            "Tokens that were expected to be cached, where the site says what was",
            self.overlap_tokens.clone(),
        );
        registry.register(
            "parity_cached_tokens",
            "Tokens that were cached, over the same answers",
            self.cached_tokens.clone(),
        );
        registry.register(
            "canaries",
            "The edge's own requests, by what came of them",
            self.canaries.clone(),
        );
    }
}

impl Metrics {
    /// Counts an answer by what was read of its usage.
    pub(crate) fn usage_read(&self, usage: &'static str) {
        self.parity.usage.get_or_create(&Read { usage }).inc();
    }

    /// Counts a canary.
    pub(crate) fn canary(&self, site: &SiteId, outcome: &'static str) {
        let site = site.to_string();
        let canary = Canary { site, outcome };
        self.parity.canaries.get_or_create(&canary).inc();
    }

    /// Counts what an answer came to.
    pub(crate) fn compared(&self, forecast: &Forecast, usage: Usage, noted: &Noted) {
        let parity = &self.parity;
        let (site, kind) = (forecast.site.to_string(), forecast.kind.to_string());
        for (what, equal) in [("tokens", noted.tokens), ("cached", noted.cached)] {
            let Some(equal) = equal else { continue };
            let compared = Compared {
                site: site.clone(),
                kind: kind.clone(),
                what,
                equal: if equal { "true" } else { "false" },
            };
            parity.compared.get_or_create(&compared).inc();
        }
        if let (Some(_), Some(cached)) = (noted.cached, usage.cached_tokens) {
            let site = label(&forecast.site);
            let add = |family: &Family<Site, Counter>, tokens: u32| {
                family.get_or_create(&site).inc_by(u64::from(tokens));
            };
            add(&parity.overlap_tokens, forecast.overlap_tokens);
            add(&parity.cached_tokens, cached);
        }
        if noted.changes.contains(&Change::SetAside) {
            parity.set_aside.get_or_create(&OfKind { site, kind }).inc();
        }
    }
}
