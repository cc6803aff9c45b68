//! How much of a prompt each site has cached.
//!
//! Pools whose prompt, block size, format and naming are the same share one chain, so they are
//! searched together, in lock step, by [`depths`].

use core::time::Duration;

use crate::block::ChainHash;
use crate::eviction::survival;
use crate::filter::{Target, depths};
use crate::id::{ModelId, PoolId};
use crate::replication::ReplicaState;
use crate::time::Instant;
use crate::view::{GridView, PoolView, SiteView};

use super::chains::{Chains, Kind};
use super::policy::Policy;
use super::{Local, RouteRequest};

/// The best that a site's pools offer a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overlap {
    /// The pool that offers it, even if that is nothing; `None` where no pool is known.
    pub pool: Option<PoolId>,
    /// Leading blocks it holds.
    pub depth: u32,
    /// Tokens of them that need no prefill.
    pub tokens: u32,
    /// Tokens that it should hold by what was sent there, if these are more; else 0.
    pub predicted: u32,
    /// All of these, discounted by tier and by what is evicted until they are needed.
    pub expected_tokens: u32,
    /// At what age the pool's site evicts what nobody uses, where that is known, and where
    /// nothing was just sent that uses it.
    pub eviction_age: Option<Duration>,
    /// Whether the pool's replica is stale.
    pub stale: bool,
}

impl Overlap {
    /// The same for a request that waits so long before its prompt is looked up.
    fn after(self, wait: Duration) -> Self {
        let Some(age) = self.eviction_age else {
            return self;
        };
        Self {
            expected_tokens: share_of(self.expected_tokens, survival(age, wait)),
            ..self
        }
    }
}

/// Tokens that need no prefill: whole blocks, and never the prompt's last token, which an
/// engine always computes.
pub fn overlap_tokens(depth: u32, prompt_tokens: u32, block_size: u32) -> u32 {
    let block_size = block_size.max(1);
    let reusable = prompt_tokens.saturating_sub(1) / block_size;
    depth.min(reusable) * block_size
}

/// What sites' pools offer a prompt.
pub(super) struct Overlaps {
    all: Vec<Overlap>,
    /// Where each site's end, in the order of the view's.
    ends: Vec<usize>,
}

impl Overlaps {
    /// Each site's, one at least.
    pub(super) fn of_sites(&self) -> impl Iterator<Item = &[Overlap]> {
        let starts = core::iter::once(0).chain(self.ends.iter().copied());
        let sites = starts.zip(&self.ends);
        sites.map(|(start, end)| &self.all[start..*end])
    }
}

/// The best of a site's pools for a request that waits so long before its prompt is looked up.
pub(super) fn best_after(overlaps: &[Overlap], wait: Duration) -> Overlap {
    let later = overlaps.iter().map(|overlap| overlap.after(wait));
    later.fold(Overlap::default(), |best, overlap| {
        match best.pool.is_none() || overlap.expected_tokens > best.expected_tokens {
            true => overlap,
            false => best,
        }
    })
}

/// What each site offers.
pub(super) fn overlaps(
    view: &GridView,
    request: &RouteRequest<'_>,
    local: &Local<'_>,
    now: Instant,
) -> Overlaps {
    let searches = searches(view, request);
    let found = search(&searches);
    let mut found = searches.iter().zip(found).peekable();
    let mut overlaps = Overlaps {
        all: Vec::with_capacity(view.sites().len()),
        ends: Vec::with_capacity(view.sites().len()),
    };
    for (place, site) in view.sites().iter().enumerate() {
        let start = overlaps.all.len();
        while let Some((search, depth)) = found.next_if(|(search, _)| search.site == place) {
            // Of a pool that was not received yet nothing is known.
            let known = depth.map(|depth| search.overlap(depth, local.policy, now));
            overlaps.all.extend(known);
        }
        if overlaps.all.len() == start {
            overlaps.all.push(Overlap::default());
        }
        if !request.is_aside(&site.site) {
            expect_sent(site, &mut overlaps.all[start..], request, local);
        }
        overlaps.ends.push(overlaps.all.len());
    }
    overlaps
}

/// Counts in what was sent to a site beyond what the best of its pools holds.
fn expect_sent(
    site: &SiteView,
    overlaps: &mut [Overlap],
    request: &RouteRequest<'_>,
    local: &Local<'_>,
) {
    let model = request.model.id();
    let sent = Sent::of(site, model, request.chains);
    let best = overlaps.iter_mut().max_by_key(|it| it.expected_tokens);
    let (Some(predicted), Some(sent), Some(best)) = (local.predicted, sent, best) else {
        return;
    };
    let place = predicted.place(&site.site, site.model_id(model));
    let depth = predicted.extend(&place, sent.chain, best.tokens / sent.block_size);
    let tokens = overlap_tokens(depth, sent.prompt_tokens, sent.block_size);
    if tokens > best.tokens {
        best.predicted = tokens;
        // What waits there before this request keeps all of it in use.
        best.eviction_age = None;
        best.expected_tokens += tokens - best.tokens;
    }
}

/// What is sent to a site with a prompt beyond what its pools hold already; of a site without
/// pools all of it, again and again, since nothing else tells that it is still there.
pub fn sent_beyond<'a>(
    site: &SiteView,
    model: ModelId,
    chains: &'a Chains,
    overlap_tokens: u32,
) -> &'a [ChainHash] {
    let Some(sent) = Sent::of(site, model, chains) else {
        return &[];
    };
    let known = match site.has_pool(model) {
        true => (overlap_tokens / sent.block_size) as usize,
        false => 0,
    };
    sent.chain.get(known..).unwrap_or(&[])
}

/// A prompt in the blocks of a site.
struct Sent<'a> {
    chain: &'a [ChainHash],
    block_size: u32,
    prompt_tokens: u32,
}

impl<'a> Sent<'a> {
    /// In those of its pools, else of its card.
    fn of(site: &SiteView, model: ModelId, chains: &'a Chains) -> Option<Self> {
        let card = site.model(model).and_then(|model| model.card.as_ref())?;
        let pool = site.pools_of(model).next();
        let (block_size, format) = match pool {
            Some(pool) => (pool.block_size, pool.format),
            None => (card.block_size, card.format),
        };
        Some(Self {
            chain: chains.chain(Some(&card.digest), Kind::hashed(block_size, format))?,
            block_size: block_size.get(),
            prompt_tokens: chains.prompt_tokens(Some(&card.digest))?,
        })
    }
}

/// One pool that is to be searched for one chain.
struct Search<'a> {
    site: usize,
    pool: &'a PoolView,
    prompt_tokens: u32,
    chain: &'a [ChainHash],
}

fn searches<'a>(view: &'a GridView, request: &RouteRequest<'a>) -> Vec<Search<'a>> {
    let (model, chains) = (request.model.id(), request.chains);
    let sites = view.sites().iter().enumerate();
    sites
        .filter(|(_, site)| !request.is_aside(&site.site))
        .flat_map(|(place, site)| searches_at((place, site), model, chains))
        .collect()
}

fn searches_at<'a>(
    (place, site): (usize, &'a SiteView),
    model: ModelId,
    chains: &'a Chains,
) -> impl Iterator<Item = Search<'a>> {
    let card = site.model(model).and_then(|model| model.card.as_ref());
    let card = card.map(|card| &card.digest);
    site.pools_of(model).filter_map(move |pool| {
        Some(Search {
            site: place,
            pool,
            prompt_tokens: chains.prompt_tokens(card)?,
            chain: chains.chain(card, Kind::of(pool))?,
        })
    })
}

/// What one site's pools hold of a prompt, each for itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The prompt's length by the site's card.
    pub prompt_tokens: u32,
    /// Tokens of a block, by the first pool, else by the card.
    pub block_size: u32,
    /// Names what the prompt begins with; `None` if it has less than two blocks.
    pub beginning: Option<u64>,
    /// Tokens that each pool of the model holds, whatever the policy credits it with; pools of
    /// which nothing has come yet are left out.
    pub pools: Vec<(PoolId, u32)>,
}

/// Searches one site's pools; `None` if it has no card, or the prompt no tokens by it.
pub fn held(site: &SiteView, model: ModelId, chains: &Chains) -> Option<Held> {
    let card = site.model(model).and_then(|model| model.card.as_ref())?;
    let prompt_tokens = chains.prompt_tokens(Some(&card.digest))?;
    let searches: Vec<Search<'_>> = searches_at((0, site), model, chains)
        .filter(|search| search.target().is_some())
        .collect();
    let pools = searches
        .iter()
        .zip(search(&searches))
        .filter_map(|(search, depth)| {
            let block_size = search.pool.block_size.get();
            let tokens = overlap_tokens(depth?, prompt_tokens, block_size);
            Some((search.pool.id, tokens))
        });
    let first = searches.first();
    let sent = || Sent::of(site, model, chains);
    let chain = first
        .map(|first| first.chain)
        .or_else(|| Some(sent()?.chain));
    Some(Held {
        prompt_tokens,
        block_size: first
            .map_or(card.block_size, |first| first.pool.block_size)
            .get(),
        beginning: chain.and_then(|chain| chain.get(1)).map(|block| block.0),
        pools: pools.collect(),
    })
}

/// The depth of each search that has a filter, found with one lock-step search per distinct
/// chain.
fn search(searches: &[Search<'_>]) -> Vec<Option<u32>> {
    let mut found = vec![None; searches.len()];
    let mut done = vec![false; searches.len()];
    for first in 0..searches.len() {
        if done[first] {
            continue;
        }
        let chain = searches[first].chain;
        let mut members = Vec::new();
        let mut targets = Vec::new();
        for (index, search) in searches.iter().enumerate().skip(first) {
            if core::ptr::eq(search.chain, chain) {
                done[index] = true;
                if let Some(target) = search.target() {
                    members.push(index);
                    targets.push(target);
                }
            }
        }
        for (index, depth) in members.into_iter().zip(depths(&targets, chain)) {
            found[index] = Some(depth);
        }
    }
    found
}

impl<'a> Search<'a> {
    fn target(&self) -> Option<Target<'a>> {
        let filter = self.pool.replica.filter.as_ref()?;
        Some(filter.target(self.pool.closed))
    }

    fn overlap(&self, depth: u32, policy: &Policy, now: Instant) -> Overlap {
        let tokens = overlap_tokens(depth, self.prompt_tokens, self.pool.block_size.get());
        let mut credit = policy.tiers.of(self.pool.tier).clamp(0.0, 1.0);
        let stale = matches!(self.pool.replica.state, ReplicaState::Stale { .. });
        if stale {
            let stale_for = self.pool.replica.state.stale_for(now);
            credit *= match self.pool.eviction_age {
                Some(age) => survival(age, stale_for),
                None => assumed_survival(stale_for, policy),
            };
        }
        Overlap {
            pool: Some(self.pool.id),
            depth,
            tokens,
            predicted: 0,
            expected_tokens: share_of(tokens, credit),
            eviction_age: self.pool.eviction_age,
            stale,
        }
    }
}

/// Share of a stale replica's blocks expected to be there still, where it is not known how
/// soon blocks are evicted.
fn assumed_survival(age: Duration, policy: &Policy) -> f64 {
    let half_life = policy.stale_half_life.as_secs_f64();
    if half_life > 0.0 {
        (-age.as_secs_f64() / half_life).exp2()
    } else {
        0.0
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of 0 to 1 of a u32 is a u32"
)]
fn share_of(tokens: u32, share: f64) -> u32 {
    (f64::from(tokens) * share.clamp(0.0, 1.0)) as u32
}
