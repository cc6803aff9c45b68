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
use crate::view::SiteView;
use crate::view::plan::{Kind, Pool, Seat};

use super::chains::Chains;
use super::eligibility::Way;
use super::policy::Policy;
use super::question::Question;

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

/// The best of a site's pools for a request that waits so long before its prompt is looked up.
pub(super) fn best_after(overlaps: &[Overlap], wait: impl FnOnce() -> Duration) -> Overlap {
    let evicts = overlaps.iter().any(|it| it.eviction_age.is_some());
    let wait = if evicts { wait() } else { Duration::ZERO };
    let later = overlaps.iter().map(|overlap| overlap.after(wait));
    later.fold(Overlap::default(), |best, overlap| {
        match best.pool.is_none() || overlap.expected_tokens > best.expected_tokens {
            true => overlap,
            false => best,
        }
    })
}

/// How deep each of the plan's pools holds the prompt; `None` where that is not known, or not
/// asked since its site may not serve the request.
pub(super) fn search_pools<E>(
    question: &Question<'_>,
    ways: &[Result<Way, E>],
) -> Vec<Option<u32>> {
    let plan = question.plan;
    let mut searches = Searches::with_room(plan.pools.len());
    for (seat, way) in plan.seats.iter().zip(ways) {
        if way.is_err() || question.is_aside(seat) {
            continue;
        }
        for (place, pool) in seat.pools().zip(&plan.pools[seat.pools()]) {
            if let Some(chain) = question.chain(pool.reading) {
                searches.add(place, pool.filter.target(pool.closed), chain);
            }
        }
    }
    let mut found = vec![None; plan.pools.len()];
    searches.run(|place, depth| found[place] = Some(depth));
    found
}

/// What a site offers, one at least.
pub(super) fn overlaps(
    question: &Question<'_>,
    seat: &Seat,
    depths: &[Option<u32>],
    overlaps: &mut Vec<Overlap>,
) {
    overlaps.clear();
    let aside = question.is_aside(seat);
    if !aside && let Some(prompt_tokens) = question.length(seat) {
        let places = seat.pools();
        let pools = question.plan.pools[places.clone()].iter();
        let known = pools.zip(&depths[places]);
        overlaps.extend(
            known.filter_map(|(pool, depth)| {
                Some(overlap(question, pool, (*depth)?, prompt_tokens))
            }),
        );
    }
    if overlaps.is_empty() {
        overlaps.push(Overlap::default());
    }
    if !aside {
        expect_sent(question, seat, overlaps);
    }
}

/// Counts in what was sent to a site beyond what the best of its pools holds.
fn expect_sent(question: &Question<'_>, seat: &Seat, overlaps: &mut [Overlap]) {
    let best = overlaps.iter_mut().max_by_key(|it| it.expected_tokens);
    let (Some(predicted), Some(reading), Some(prompt_tokens), Some(best)) = (
        question.local.predicted,
        seat.sent,
        question.length(seat),
        best,
    ) else {
        return;
    };
    let Some(chain) = question.chain(reading) else {
        return;
    };
    let block_size = question.plan.readings[reading].kind.block_size.get();
    let site = question.view.names().hash(seat.site);
    let place = predicted.place_of(site, seat.model);
    let depth = predicted.extend(&place, chain, best.tokens / block_size);
    let tokens = overlap_tokens(depth, prompt_tokens, block_size);
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
        })
    }
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
    let pools = site.pools_of(model).filter_map(|pool| {
        let chain = chains.chain(Some(&card.digest), Kind::of(pool))?;
        let filter = pool.replica.filter.as_ref()?;
        Some((pool, chain, filter.target(pool.closed)))
    });
    let pools: Vec<_> = pools.collect();
    let mut searches = Searches::with_room(pools.len());
    for (place, (_, chain, target)) in pools.iter().enumerate() {
        searches.add(place, *target, chain);
    }
    let mut tokens: Vec<_> = pools.iter().map(|(pool, ..)| (pool.id, 0)).collect();
    searches.run(|place, depth| {
        let block_size = pools[place].0.block_size.get();
        tokens[place].1 = overlap_tokens(depth, prompt_tokens, block_size);
    });
    let first = pools.first();
    let sent = || Sent::of(site, model, chains);
    let chain = first
        .map(|(_, chain, _)| *chain)
        .or_else(|| Some(sent()?.chain));
    Some(Held {
        prompt_tokens,
        block_size: first
            .map_or(card.block_size, |(pool, ..)| pool.block_size)
            .get(),
        beginning: chain.and_then(|chain| chain.get(1)).map(|block| block.0),
        pools: tokens,
    })
}

/// Pools that are to be searched, each for one chain.
struct Searches<'a> {
    places: Vec<usize>,
    targets: Vec<Target<'a>>,
    chains: Vec<&'a [ChainHash]>,
}

impl<'a> Searches<'a> {
    fn with_room(pools: usize) -> Self {
        Self {
            places: Vec::with_capacity(pools),
            targets: Vec::with_capacity(pools),
            chains: Vec::with_capacity(pools),
        }
    }

    fn add(&mut self, place: usize, target: Target<'a>, chain: &'a [ChainHash]) {
        self.places.push(place);
        self.targets.push(target);
        self.chains.push(chain);
    }

    /// Tells the depth at each place, found with one lock-step search per distinct chain.
    fn run(self, mut tell: impl FnMut(usize, u32)) {
        let Some(first) = self.chains.first() else {
            return;
        };
        if self
            .chains
            .iter()
            .all(|chain| core::ptr::eq(*chain, *first))
        {
            let found = depths(&self.targets, first);
            self.places
                .into_iter()
                .zip(found)
                .for_each(|(place, depth)| tell(place, depth));
            return;
        }
        let mut rest = self;
        while let Some(chain) = rest.chains.first().copied() {
            let (same, others) = rest.split(chain);
            for (place, depth) in same.places.into_iter().zip(depths(&same.targets, chain)) {
                tell(place, depth);
            }
            rest = others;
        }
    }

    /// Those of one chain, and all others.
    fn split(self, of: &[ChainHash]) -> (Self, Self) {
        let (mut same, mut others) = (Self::with_room(self.places.len()), Self::with_room(0));
        let searches = self.places.into_iter().zip(self.targets).zip(self.chains);
        for ((place, target), chain) in searches {
            let part = if core::ptr::eq(chain, of) {
                &mut same
            } else {
                &mut others
            };
            part.add(place, target, chain);
        }
        (same, others)
    }
}

/// What a pool offers that holds so many blocks of a prompt.
fn overlap(question: &Question<'_>, pool: &Pool, depth: u32, prompt_tokens: u32) -> Overlap {
    let policy = question.local.policy;
    let block_size = question.plan.readings[pool.reading].kind.block_size.get();
    let tokens = overlap_tokens(depth, prompt_tokens, block_size);
    let mut credit = policy.tiers.of(pool.tier).clamp(0.0, 1.0);
    let stale = matches!(pool.state, ReplicaState::Stale { .. });
    if stale {
        let stale_for = pool.state.stale_for(question.now);
        credit *= match pool.eviction_age {
            Some(age) => survival(age, stale_for),
            None => assumed_survival(stale_for, policy),
        };
    }
    Overlap {
        pool: Some(pool.id),
        depth,
        tokens,
        predicted: 0,
        expected_tokens: share_of(tokens, credit),
        eviction_age: pool.eviction_age,
        stale,
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
