//! The site's load, as this relay sees it: what engines say and what passes through.
//!
//! Engines' pages are scraped on an interval; requests are counted as they come and go. Both
//! together are a [`LoadSample`], published when it changes, at most every 100 ms. The echo in
//! it is left 0: it differs per edge, and each edge's session fills it in from the [`Gateway`].

use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::Instant;
use kvgrid_core::load::LoadSample;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

pub(crate) use gateway::{Gateway, GatewaySession, Ticket};
pub(crate) use scrape::{EngineReport, Scraper};

mod echo;
mod engine;
mod exposition;
mod gateway;
mod names;
mod scrape;

/// How often a changed load is told.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// Joins scrapes and counts into samples until `stop`.
pub(crate) async fn publish_samples(
    gateway: Gateway,
    engines: watch::Receiver<Arc<EngineReport>>,
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
            engines: engines.borrow().engines.clone(),
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
