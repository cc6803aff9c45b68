//! What is known of one kind of request.

use std::sync::Arc;

use super::agreement::{Accord, Agreement};
use super::forecast::Forecast;
use crate::time::Instant;
use crate::view::CardDigest;

/// Sources of one site and model that are told apart; what comes by a further one is not counted.
const SOURCES: usize = 8;

/// What is known of one kind of request for a model at a site.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The card that all of it is by; another one starts anew.
    pub card: CardDigest,
    /// Whether prompts are as long as expected.
    pub tokens: Agreement,
    /// The last two lengths that were compared: expected, told.
    pub last: Option<(u32, u32)>,
    /// Whether the token ids that the site told last were those expected, if it ever told some.
    pub same_ids: Option<bool>,
    /// Whether as much was cached as expected, by source.
    pub caches: Vec<Cache>,
    /// When an answer last told of it.
    pub at: Instant,
}

/// How overlap compares with what was cached, for one source's pools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cache {
    /// The source; `None` where the site has no pools.
    pub source: Option<Arc<str>>,
    /// Whether the two are the same, but for a block; without pools, whether no more was expected.
    pub cached: Agreement,
    /// Tokens that were expected to be cached, over all answers.
    pub overlap_tokens: u64,
    /// Tokens that were, over the same answers.
    pub cached_tokens: u64,
}

impl Entry {
    pub(super) fn new(card: CardDigest) -> Self {
        Self {
            card,
            tokens: Agreement::default(),
            last: None,
            same_ids: None,
            caches: Vec::new(),
            at: Instant::ZERO,
        }
    }

    /// Whether requests of this kind are routed without tokens.
    pub fn is_aside(&self) -> bool {
        self.tokens.accord() == Accord::Differs
    }

    /// Whether prompts of this kind may be the same there, as far as answers tell.
    pub(super) fn is_believed(&self) -> bool {
        !self.is_aside() && self.same_ids != Some(false)
    }

    pub(super) fn cache(&mut self, source: &Option<Arc<str>>) -> Option<&mut Cache> {
        let place = self.caches.iter().position(|known| known.source == *source);
        let place = match place {
            Some(place) => place,
            None if self.caches.len() >= SOURCES => return None,
            None => {
                self.caches.push(Cache {
                    source: source.clone(),
                    ..Cache::default()
                });
                self.caches.len() - 1
            }
        };
        self.caches.get_mut(place)
    }
}

impl Cache {
    /// Counts an answer, and says whether as much was cached as expected.
    pub(super) fn add(&mut self, forecast: &Forecast, told: u32) -> bool {
        self.overlap_tokens += u64::from(forecast.overlap_tokens);
        self.cached_tokens += u64::from(told);
        // An engine may count the last block or not.
        let (overlap, block) = (forecast.overlap_tokens, forecast.block_size);
        match forecast.source {
            Some(_) => overlap.abs_diff(told) <= block,
            // What was sent there is never all that is cached: answers are, too.
            None => overlap <= told.saturating_add(block),
        }
    }
}
