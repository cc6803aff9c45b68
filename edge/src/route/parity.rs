//! What answers say of prompts, and what decisions have to know of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use kvgrid_core::id::{ModelId, SiteId};
use kvgrid_core::parity::{Aside, Change, Forecast, Kind, Parity, ParityConfig, Usage};
use kvgrid_core::view::GridView;
use kvgrid_core::{Instant, PoolId};
use tracing::{info, warn};

use super::Router;
use super::words::unmatched;

/// All that is known of parity. Decisions read what is set aside and never wait; the lock is
/// taken when an answer is over, and for operators.
#[derive(Debug)]
pub(super) struct ParityBoard {
    parity: Mutex<Parity>,
    aside: ArcSwap<Aside>,
}

impl Default for ParityBoard {
    fn default() -> Self {
        Self {
            parity: Mutex::new(Parity::new(ParityConfig::default())),
            aside: ArcSwap::default(),
        }
    }
}

impl ParityBoard {
    /// The sites at which this kind of request is routed without tokens.
    pub(super) fn aside(&self, view: &GridView, model: ModelId, kind: Kind) -> Vec<SiteId> {
        self.aside.load().sites(view, model, kind)
    }

    /// Looks at what is known.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Parity) -> T) -> T {
        look(&self.lock())
    }

    fn note(&self, forecast: &Forecast, usage: Usage, now: Instant) -> kvgrid_core::parity::Noted {
        let mut parity = self.lock();
        let noted = parity.note(forecast, usage, now);
        if !noted.changes.is_empty() {
            // Still under the lock, so that snapshots come in the order of the changes.
            self.aside.store(Arc::new(parity.aside()));
        }
        noted
    }

    fn lock(&self) -> MutexGuard<'_, Parity> {
        // Counts are whole after each step, so a panic elsewhere can't spoil them.
        self.parity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Router {
    /// A site's answer to a request says this of its prompt.
    pub(super) fn note_usage(&self, forecast: &Forecast, usage: Usage) {
        let noted = self.0.parity.note(forecast, usage, self.now());
        self.0.metrics.compared(forecast, usage, &noted);
        for change in noted.changes {
            self.tell(forecast, usage, &change);
        }
    }

    fn tell(&self, forecast: &Forecast, usage: Usage, change: &Change) {
        let Forecast { site, kind, .. } = forecast;
        let view = self.view();
        let known = view.site(site).and_then(|site| site.model(forecast.model));
        let model = known.map_or("", |model| model.name.as_str());
        match change {
            Change::SetAside => warn!(
                %site,
                model,
                %kind,
                expected = forecast.prompt_tokens,
                told = usage.prompt_tokens,
                "Prompts of this kind have other tokens at the site: routed without them"
            ),
            Change::Back => info!(
                %site, model, %kind,
                "Prompts of this kind have the tokens expected again: routed by them"
            ),
            Change::CacheDiffers => warn!(
                %site,
                model,
                %kind,
                source = forecast.source.as_deref(),
                overlap = forecast.overlap_tokens,
                cached = usage.cached_tokens,
                "What the site has cached is not what was expected, and that lasts"
            ),
            Change::CacheAgrees => info!(
                %site, model, %kind,
                "What the site has cached is what was expected again"
            ),
            Change::Unmatched(pool, requests) => self.warn_of(forecast, *pool, *requests, model),
            Change::Matched(pool) => info!(%site, model, pool = pool.0, "Pool matches"),
            Change::Forgotten => info!("Too many kinds of request are set aside: one is forgotten"),
        }
    }

    fn warn_of(&self, forecast: &Forecast, pool: PoolId, requests: u32, model: &str) {
        let view = self.view();
        let site = view.site(&forecast.site);
        let known = site.and_then(|site| site.pools.iter().find(|known| known.id == pool));
        let Some(known) = known else {
            return;
        };
        let why = unmatched(known, requests);
        let (site, source) = (&forecast.site, &known.source);
        warn!(%site, model, source = &**source, pool = pool.0, why, "Pool never matches");
    }
}
