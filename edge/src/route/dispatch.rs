//! A request on its way to a relay.

use std::sync::Arc;

use kvgrid_core::breaker::Pass;
use kvgrid_core::id::{ModelId, RelayId};
use kvgrid_core::parity::{Forecast, Usage};
use kvgrid_core::routing::{Choice, Inflight, Lane, held, sent_beyond};

use super::board::Verdict;
use super::expect::Expected;
use super::{RouteInput, Router};

/// A request that was sent to a relay. Dropping it ends the request, however it ended.
///
/// The breaker hears of it once: [`Self::succeeded`], [`Self::failed`], or, if neither is
/// said (the client left, the request was wrong), nothing that counts for or against it.
#[derive(Debug)]
pub(crate) struct Dispatch {
    router: Router,
    lane: Arc<Lane>,
    relay: RelayId,
    model: ModelId,
    number: u64,
    waiting: bool,
    /// What the site should have cached of it; kept only until that is known to be so or not.
    expected: Option<Expected>,
    /// What its answer should say of the prompt; nothing if the prompt's tokens are not known.
    forecast: Option<Forecast>,
    /// Until the breaker has heard how the request went.
    pass: Option<Pass>,
    /// Whether the site has no more to do with it.
    over: bool,
}

impl Dispatch {
    /// Begins a client's request.
    pub(super) fn begin(router: &Router, choice: &Choice, input: &RouteInput) -> Option<Self> {
        let mut dispatch = Self::begin_own(router, choice, input)?;
        if let Some(tokens) = choice.prompt_tokens {
            let metrics = &router.0.metrics;
            metrics.sent(&choice.site, tokens, choice.overlap_tokens);
        }
        dispatch.expected = expected(router, choice, input);
        Some(dispatch)
    }

    /// Begins one of the edge's own: it takes its place at the relay, and nothing of its prompt
    /// is counted, or expected for other requests.
    pub(super) fn begin_own(router: &Router, choice: &Choice, input: &RouteInput) -> Option<Self> {
        let shared = &router.0;
        let model = model_at(router, choice, input);
        let pass = shared.breakers.admit(&choice.relay, model, router.now())?;
        let lane = lane(router, &choice.relay);
        let number = lane.begin(model, choice.uncached_tokens);
        Some(Self {
            router: router.clone(),
            lane,
            relay: choice.relay.clone(),
            model,
            number,
            waiting: true,
            expected: None,
            forecast: forecast(router, choice, input),
            pass: Some(pass),
            over: false,
        })
    }

    /// What the site calls the model, which clients may ask for by another name.
    pub(crate) const fn model(&self) -> ModelId {
        self.model
    }

    /// The number that the relay is told.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The answer's first body byte came: the prompt no longer waits.
    pub(crate) fn first_byte(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.lane.first_byte(self.model, self.number);
        }
    }

    /// The answer that has begun is one to the prompt, so that this is cached there now.
    pub(crate) fn computed(&mut self) {
        if let Some(expected) = self.expected.take() {
            let now = self.router.now();
            self.router.0.expected.computed(&expected, now);
        }
    }

    /// The site takes nothing now: what it said may be kept, but the request is over there.
    pub(crate) fn end(&mut self) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.lane.end(self.number);
        if let Some(expected) = self.expected.take() {
            self.router.0.expected.failed(&expected);
        }
        self.tell(Verdict::None);
    }

    /// The answer is over, and this is what it says of the prompt. Told once.
    pub(crate) fn told(&mut self, usage: Usage) {
        if let Some(forecast) = self.forecast.take() {
            self.router.note_usage(&forecast, usage);
        }
    }

    /// The site answered, with whatever it had to say to the client.
    pub(crate) fn succeeded(&mut self) {
        self.tell(Verdict::Success);
    }

    /// The site failed, in a way that is not the client's fault.
    pub(crate) fn failed(&mut self) {
        self.tell(Verdict::Failure);
    }

    fn tell(&mut self, verdict: Verdict) {
        if let Some(pass) = self.pass.take() {
            let now = self.router.now();
            let breakers = &self.router.0.breakers;
            breakers.settle(&self.relay, self.model, (pass, verdict), now);
        }
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        self.end();
    }
}

fn model_at(router: &Router, choice: &Choice, input: &RouteInput) -> ModelId {
    let (view, asked) = (router.view(), input.model.id());
    let site = view.site(&choice.site);
    site.map_or(asked, |site| site.model_id(asked))
}

fn expected(router: &Router, choice: &Choice, input: &RouteInput) -> Option<Expected> {
    // Of a prompt that is another one there, nothing is found again.
    choice.prompt_tokens?;
    let view = router.view();
    let site = view.site(&choice.site)?;
    let model = site.model_id(input.model.id());
    let blocks = sent_beyond(site, model, &input.chains, choice.overlap_tokens);
    router.0.expected.sent(site, model, blocks, router.now())
}

/// What is known here of the prompt at the chosen site, whether or not it was believed.
fn forecast(router: &Router, choice: &Choice, input: &RouteInput) -> Option<Forecast> {
    let view = router.view();
    let site = view.site(&choice.site)?;
    let model = site.model_id(input.model.id());
    let held = held(site, model, &input.chains)?;
    let deepest = held.pools.iter().max_by_key(|(_, tokens)| *tokens);
    let source = deepest.and_then(|(deepest, _)| {
        let mut pools = site.pools.iter();
        let pool = pools.find(|pool| pool.id == *deepest)?;
        Some(Arc::clone(&pool.source))
    });
    Some(Forecast {
        site: choice.site.clone(),
        model,
        kind: input.kind,
        card: site.model(model)?.card.as_ref()?.digest,
        prompt_tokens: held.prompt_tokens,
        complete: input.complete,
        source,
        // What was merely sent there counts where nothing else tells.
        overlap_tokens: deepest.map_or(choice.overlap_tokens, |(_, tokens)| *tokens),
        block_size: held.block_size,
        beginning: held.beginning,
        pools: held.pools,
    })
}

/// The relay's lane; a new relay gets one, which is rare enough to copy the map for it.
fn lane(router: &Router, relay: &RelayId) -> Arc<Lane> {
    let inflight = &router.0.inflight;
    if let Some(lane) = inflight.load().lane(relay) {
        return Arc::clone(lane);
    }
    inflight.rcu(|lanes| {
        let mut lanes = Inflight::clone(lanes);
        lanes.open(relay, 1);
        lanes
    });
    let lanes = inflight.load();
    Arc::clone(
        lanes
            .lane(relay)
            .expect("it was opened, and none is ever closed"),
    )
}
