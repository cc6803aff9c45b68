//! A request on its way to a relay.

use std::sync::Arc;

use kvgrid_core::breaker::Pass;
use kvgrid_core::id::{ModelId, RelayId};
use kvgrid_core::routing::{Choice, Inflight, Lane};

use super::Router;
use super::board::Verdict;

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
    /// Until the breaker has heard how the request went.
    pass: Option<Pass>,
}

impl Dispatch {
    pub(super) fn begin(router: &Router, choice: &Choice, model: ModelId) -> Option<Self> {
        let shared = &router.0;
        let pass = shared.breakers.admit(&choice.relay, model, router.now())?;
        let lane = lane(router, &choice.relay);
        let number = lane.begin(model, choice.uncached_tokens);
        if let Some(tokens) = choice.prompt_tokens {
            shared
                .metrics
                .sent(&choice.site, tokens, choice.overlap_tokens);
        }
        Some(Self {
            router: router.clone(),
            lane,
            relay: choice.relay.clone(),
            model,
            number,
            waiting: true,
            pass: Some(pass),
        })
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
        self.lane.end(self.number);
        self.tell(Verdict::None);
    }
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
