//! What is expected of an answer, and what it says.

use std::sync::Arc;

use super::kind::Kind;
use crate::id::{ModelId, PoolId, SiteId};
use crate::view::CardDigest;

/// What is expected of a site's answer to a request, as of the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The site.
    pub site: SiteId,
    /// The model.
    pub model: ModelId,
    /// What kind of request it is.
    pub kind: Kind,
    /// The card by which it was tokenised.
    pub card: CardDigest,
    /// The prompt's length, or that of its part before the first medium.
    pub prompt_tokens: u32,
    /// Whether that is all of it.
    pub complete: bool,
    /// The source whose pools said the overlap; `None` if the site has no pools.
    pub source: Option<Arc<str>>,
    /// Tokens that need no prefill.
    pub overlap_tokens: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Names what the prompt begins with; `None` if it has less than two blocks.
    pub beginning: Option<u64>,
    /// What each of the model's pools at the site that can be searched holds of it, in tokens.
    pub pools: Vec<(PoolId, u32)>,
}

/// What a site says of a prompt. What it does not say is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Tokens of it that were cached.
    pub cached_tokens: Option<u32>,
    /// Whether its token ids are those expected, where the site was asked for them: prompts can
    /// be other ones and as long.
    pub same_ids: Option<bool>,
}

impl Forecast {
    /// Whether the prompt is the same at the site, as far as that says; if it says no ids, whether
    /// it is as long. Of one with media only the beginning is known here, which must be shorter.
    pub(super) fn is_same(&self, usage: Usage) -> Option<bool> {
        let as_long = |told: u32| match self.complete {
            true => self.prompt_tokens == told,
            false => self.prompt_tokens < told,
        };
        usage.same_ids.or_else(|| usage.prompt_tokens.map(as_long))
    }
}
