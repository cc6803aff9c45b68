//! Scrapes metrics pages on an interval.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use kvgrid_core::{Instant, ModelId};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::engine::Page;
use super::join::Read;
use crate::fetch::{FetchError, Fetcher};

/// What the last round of scrapes told, from the pages that answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pages(pub(super) Vec<Read>);

impl Pages {
    /// KV blocks of all ranks per model, where a frontend told.
    pub(crate) fn kv_blocks(&self) -> BTreeMap<ModelId, u64> {
        let pages = self.0.iter();
        pages.flat_map(|(.., page)| page.kv_blocks()).collect()
    }
}

/// Reads a set of pages over and over.
pub(crate) struct Scraper {
    targets: Vec<Target>,
    interval: Duration,
    fetcher: Fetcher,
}

struct Target {
    url: Uri,
    /// Names the worker in the load it tells, unless the page does.
    worker: u64,
    failing: bool,
}

impl Scraper {
    /// A scraper of these pages.
    pub(crate) fn new(urls: Vec<Uri>, interval: Duration) -> Self {
        let target = |url: Uri| Target {
            worker: kvgrid_core::id::name_hash(&url.to_string()),
            url,
            failing: false,
        };
        Self {
            targets: urls.into_iter().map(target).collect(),
            interval,
            fetcher: Fetcher::new(),
        }
    }

    /// Scrapes until `stop`, and publishes each round.
    pub(crate) async fn run(
        mut self,
        clock: impl Fn() -> Instant,
        pages: watch::Sender<Arc<Pages>>,
        stop: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Both arms are cancel safe: a round that is cut off has published nothing.
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let Some(read) = stop.run_until_cancelled(self.round(&clock)).await else {
                return;
            };
            pages.send_replace(Arc::new(Pages(read)));
        }
    }

    async fn round(&mut self, clock: &impl Fn() -> Instant) -> Vec<Read> {
        let patience = self.interval.max(Duration::from_secs(1));
        let fetches = self
            .targets
            .iter()
            .map(|target| self.fetcher.get(target.url.clone(), patience));
        let results = futures_util::future::join_all(fetches).await;
        let mut pages = Vec::new();
        for (target, result) in self.targets.iter_mut().zip(results) {
            target.note(&result);
            if let Ok(body) = result {
                let text = String::from_utf8_lossy(&body);
                let page = Page::parse(&text);
                // Relays of one site may know a page by different addresses, and sidecars each
                // their own by the same.
                let worker = page.process.unwrap_or(target.worker);
                pages.push((worker, clock(), page));
            }
        }
        pages
    }
}

impl Target {
    /// Logs a page that stops or starts to answer, once each.
    fn note(&mut self, result: &Result<Bytes, FetchError>) {
        match result {
            Err(error) if !self.failing => {
                self.failing = true;
                warn!(url = %self.url, %error, "Load page does not answer");
            }
            Ok(_) if self.failing => {
                self.failing = false;
                info!(url = %self.url, "Load page answers again");
            }
            _ => {}
        }
    }
}
