//! What a site would cost: milliseconds of expected time to the first token.
//!
//! `cost = rtt + upload + queue + prefill`, each term a measured input or its prior, each
//! weighted by the policy (1 by default). A site's cost does not depend on other sites, and
//! more overlap never makes it worse.
//!
//! The queue is counted in uncached prompt tokens: what relays have sent on and not seen
//! answered, what waits in the engines past them, and this edge's own requests that the
//! relays' reports do not include yet. Where load is not known, or not how many wait, the wait
//! is at least the policy's `unknown_queue_ms`, so that silence is never taken for idleness.
//!
//! A site that computes as many requests at once as it can lets others wait until some end,
//! however little they ask for. So where it is known how many that are, the wait is at least
//! the one for a place.

use core::time::Duration;

use crate::view::plan::{self, Backlog, Path, Seat};

use super::depth::{Overlap, best_after};
use super::eligibility::Way;
use super::inflight::OwnLoad;
use super::policy::{Policy, Weights};
use super::question::Question;

/// Bounds on the prefill speed that a relay may report, so that a wrong number cannot draw
/// or drive away everything.
const PREFILL_MS_PER_TOKEN: (f64, f64) = (1e-5, 10.0);
/// Bounds on how long a request may be said to keep its place, for the same reason.
const SERVING_MS: (f64, f64) = (1.0, 600_000.0);
/// Window assumed where the path's is not known: QUIC's initial one.
const INITIAL_WINDOW: f64 = 14_720.0;
/// Share of the KV cache taken for used where the engines do not tell.
const UNKNOWN_KV_USE: f64 = 0.5;
/// Spare capacity never counts as less than this share of a rank.
const LEAST_SPARE: f64 = 0.01;

/// The terms of a site's cost, before weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Round trip to the relay.
    pub rtt_ms: f64,
    /// Sending the body, beyond the round trip.
    pub upload_ms: f64,
    /// Waiting for a place.
    pub queue_ms: f64,
    /// Computing what is not cached.
    pub prefill_ms: f64,
}

impl Cost {
    /// The weighted sum.
    pub fn total_ms(&self, weights: &Weights) -> f64 {
        self.rtt_ms * weights.rtt
            + self.upload_ms * weights.upload
            + self.queue_ms * weights.queue
            + self.prefill_ms * weights.prefill
    }
}

/// An eligible site, weighed.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Which of the site's relays would be used.
    pub relay: usize,
    /// The terms of the cost.
    pub cost: Cost,
    /// Their weighted sum.
    pub total_ms: f64,
    /// The same without the queue: what does not change from one moment to the next.
    pub fixed_ms: f64,
    /// What the site has cached of the prompt.
    pub overlap: Overlap,
    /// The prompt's length there; estimated from the body if no tokens are known.
    pub prompt_tokens: u32,
    /// Tokens to compute, as far as expected.
    pub uncached_tokens: u32,
    /// Whether the site's load is known and fresh, the requests that wait included.
    pub load_known: bool,
    /// Ranks' worth of KV cache or of places that is free, whichever is less; requests in the
    /// queue stand in the cost.
    pub spare: f64,
    /// How much the queue may have grown since it was reported.
    pub growth_ms: f64,
    /// Whether the prompt's tokens are not taken for the site's.
    pub aside: bool,
}

/// Weighs a site that is eligible.
pub(super) fn score(
    question: &Question<'_>,
    seat: &Seat,
    way: &Way,
    overlaps: &[Overlap],
) -> Score {
    let policy = question.local.policy;
    let prompt_tokens = prompt_tokens(question, seat);
    let load = Load::of(question, seat);
    let rtt_ms = way.path.rtt_ms;
    let upload_ms = upload_ms(question.request.body_bytes, &way.path);
    let queue_ms = load.queue_ms(policy);
    // Engines look a prompt up when its turn comes, not when it arrives.
    let wait = || duration(rtt_ms / 2.0 + upload_ms + queue_ms);
    let overlap = best_after(overlaps, wait);
    let uncached_tokens = prompt_tokens.saturating_sub(overlap.expected_tokens);
    let cost = Cost {
        rtt_ms,
        upload_ms,
        queue_ms,
        prefill_ms: f64::from(uncached_tokens) * load.ms_per_token,
    };
    let without_queue = Cost {
        queue_ms: 0.0,
        ..cost
    };
    Score {
        relay: way.relay,
        cost,
        total_ms: cost.total_ms(&policy.weights),
        fixed_ms: without_queue.total_ms(&policy.weights),
        overlap,
        prompt_tokens,
        uncached_tokens,
        load_known: load.known,
        spare: load.spare(),
        growth_ms: load.growth_ms(rtt_ms / 2.0, cost.prefill_ms),
        aside: question.is_aside(seat),
    }
}

/// The prompt's length: by the site's own card, else by any card, else by the body's size.
fn prompt_tokens(question: &Question<'_>, seat: &Seat) -> u32 {
    let request = question.request;
    let per_token = question.local.policy.bytes_per_token.max(1.0);
    question
        .length(seat)
        .or_else(|| request.chains.longest())
        .unwrap_or_else(|| whole(request.body_bytes as f64 / per_token))
}

/// What is known of a site's load of one model, with this edge's own part.
struct Load<'a> {
    told: &'a plan::Load,
    known: bool,
    ranks: f64,
    ms_per_token: f64,
    own: OwnLoad,
    gateway_age_ms: f64,
}

impl<'a> Load<'a> {
    fn of(question: &Question<'_>, seat: &'a Seat) -> Self {
        let (policy, now) = (question.local.policy, question.now);
        let told = &seat.load;
        let (engines, gateway) = (told.engines.as_ref(), told.gateway.as_ref());
        let fresh = |at| now.saturating_since(at) <= policy.load_stale_after;
        let known = engines.is_some_and(|it| it.backlog != Backlog::Unknown && fresh(it.at))
            && gateway.is_some_and(|it| fresh(it.at));
        let speed = gateway.and_then(|it| it.prefill_ms_per_token);
        Self {
            told,
            known,
            ranks: engines.map_or(1.0, |it| it.ranks),
            ms_per_token: speed
                .map_or(policy.prior_prefill_ms_per_token, f64::from)
                .clamp(PREFILL_MS_PER_TOKEN.0, PREFILL_MS_PER_TOKEN.1),
            own: own(question, seat),
            gateway_age_ms: gateway.map_or(0.0, |it| millis(now.saturating_since(it.at))),
        }
    }

    /// The wait for all queued tokens, drained by all ranks at once, or for a place, whichever
    /// is longer: prompts that wait are computed as others end.
    ///
    /// An old report is better than none: it still counts, if it says more than the prior.
    fn queue_ms(&self, policy: &Policy) -> f64 {
        let foreign = self.told.engines.as_ref();
        let foreign = foreign.map_or(0.0, |engines| tokens(engines.backlog, policy));
        let wait = |tokens: f64| tokens * self.ms_per_token / self.ranks;
        let reported = wait(self.told.relayed_tokens + foreign);
        let reported = if self.known {
            reported
        } else {
            reported.max(policy.unknown_queue_ms)
        };
        let tokens_ms = reported + wait(self.own.queued_tokens as f64);
        tokens_ms.max(self.place_ms(policy))
    }

    /// The wait until so many requests have ended that this one is computed: each place is free
    /// once in the time that a request keeps it.
    fn place_ms(&self, policy: &Policy) -> f64 {
        let Some((there, places)) = self.places() else {
            return 0.0;
        };
        if there < places {
            return 0.0;
        }
        let gateway = self.told.gateway.as_ref();
        let measured = gateway.and_then(|gateway| gateway.serving_ms);
        let serving_ms = measured
            .map_or(policy.prior_serving_ms, f64::from)
            .clamp(SERVING_MS.0, SERVING_MS.1);
        (there - places + 1.0) * serving_ms / places
    }

    /// Requests that are there, whichever way they came, and how many are computed at once.
    fn places(&self) -> Option<(f64, f64)> {
        let places = self.told.engines.as_ref()?.places?;
        let there = self.told.requests.saturating_add(self.own.requests);
        Some((there.into(), places.get().into()))
    }

    /// By what there is less of: memory or places.
    fn spare(&self) -> f64 {
        let engines = self.told.engines.as_ref();
        let kv_use = engines.and_then(|engines| engines.kv_use);
        let taken = self.places().map_or(0.0, |(there, places)| there / places);
        let used = kv_use.map_or(UNKNOWN_KV_USE, f64::from).max(taken);
        (self.ranks * (1.0 - used.clamp(0.0, 1.0))).max(LEAST_SPARE)
    }

    /// The wait that requests like this one add, if they came as the relays say.
    fn growth_ms(&self, transit_ms: f64, prefill_ms: f64) -> f64 {
        let gateway = self.told.gateway.as_ref();
        let arrivals_per_s = gateway.map_or(0.0, |gateway| f64::from(gateway.arrivals_per_s));
        let arrived = arrivals_per_s * (self.gateway_age_ms + transit_ms) / 1000.0;
        let growth = arrived * prefill_ms / self.ranks;
        if growth.is_finite() {
            growth.max(0.0)
        } else {
            0.0
        }
    }
}

/// Prompt tokens that wait in the engines past the relays, as far as that is told.
const fn tokens(backlog: Backlog, policy: &Policy) -> f64 {
    match backlog {
        Backlog::Unknown => 0.0,
        Backlog::Tokens(tokens) => tokens,
        Backlog::Requests(waiting) => waiting * policy.assumed_request_tokens,
    }
}

/// Own requests above each relay's echo, over all of the site's relays.
fn own(question: &Question<'_>, seat: &Seat) -> OwnLoad {
    let inflight = question.local.inflight;
    let mut sum = OwnLoad::default();
    for lane in &question.view.lanes()[seat.lanes()] {
        let own = inflight.above((&lane.relay, lane.hash), seat.model, lane.echo);
        sum.requests = sum.requests.saturating_add(own.requests);
        sum.queued_tokens = sum.queued_tokens.saturating_add(own.queued_tokens);
    }
    sum
}

/// Time from the first to the last byte sent: the window doubles each round trip until it
/// covers the path's rate, from then on the rate counts.
pub(super) fn upload_ms(bytes: u64, path: &Path) -> f64 {
    let (rtt_ms, rate) = (path.rtt_ms, path.bytes_per_ms);
    let wire_ms = |bytes: f64| rate.map_or(0.0, |rate| bytes / rate);
    let mut window = path.window.unwrap_or(INITIAL_WINDOW);
    let mut left = bytes as f64;
    let mut spent_ms = 0.0;
    while left > window && rate.is_none_or(|rate| window < rate * rtt_ms) {
        left -= window;
        // A window goes out within its round trip, unless the path is slower than that.
        spent_ms += rtt_ms.max(wire_ms(window));
        window *= 2.0;
    }
    spent_ms + wire_ms(left)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The longest there is, for what is no duration.
fn duration(millis: f64) -> Duration {
    Duration::try_from_secs_f64(millis / 1000.0).unwrap_or(Duration::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and takes what is no number for 0"
)]
fn whole(value: f64) -> u32 {
    value as u32
}
