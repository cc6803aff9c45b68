//! The site's load, as this relay sees it: what engines say and what passes through.
//!
//! Engines' pages are scraped on an interval, Dynamo's workers tell by themselves, and requests
//! are counted as they come and go. All of it joined is a [`LoadSample`], published when it
//! changes, at most every 100 ms. The echo in
//! it is left 0: it differs per edge, and each edge's session fills it in from the [`Gateway`].

use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::load::{EngineLoad, LoadSample};
use kvgrid_core::{Instant, ModelId};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::pools::PoolReport;
use crate::sources::dynamo_events::Usage;
pub(crate) use gateway::{Gateway, GatewaySession, Prompt, Ticket};
use join::Known;
pub(crate) use scrape::{Pages, Scraper};

mod echo;
mod engine;
mod exposition;
mod gateway;
mod join;
mod names;
mod scrape;

/// How often a changed load is told.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// Who tells how busy the engines are.
pub(crate) struct Tellers {
    /// Metrics pages.
    pub(crate) pages: watch::Receiver<Arc<Pages>>,
    /// What workers say of themselves, by their models.
    pub(crate) usage: Vec<(ModelId, watch::Receiver<Usage>)>,
    /// What they hold.
    pub(crate) pools: watch::Receiver<Vec<PoolReport>>,
    /// Requests that each rank computes at once, where nobody tells.
    pub(crate) rank_requests: Option<u32>,
}

impl Tellers {
    fn engines(&self, now: Instant) -> Vec<EngineLoad> {
        // Large sites tell of thousands of ranks, and this is done ten times a second.
        let told = self.usage.iter();
        let told: Vec<_> = told
            .map(|(model, usage)| (*model, usage.borrow()))
            .collect();
        let usage: Vec<_> = told
            .iter()
            .map(|(model, usage)| (*model, &**usage))
            .collect();
        let (pages, pools) = (self.pages.borrow(), self.pools.borrow());
        let known = Known {
            pages: &pages.0,
            usage: &usage,
            pools: &pools,
            rank_requests: self.rank_requests,
        };
        known.engines(now)
    }
}

/// Joins what is told and what is counted into samples until `stop`.
pub(crate) async fn publish_samples(
    gateway: Gateway,
    tellers: Tellers,
    samples: watch::Sender<LoadSample>,
    clock: impl Fn() -> Instant,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(PUBLISH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let now = clock();
        let sample = LoadSample {
            at: now,
            engines: tellers.engines(now),
            gateway: gateway.load(now),
            echo: 0,
        };
        samples.send_if_modified(|last| {
            let changed = last.engines != sample.engines || last.gateway != sample.gateway;
            *last = sample;
            changed
        });
    }
}

/// For shares, which need no more digits than that.
fn approximate(count: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let count = count as f64;
    count
}
