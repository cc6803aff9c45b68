//! The decision: which site a request goes to.
//!
//! A pure function of the view, the request, the policy and what this edge knows of its own
//! requests: eligibility, then cost, then tiebreak. It makes no network call, takes no lock
//! and reads no clock; randomness is a seeded parameter. Its result explains itself: every
//! site in the view is in it, with what excluded it or each term of its cost.
//!
//! It goes by the view's plan of the model, in which what is needed of each site stands next to
//! each other: who may serve is found first, then all their pools are searched together.
//!
//! What it does not do: remember. In-flight requests and breakers are kept by the shell and
//! come in as immutable snapshots ([`Inflight`], [`Breakers`]).

use std::sync::Arc;

use rand::Rng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::id::{ModelName, PoolId, RelayId, SiteId};
use crate::label::SiteRules;
use crate::prediction::Predicted;
use crate::time::Instant;
use crate::view::GridView;
use crate::view::plan::Names;

use question::Question;

pub use chains::Chains;
pub use depth::{Held, Overlap, held, overlap_tokens, sent_beyond};
pub use eligibility::{Breakers, Exclusion};
pub use inflight::{Inflight, Lane, OwnLoad};
pub use policy::{Policy, TierCredits, Weights};
pub use score::{Cost, Score};
pub use tiebreak::Pick;

mod chains;
mod depth;
mod eligibility;
mod explain;
mod inflight;
mod policy;
mod question;
mod score;
mod tiebreak;

/// What a decision must know of a request.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// The model asked for.
    pub model: &'a ModelName,
    /// The prompt's tokens, hashed for the view ([`Chains::hash_for`]); may be empty.
    pub chains: &'a Chains,
    /// Size of the body.
    pub body_bytes: u64,
    /// What the request's session hashes to, where one is known.
    pub affinity: Option<u64>,
    /// Sites that have been tried.
    pub exclude: &'a [SiteId],
    /// Relays that have been tried, of sites that may do it by another.
    pub exclude_relays: &'a [RelayId],
    /// Rules of the tenant and the request, beside the policy's own.
    pub rules: &'a [&'a SiteRules],
    /// Sites that make other tokens of a request of this kind (see [`crate::parity`]): they are
    /// weighed as if no tokens were known.
    pub aside: &'a [SiteId],
}

/// What this edge knows beside the view.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    /// How to weigh.
    pub policy: &'a Policy,
    /// Its own requests.
    pub inflight: &'a Inflight,
    /// Relays that keep failing.
    pub breakers: &'a Breakers,
    /// What it has sent where, and expects to be cached there by now.
    pub predicted: Option<&'a Predicted>,
}

/// A decision, with its explanation.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The site chosen, or why there is none.
    pub outcome: Result<Choice, Refusal>,
    /// What became of every site in the view, by site id.
    verdicts: Vec<Verdict>,
    names: Arc<Names>,
}

/// Where the request goes, and what is expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The site.
    pub site: SiteId,
    /// The relay of it.
    pub relay: RelayId,
    /// How it was found among the candidates.
    pub pick: Pick,
    /// Tokens that need no prefill, undiscounted: as the site's pools say, or, where it has
    /// none, as expected of what was sent there.
    pub overlap_tokens: u32,
    /// Tokens that are expected to be computed.
    pub uncached_tokens: u32,
    /// The prompt's length; `None` if it was only estimated.
    pub prompt_tokens: Option<u32>,
    /// The pool that has the overlap.
    pub pool: Option<PoolId>,
}

/// Why no site was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No site in view lists the model.
    UnknownModel,
    /// The prompt is too long for each site that may serve it.
    TooLong {
        /// The longest context among them.
        limit: u32,
    },
    /// Sites list the model, but none may or can serve it now.
    Unavailable,
}

/// A site, as the decision saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<'a> {
    /// The site.
    pub site: &'a SiteId,
    /// Whether it was weighed.
    pub verdict: &'a Verdict,
}

/// What became of a site.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It may not serve the request.
    Excluded(Exclusion),
    /// It may, at this cost.
    Scored(Score),
}

/// Decides where a request goes.
pub fn decide(
    view: &GridView,
    request: &RouteRequest<'_>,
    local: &Local<'_>,
    now: Instant,
    rng: &mut impl Rng,
) -> Decision {
    let names = view.names();
    let mut verdicts = vec![Verdict::Excluded(Exclusion::NotServed); names.len()];
    if let Some(question) = Question::of(view, request, local, now) {
        weigh(&question, &mut verdicts);
    }
    let scored = verdicts.iter().enumerate();
    let scored: Vec<(usize, &Score)> = scored
        .filter_map(|(site, verdict)| Some((site, verdict.score()?)))
        .collect();
    let session = session(view, request, &scored);
    let outcome = match tiebreak::pick(&scored, session, names, local.policy, rng) {
        Some((index, pick)) => Ok(choice(names, scored[index], pick, request)),
        None => Err(refusal(&verdicts)),
    };
    Decision {
        outcome,
        verdicts,
        names: Arc::clone(names),
    }
}

/// Says of each site that lists the model what it would cost, or why it may not serve.
fn weigh(question: &Question<'_>, verdicts: &mut [Verdict]) {
    let seats = &question.plan.seats;
    let ways: Vec<_> = seats.iter().map(|seat| question.way(seat)).collect();
    let depths = depth::search_pools(question, &ways);
    let mut overlaps = Vec::new();
    for (seat, way) in seats.iter().zip(ways) {
        verdicts[seat.site] = match way {
            Err(exclusion) => Verdict::Excluded(exclusion),
            Ok(way) => {
                depth::overlaps(question, seat, &depths, &mut overlaps);
                Verdict::Scored(score::score(question, seat, &way, &overlaps))
            }
        };
    }
}

impl Decision {
    /// Every site in the view, by site id.
    pub fn candidates(&self) -> impl ExactSizeIterator<Item = Candidate<'_>> {
        let verdicts = self.verdicts.iter().enumerate();
        verdicts.map(|(site, verdict)| Candidate {
            site: self.names.site(site),
            verdict,
        })
    }

    /// A site of the view.
    pub fn candidate(&self, site: &SiteId) -> Option<Candidate<'_>> {
        let place = self.names.find(site)?;
        Some(Candidate {
            site: self.names.site(place),
            verdict: self.verdicts.get(place)?,
        })
    }
}

impl<'a> Candidate<'a> {
    /// The site's score, if it was weighed.
    pub const fn score(&self) -> Option<&'a Score> {
        self.verdict.score()
    }
}

impl Verdict {
    /// The score, if the site was weighed.
    pub const fn score(&self) -> Option<&Score> {
        match self {
            Self::Scored(score) => Some(score),
            Self::Excluded(_) => None,
        }
    }
}

fn choice(
    names: &Names,
    (site, score): (usize, &Score),
    pick: Pick,
    request: &RouteRequest<'_>,
) -> Choice {
    Choice {
        site: names.site(site).clone(),
        relay: names.relay(site, score.relay).clone(),
        pick,
        overlap_tokens: match score.overlap.pool {
            Some(_) => score.overlap.tokens,
            None => score.overlap.predicted,
        },
        uncached_tokens: score.uncached_tokens,
        prompt_tokens: (!request.chains.is_empty() && !score.aside).then_some(score.prompt_tokens),
        pool: score.overlap.pool,
    }
}

/// What a request keeps to a site by, where its tokens don't say.
fn session(view: &GridView, request: &RouteRequest<'_>, scored: &[(usize, &Score)]) -> Option<u64> {
    // Where tokens are known, the caches themselves say where a session is at home.
    let blind = request.chains.is_empty() || scored.iter().all(|(_, score)| score.aside);
    if !blind {
        return None;
    }
    request.affinity.or_else(|| beginning(view, request))
}

/// What a prompt begins with, by any card: sites that make other tokens of it still make the
/// same of the same, so that requests alike meet.
fn beginning(view: &GridView, request: &RouteRequest<'_>) -> Option<u64> {
    let mut sites = view.sites().iter();
    sites.find_map(|site| {
        let card = site.model(request.model.id())?.card.as_ref()?;
        request.chains.beginning(&card.digest, card.block_size)
    })
}

/// Says of no choice whether waiting could help, and if not, what is wrong.
fn refusal(verdicts: &[Verdict]) -> Refusal {
    let mut listed = false;
    let mut too_long = None;
    let mut other = false;
    for verdict in verdicts {
        match verdict {
            Verdict::Excluded(Exclusion::NotServed) => continue,
            Verdict::Excluded(Exclusion::ContextLength { limit, .. }) => {
                too_long = too_long.max(Some(*limit));
            }
            Verdict::Excluded(Exclusion::Forbidden(_)) => {}
            Verdict::Excluded(_) | Verdict::Scored(_) => other = true,
        }
        listed = true;
    }
    match too_long {
        // Who knows no site yet can't say that no site has the model.
        _ if verdicts.is_empty() => Refusal::Unavailable,
        _ if !listed => Refusal::UnknownModel,
        Some(limit) if !other => Refusal::TooLong { limit },
        _ => Refusal::Unavailable,
    }
}

/// The weight of `name` for a key: of several names the heaviest is the key's own, and
/// removing another name never changes which one that is.
fn rendezvous(key: u64, name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), key)
}

#[cfg(test)]
mod tests;
