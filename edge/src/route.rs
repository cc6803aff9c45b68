//! Decides where a request goes, and remembers what this edge has sent where.
//!
//! A decision loads three immutable snapshots (the view, own requests, breakers) once each
//! and calls the core; it takes no lock and never waits. What happens after it, a request
//! sent, answered or failed, is told through the [`Dispatch`] it got, and changes the
//! snapshots for the decisions after it. What a site says of a prompt in its answer is told in
//! the same way, and decides whether its tokens are believed ([`kvgrid_core::parity`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use kvgrid_core::Instant;
use kvgrid_core::id::{ModelName, RelayId, SiteId};
use kvgrid_core::label::SiteRules;
use kvgrid_core::load::ModelLoad;
use kvgrid_core::parity::{Kind, Parity};
use kvgrid_core::routing::{
    Breakers, Chains, Choice, Decision, Inflight, Local, Policy, RouteRequest, decide,
};
use kvgrid_core::view::{GridView, SiteView};
use kvgrid_runtime::Clock;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tracing::debug;

use crate::config::{PredictTable, RetryTable};
use crate::metrics::Metrics;
use board::BreakerBoard;
pub(crate) use dispatch::Dispatch;
use expect::Expectations;
use parity::ParityBoard;
pub(crate) use words::unmatched;

mod board;
mod dispatch;
mod expect;
mod parity;
mod words;

/// How often what is expected of sites is looked through for what has lasted long enough.
const EXPIRY: Duration = Duration::from_millis(250);

/// A wait that is no longer is nobody's.
const LITTLE_MS: f64 = 1.0;

/// How a router decides.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouterConfig {
    /// By what.
    pub(crate) policy: Policy,
    /// When it gives up on a relay.
    pub(crate) retry: RetryTable,
    /// What it expects of what it has sent.
    pub(crate) predict: PredictTable,
}

/// What a decision must know of a request; kept over its retries.
#[derive(Clone, Debug)]
pub(crate) struct RouteInput {
    /// The model asked for.
    pub(crate) model: ModelName,
    /// The prompt's tokens, as far as known; hashed when the first decision needs it.
    pub(crate) chains: Chains,
    /// Whether they are the whole prompt.
    pub(crate) complete: bool,
    /// By what rules they were made.
    pub(crate) kind: Kind,
    /// Size of the body.
    pub(crate) body_bytes: u64,
    /// What the request's session hashes to, where one is known.
    pub(crate) affinity: Option<u64>,
    /// Rules beside the policy's own.
    pub(crate) rules: Vec<SiteRules>,
}

/// The edge's router; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Router(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    view: Arc<ArcSwap<GridView>>,
    policy: Policy,
    inflight: ArcSwap<Inflight>,
    breakers: BreakerBoard,
    expected: Expectations,
    parity: ParityBoard,
    clock: Clock,
    /// Seeds of the generators that decisions draw from, one each.
    seed: AtomicU64,
    metrics: Metrics,
}

impl Router {
    /// A router over a view that others keep. `seed` makes its draws its own.
    pub(crate) fn new(
        view: Arc<ArcSwap<GridView>>,
        config: RouterConfig,
        (clock, seed): (Clock, u64),
        metrics: Metrics,
    ) -> Self {
        Self(Arc::new(Shared {
            view,
            policy: config.policy,
            inflight: ArcSwap::default(),
            breakers: BreakerBoard::new(&config.retry),
            expected: Expectations::new(config.predict),
            parity: ParityBoard::default(),
            clock,
            seed: AtomicU64::new(seed),
            metrics,
        }))
    }

    /// Decides where a request goes; sites and relays that were tried are passed over.
    pub(crate) fn route(
        &self,
        input: &mut RouteInput,
        (sites, relays): (&[SiteId], &[RelayId]),
    ) -> Decision {
        let started = self.now();
        let decision = self.consider(input, (sites, relays));
        let spent = self.now().saturating_since(started);
        self.0.metrics.decided(&decision, spent.as_secs_f64());
        debug!(model = %input.model, %decision, "Decided");
        decision
    }

    /// The same of a request that is no client's: it is not counted as decided.
    pub(crate) fn consider(
        &self,
        input: &mut RouteInput,
        (sites, relays): (&[SiteId], &[RelayId]),
    ) -> Decision {
        let now = self.now();
        let view = self.0.view.load();
        input.chains.hash_for(&view, input.model.id());
        let rules: Vec<&SiteRules> = input.rules.iter().collect();
        let aside = self.0.parity.aside(&view, input.model.id(), input.kind);
        let request = RouteRequest {
            model: &input.model,
            chains: &input.chains,
            body_bytes: input.body_bytes,
            affinity: input.affinity,
            exclude: sites,
            exclude_relays: relays,
            rules: &rules,
            aside: &aside,
        };
        let local = Local {
            policy: &self.0.policy,
            inflight: &self.0.inflight.load(),
            breakers: &self.0.breakers.snapshot(),
            predicted: self.0.expected.predicted(),
        };
        let mut rng = self.generator();
        decide(&view, &request, &local, now, &mut rng)
    }

    /// Whether nobody waits at a site, as the decision saw it: where its load is not known, as
    /// far as anything was told.
    pub(crate) fn is_idle(&self, decision: &Decision, site: &SiteId) -> bool {
        let candidate = decision.candidate(site);
        let score = candidate.and_then(|candidate| candidate.score());
        score.is_some_and(|score| {
            let unknown = self.0.policy.unknown_queue_ms;
            let nobody = if score.load_known { 0.0 } else { unknown };
            score.cost.queue_ms <= nobody + LITTLE_MS
        })
    }

    /// Begins what was decided: numbers the request and counts it from now on.
    ///
    /// `None` if the relay's breaker lets one trial through and another request is that: the
    /// site is then to be treated like one that was tried.
    pub(crate) fn dispatch(&self, choice: &Choice, input: &RouteInput) -> Option<Dispatch> {
        Dispatch::begin(self, choice, input)
    }

    /// The same of a request that is no client's: its tokens are not counted as sent, and no
    /// other request goes by what it leaves there.
    pub(crate) fn dispatch_own(&self, choice: &Choice, input: &RouteInput) -> Option<Dispatch> {
        Dispatch::begin_own(self, choice, input)
    }

    /// Forgets what is not expected any more, for ever; ends by being dropped.
    pub(crate) async fn expire(self) {
        loop {
            tokio::time::sleep(EXPIRY).await;
            self.0.expected.expire(self.now());
        }
    }

    /// The view as it is now.
    pub(crate) fn view(&self) -> Guard<Arc<GridView>> {
        self.0.view.load()
    }

    /// What the breakers let through.
    pub(crate) fn breakers(&self) -> Guard<Arc<Breakers>> {
        self.0.breakers.snapshot()
    }

    /// Looks at what is known of the sites' parity.
    pub(crate) fn parity<T>(&self, look: impl FnOnce(&Parity) -> T) -> T {
        self.0.parity.look(look)
    }

    /// Own requests at a relay that have not ended.
    pub(crate) fn open_requests(&self, relay: &RelayId) -> u32 {
        let inflight = self.0.inflight.load();
        inflight.lane(relay).map_or(0, |lane| lane.open_requests())
    }

    /// The time that ages in the view are measured by.
    pub(crate) fn now(&self) -> Instant {
        self.0.clock.now()
    }

    /// A site's load of its models, as far as it isn't too old to count.
    pub(crate) fn fresh_load(&self, site: &SiteView) -> Vec<ModelLoad> {
        let (now, stale_after) = (self.now(), self.0.policy.load_stale_after);
        let models = site.load.models.iter();
        models.map(|load| load.fresh(now, stale_after)).collect()
    }

    /// A generator of this decision's own, so that decisions share no lock for their luck.
    fn generator(&self) -> SmallRng {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        SmallRng::seed_from_u64(self.0.seed.fetch_add(GOLDEN, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
