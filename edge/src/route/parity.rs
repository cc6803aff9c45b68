//! What answers say of prompts, and what decisions have to know of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use kvgrid_core::id::{ModelId, SiteId};
use kvgrid_core::parity::{
    Aside, Change, Forecast, Kind, Missed, Noted, Parity, ParityConfig, Usage,
};
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

    fn note(&self, forecast: &Forecast, usage: Usage, view: &GridView, now: Instant) -> Noted {
        let mut parity = self.lock();
        let noted = parity.note(forecast, usage, view, now);
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
        let noted = self
            .0
            .parity
            .note(forecast, usage, &self.view(), self.now());
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
            Change::Unmatched(pool, missed) => self.warn_of(forecast, *pool, *missed, model),
            Change::Matched(pool) => info!(%site, model, pool = pool.0, "Pool matches"),
            Change::Forgotten => info!("Too many kinds of request are set aside: one is forgotten"),
            Change::OtherCard => info!(
                %site, model, %kind,
                "The site has another card: what was set aside by the last one is unknown again"
            ),
        }
    }

    fn warn_of(&self, forecast: &Forecast, pool: PoolId, missed: Missed, model: &str) {
        let view = self.view();
        let site = view.site(&forecast.site);
        let known = site.and_then(|site| site.pools.iter().find(|known| known.id == pool));
        let Some(known) = known else {
            return;
        };
        let why = unmatched(known, missed);
        let (site, source) = (&forecast.site, &known.source);
        warn!(%site, model, source = &**source, pool = pool.0, why, "Pool never matches");
    }
}

#[cfg(test)]
mod tests {
    use kvgrid_core::block::HashFormat;
    use kvgrid_core::id::ModelName;
    use kvgrid_core::label::Labels;
    use kvgrid_core::load::SiteLoad;
    use kvgrid_core::view::{CardDigest, CardInfo, ModelView, SiteView};

    use super::*;

    const A: CardDigest = CardDigest([1; 32]);
    const B: CardDigest = CardDigest([2; 32]);

    fn model() -> ModelName {
        ModelName::new("m").unwrap()
    }

    fn with_card(digest: CardDigest) -> GridView {
        let card = CardInfo {
            digest,
            block_size: 16.try_into().unwrap(),
            format: HashFormat::Standard,
            capacity_blocks: None,
            context_length: None,
            usable: true,
        };
        GridView::new(vec![SiteView {
            site: SiteId::new("fra").unwrap(),
            region: None,
            labels: Labels::new(),
            alive: true,
            relays: Vec::new(),
            models: vec![ModelView {
                aliases: Vec::new(),
                apart: Vec::new(),
                id: model().id(),
                name: model(),
                ready: true,
                card: Some(card),
            }],
            known_by: None,
            pools: Vec::new(),
            load: SiteLoad::default(),
        }])
    }

    fn forecast(card: CardDigest) -> Forecast {
        Forecast {
            site: SiteId::new("fra").unwrap(),
            model: model().id(),
            kind: Kind::PLAIN,
            card,
            prompt_tokens: 100,
            complete: true,
            source: None,
            overlap_tokens: 0,
            block_size: 16,
            beginning: None,
            pools: Vec::new(),
        }
    }

    fn told(prompt_tokens: u32) -> Usage {
        Usage {
            prompt_tokens: Some(prompt_tokens),
            ..Usage::default()
        }
    }

    fn is_aside(board: &ParityBoard, view: &GridView) -> bool {
        !board.aside(view, model().id(), Kind::PLAIN).is_empty()
    }

    #[test]
    fn what_a_card_was_set_aside_for_is_gone_when_the_site_has_it_again() {
        let board = ParityBoard::default();
        for _ in 0..3 {
            board.note(&forecast(A), told(107), &with_card(A), Instant::ZERO);
        }
        assert!(is_aside(&board, &with_card(A)));

        board.note(&forecast(B), told(100), &with_card(B), Instant::ZERO);

        assert!(!is_aside(&board, &with_card(B)));
        assert!(!is_aside(&board, &with_card(A)));
    }

    #[test]
    fn an_answer_by_a_card_that_is_gone_undoes_nothing() {
        let board = ParityBoard::default();
        for _ in 0..3 {
            board.note(&forecast(B), told(107), &with_card(B), Instant::ZERO);
        }

        let late = board.note(&forecast(A), told(100), &with_card(B), Instant::ZERO);

        assert_eq!(late, Noted::default());
        assert!(is_aside(&board, &with_card(B)));
    }
}
