//! Scrapes metrics pages on an interval.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use kvgrid_core::load::EngineLoad;
use kvgrid_core::{Instant, ModelId};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::engine::{Page, merge};
use crate::fetch::{FetchError, Fetcher};
use crate::sources::dynamo_events::Usage;

/// What the last round of scrapes told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EngineReport {
    /// Load per rank, from the pages that answered.
    pub(crate) engines: Vec<EngineLoad>,
    /// KV blocks per model, where a frontend told.
    pub(crate) kv_blocks: BTreeMap<ModelId, u64>,
}

/// Reads a set of pages over and over.
pub(crate) struct Scraper {
    targets: Vec<Target>,
    interval: Duration,
    fetcher: Fetcher,
    usage: Vec<(ModelId, watch::Receiver<Usage>)>,
}

struct Target {
    url: Uri,
    /// Names the worker in the load it tells.
    worker: u64,
    failing: bool,
}

impl Scraper {
    /// A scraper of these pages. `usage` is what models' workers say themselves.
    pub(crate) fn new(
        urls: Vec<Uri>,
        interval: Duration,
        usage: Vec<(ModelId, watch::Receiver<Usage>)>,
    ) -> Self {
        let target = |url: Uri| Target {
            worker: kvgrid_core::id::name_hash(&url.to_string()),
            url,
            failing: false,
        };
        Self {
            targets: urls.into_iter().map(target).collect(),
            interval,
            fetcher: Fetcher::new(),
            usage,
        }
    }

    /// Scrapes until `stop`, and publishes each round.
    pub(crate) async fn run(
        mut self,
        clock: impl Fn() -> Instant,
        report: watch::Sender<Arc<EngineReport>>,
        stop: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Both arms are cancel safe: a round that is cut off has published nothing.
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let Some(pages) = stop.run_until_cancelled(self.round(&clock)).await else {
                return;
            };
            report.send_replace(Arc::new(summarise(&pages, &self.shares())));
        }
    }

    fn shares(&self) -> BTreeMap<ModelId, f32> {
        let share = |(model, usage): &(ModelId, watch::Receiver<Usage>)| {
            Some((*model, usage.borrow().share()?))
        };
        self.usage.iter().filter_map(share).collect()
    }

    async fn round(&mut self, clock: &impl Fn() -> Instant) -> Vec<(u64, Instant, Page)> {
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
                pages.push((target.worker, clock(), Page::parse(&text)));
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

fn summarise(pages: &[(u64, Instant, Page)], usage: &BTreeMap<ModelId, f32>) -> EngineReport {
    let engines = merge(pages, usage);
    let mut kv_blocks = BTreeMap::new();
    for (_, _, page) in pages {
        kv_blocks.extend(page.kv_blocks());
    }
    EngineReport { engines, kv_blocks }
}
