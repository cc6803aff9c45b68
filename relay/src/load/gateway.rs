//! Counts the requests that pass through this relay.
//!
//! A [`Gateway`] is shared by all request connections. Each connection takes a
//! [`GatewaySession`], each request on it a [`Ticket`]; dropping a ticket ends the request,
//! whatever way it ended, so a count can't leak.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvgrid_core::load::GatewayLoad;
use kvgrid_core::{EdgeId, Instant, ModelId};

use super::echo::Echo;

/// Over which time arrivals are averaged.
const ARRIVAL_WINDOW: Duration = Duration::from_secs(5);

/// What one answer counts in the mean time that answers take.
const SERVING_WEIGHT: f64 = 0.1;

/// Models counted apart; an edge that names more gets them counted under one.
const MODEL_LIMIT: usize = 1024;

/// Where requests of models beyond the limit are counted.
const OTHER_MODELS: ModelId = ModelId(0);

/// What passes through this relay. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gateway {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    models: BTreeMap<ModelId, ModelCount>,
    /// The newest connection of each edge: its numbers are the ones that count.
    edges: BTreeMap<EdgeId, EdgeEcho>,
    next_session: u64,
}

#[derive(Debug)]
struct EdgeEcho {
    session: u64,
    echo: Echo,
}

#[derive(Debug, Default)]
struct ModelCount {
    in_flight: u32,
    queued: Prompt,
    arrivals: Arrivals,
    serving: Serving,
}

/// Tokens of one prompt, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// All of them.
    pub(crate) tokens: u64,
    /// Those that are expected to need prefill.
    pub(crate) uncached: u64,
}

impl Prompt {
    const fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            uncached: self.uncached.saturating_add(other.uncached),
        }
    }

    const fn minus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            uncached: self.uncached.saturating_sub(other.uncached),
        }
    }
}

/// How long answers take from their first byte to their last, in the mean of late ones.
#[derive(Debug, Default)]
struct Serving {
    mean_ms: Option<f64>,
}

impl Serving {
    fn count(&mut self, took: Duration) {
        let took_ms = took.as_secs_f64() * 1000.0;
        self.mean_ms = Some(match self.mean_ms {
            None => took_ms,
            Some(mean) => mean + (took_ms - mean) * SERVING_WEIGHT,
        });
    }

    /// To whole milliseconds, which is as much as it is worth.
    fn rounded(&self) -> Option<f32> {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a time needs no more digits"
        )]
        self.mean_ms.map(|mean| mean.round() as f32)
    }
}

/// Arrivals a second, exponentially averaged.
#[derive(Debug, Default)]
struct Arrivals {
    per_s: f64,
    at: Instant,
}

impl Arrivals {
    fn at(&self, now: Instant) -> f64 {
        let passed = now.saturating_since(self.at).as_secs_f64();
        self.per_s * (-passed / ARRIVAL_WINDOW.as_secs_f64()).exp()
    }

    /// In hundredths, so that a rate that fades away ends instead of changing for ever.
    fn rounded(&self, now: Instant) -> f64 {
        (self.at(now) * 100.0).round() / 100.0
    }

    fn count(&mut self, now: Instant) {
        self.per_s = self.at(now) + 1.0 / ARRIVAL_WINDOW.as_secs_f64();
        self.at = now;
    }
}

impl Gateway {
    /// Registers a request connection of `edge`. The newest one's numbers are echoed.
    pub(crate) fn connect(&self, edge: &EdgeId) -> GatewaySession {
        let mut state = self.lock();
        let session = state.next_session;
        state.next_session += 1;
        let entry = EdgeEcho {
            session,
            echo: Echo::default(),
        };
        state.edges.insert(edge.clone(), entry);
        GatewaySession {
            gateway: self.clone(),
            edge: edge.clone(),
            session,
        }
    }

    /// The load per model, by model id.
    pub(crate) fn load(&self, now: Instant) -> Vec<(ModelId, GatewayLoad)> {
        let state = self.lock();
        let load = |(model, count): (&ModelId, &ModelCount)| (*model, count.load(now));
        state.models.iter().map(load).collect()
    }

    /// Up to which number the requests of `edge` are in what [`Gateway::load`] says now.
    pub(crate) fn echo(&self, edge: &EdgeId, now: Instant) -> u64 {
        let mut state = self.lock();
        let entry = state.edges.get_mut(edge);
        entry.map_or(0, |entry| entry.echo.value(now))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The counts are whole after every statement, so a panic elsewhere can't spoil them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelCount {
    fn load(&self, now: Instant) -> GatewayLoad {
        GatewayLoad {
            in_flight: self.in_flight,
            queued_tokens: self.queued.uncached,
            queued_prompt_tokens: self.queued.tokens,
            #[allow(
                clippy::cast_possible_truncation,
                reason = "a rate needs no more digits"
            )]
            arrivals_per_s: self.arrivals.rounded(now) as f32,
            prefill_ms_per_token: None,
            serving_ms: self.serving.rounded(),
        }
    }
}

/// One request connection of an edge. Its end forgets the edge's numbers, unless a newer
/// connection has taken over.
#[derive(Debug)]
pub(crate) struct GatewaySession {
    gateway: Gateway,
    edge: EdgeId,
    session: u64,
}

impl GatewaySession {
    /// Counts a request in.
    pub(crate) fn begin(
        &self,
        number: u64,
        model: ModelId,
        prompt: Prompt,
        now: Instant,
    ) -> Ticket {
        let mut state = self.gateway.lock();
        if let Some(entry) = state.edges.get_mut(&self.edge)
            && entry.session == self.session
        {
            entry.echo.arrived(number, now);
        }
        let known = state.models.contains_key(&model) || state.models.len() < MODEL_LIMIT;
        let model = if known { model } else { OTHER_MODELS };
        let count = state.models.entry(model).or_default();
        count.in_flight += 1;
        count.queued = count.queued.plus(prompt);
        count.arrivals.count(now);
        drop(state);
        Ticket {
            gateway: self.gateway.clone(),
            model,
            queued: prompt,
            served: None,
        }
    }
}

impl Drop for GatewaySession {
    fn drop(&mut self) {
        let mut state = self.gateway.lock();
        if state.edges.get(&self.edge).map(|entry| entry.session) == Some(self.session) {
            state.edges.remove(&self.edge);
        }
    }
}

/// A request that is under way; dropping it counts it out.
#[derive(Debug)]
pub(crate) struct Ticket {
    gateway: Gateway,
    model: ModelId,
    queued: Prompt,
    /// When the first and the last byte came of an answer that is sent as it is computed.
    served: Option<(Instant, Instant)>,
}

impl Ticket {
    /// The first byte of the answer came: its prompt waits no longer.
    pub(crate) fn first_byte(&mut self) {
        let prompt = std::mem::take(&mut self.queued);
        self.update(|count| count.queued = count.queued.minus(prompt));
    }

    /// A byte of an answer came that is sent as it is computed, the first one or another.
    pub(crate) fn streamed(&mut self, now: Instant) {
        let (first, _) = self.served.unwrap_or((now, now));
        self.served = Some((first, now));
    }

    fn update(&self, change: impl FnOnce(&mut ModelCount)) {
        if let Some(count) = self.gateway.lock().models.get_mut(&self.model) {
            change(count);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.first_byte();
        let served = self.served.take();
        self.update(|count| {
            count.in_flight = count.in_flight.saturating_sub(1);
            if let Some((first, last)) = served {
                count.serving.count(last.saturating_since(first));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelId = ModelId(7);

    fn edge() -> EdgeId {
        EdgeId::new("eu-1").unwrap()
    }

    const fn prompt(uncached: u64) -> Prompt {
        Prompt {
            tokens: 1000,
            uncached,
        }
    }

    fn only(gateway: &Gateway) -> GatewayLoad {
        let load = gateway.load(Instant::ZERO);
        assert_eq!(load.len(), 1);
        load[0].1
    }

    #[test]
    fn tokens_wait_until_the_first_byte_and_a_request_counts_until_its_end() {
        let gateway = Gateway::default();
        let session = gateway.connect(&edge());
        let mut ticket = session.begin(1, MODEL, prompt(500), Instant::ZERO);
        assert_eq!(
            (only(&gateway).in_flight, only(&gateway).queued_tokens),
            (1, 500)
        );

        ticket.first_byte();
        assert_eq!(
            (only(&gateway).in_flight, only(&gateway).queued_tokens),
            (1, 0)
        );

        drop(ticket);
        assert_eq!(
            (only(&gateway).in_flight, only(&gateway).queued_tokens),
            (0, 0)
        );
    }

    #[test]
    fn whole_prompts_are_counted_beside_what_is_not_cached_of_them() {
        let gateway = Gateway::default();
        let session = gateway.connect(&edge());
        let mut ticket = session.begin(1, MODEL, prompt(300), Instant::ZERO);
        let queued = |gateway| {
            let load = only(gateway);
            (load.queued_tokens, load.queued_prompt_tokens)
        };

        let waiting = queued(&gateway);
        ticket.first_byte();

        assert_eq!((waiting, queued(&gateway)), ((300, 1000), (0, 0)));
    }

    #[test]
    fn the_time_of_serving_is_the_mean_of_answers_that_came_as_they_were_computed() {
        let gateway = Gateway::default();
        let session = gateway.connect(&edge());
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let answer = |from, to| {
            let mut ticket = session.begin(1, MODEL, prompt(0), at(0));
            ticket.streamed(at(from));
            ticket.streamed(at(to));
        };

        drop(session.begin(1, MODEL, prompt(0), at(0)));
        assert_eq!(only(&gateway).serving_ms, None, "nothing is known of it");
        answer(100, 900);
        assert_eq!(only(&gateway).serving_ms, Some(800.0));
        answer(100, 1900);
        assert_eq!(only(&gateway).serving_ms, Some(900.0));
    }

    #[test]
    fn a_request_that_ends_before_its_first_byte_leaves_no_tokens_behind() {
        let gateway = Gateway::default();
        let session = gateway.connect(&edge());

        drop(session.begin(1, MODEL, prompt(500), Instant::ZERO));

        assert_eq!(only(&gateway).queued_tokens, 0);
    }

    #[test]
    fn a_restarted_edge_counts_from_the_start_though_its_old_connection_lingers() {
        let gateway = Gateway::default();
        let old = gateway.connect(&edge());
        drop(old.begin(1000, MODEL, prompt(0), Instant::ZERO));
        assert_eq!(gateway.echo(&edge(), Instant::ZERO), 1000);

        let new = gateway.connect(&edge());
        drop(new.begin(1, MODEL, prompt(0), Instant::ZERO));
        drop(old);

        assert_eq!(gateway.echo(&edge(), Instant::ZERO), 1);
    }

    #[test]
    fn arrivals_settle_at_their_rate_and_fade() {
        let gateway = Gateway::default();
        let session = gateway.connect(&edge());
        let mut now = Instant::ZERO;
        for number in 0..3000 {
            now += Duration::from_millis(10);
            drop(session.begin(number, MODEL, prompt(0), now));
        }

        let rate = gateway.load(now)[0].1.arrivals_per_s;
        assert!((rate - 100.0).abs() < 2.0, "{rate}");
        let later = gateway.load(now + Duration::from_secs(60))[0]
            .1
            .arrivals_per_s;
        assert!(later < 0.01, "{later}");
    }

    #[test]
    fn models_beyond_the_limit_share_a_count() {
        let gateway = Gateway::default();
        let session = gateway.connect(&edge());
        let tickets: Vec<_> = (0..2000)
            .map(|id| session.begin(id, ModelId(id + 1), prompt(0), Instant::ZERO))
            .collect();

        assert_eq!(gateway.load(Instant::ZERO).len(), MODEL_LIMIT + 1);
        assert_eq!(gateway.load(Instant::ZERO)[0].1.in_flight, 976);
        drop(tickets);
    }
}
