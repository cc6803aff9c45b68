//! Which of the cheapest sites is taken.
//!
//! 1. The band: sites whose cost is at most the larger of 5 % and 5 ms above the least.
//!    Costs are not known any better than that.
//! 2. Within it the deepest overlap wins, so leaving a warm site takes a gain above the band.
//! 3. Sites of equal overlap share the requests: each is taken with a probability that falls
//!    with its cost over the band's width and grows with its spare capacity. Without tokens
//!    to compare, a session keeps to one of these sites by rendezvous hashing instead.
//!
//! All edges see the same old reports and must not all run to the same site. So among *peers*,
//! sites that differ in nothing but their queues, the width grows by what may have arrived
//! since the report, eight times over: edges that correct a queue in one step, with their
//! news that old, overshoot it. A site that is farther or colder by more than the band is no
//! peer: no queue that may have grown makes it as good.

use core::cmp::Ordering;

use rand::Rng;

use crate::view::plan::Names;

use super::policy::Policy;
use super::score::Score;

/// How many times over expected arrivals count. Simulated with 32 edges and reports 100 ms
/// old: at 1 edges overshoot and waits are five times longer, from 8 on nothing is gained.
const GAIN: f64 = 8.0;

/// How the site was found among the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// No other was within the band.
    Cheapest,
    /// Of several within the band it has the deepest overlap.
    Deepest,
    /// Of so many with equal overlap, drawn by cost and spare capacity.
    Drawn(usize),
    /// Of so many with equal overlap, the session's own.
    Affine(usize),
}

/// Picks among scored sites, told by their places; `None` if there are none. The index is that
/// of `scored`.
pub(super) fn pick(
    scored: &[(usize, &Score)],
    session: Option<u64>,
    names: &Names,
    policy: &Policy,
    rng: &mut impl Rng,
) -> Option<(usize, Pick)> {
    let least_ms = scored
        .iter()
        .map(|(_, score)| score.total_ms)
        .min_by(f64::total_cmp)?;
    let band = band_ms(least_ms, policy);
    let in_band = scored
        .iter()
        .filter(|(_, it)| it.total_ms <= least_ms + band);
    let (_, best) = in_band.clone().max_by(|(_, a), (_, b)| deeper(a, b))?;
    let equals = equals(scored, best, (least_ms, band), policy);
    Some(match equals.as_slice() {
        [only] if in_band.count() > 1 => (only.index, Pick::Deepest),
        [only] => (only.index, Pick::Cheapest),
        several => match session {
            Some(session) => {
                let name = |equal: &Equal| names.site(scored[equal.index].0);
                let weight = |equal: &&Equal| super::rendezvous(session, name(equal).as_str());
                let own = several.iter().max_by_key(weight)?;
                (own.index, Pick::Affine(several.len()))
            }
            None => (draw(several, rng)?, Pick::Drawn(several.len())),
        },
    })
}

/// Orders by overlap, and sites of equal overlap by cost, the best last.
fn deeper(a: &Score, b: &Score) -> Ordering {
    let tokens = |score: &Score| score.overlap.expected_tokens;
    let cheaper = b.total_ms.total_cmp(&a.total_ms);
    tokens(a).cmp(&tokens(b)).then(cheaper)
}

/// The sites that are as good as `best`, itself among them.
fn equals(
    scored: &[(usize, &Score)],
    best: &Score,
    (least_ms, band): (f64, f64),
    policy: &Policy,
) -> Vec<Equal> {
    let arrived = (GAIN * best.growth_ms).min(policy.spread_limit_ms.max(0.0));
    let equal = |(index, (_, score)): (usize, &(usize, &Score))| {
        let peer = (score.fixed_ms - best.fixed_ms).abs() <= band;
        let equal = Equal {
            index,
            excess_ms: score.total_ms - least_ms,
            width_ms: band + if peer { arrived } else { 0.0 },
            spare: score.spare,
        };
        let as_deep = score.overlap.expected_tokens == best.overlap.expected_tokens;
        // At the band's very edge a rounded difference may leave out the best itself.
        let near = equal.excess_ms <= equal.width_ms || core::ptr::eq(*score, best);
        (as_deep && near).then_some(equal)
    };
    scored.iter().enumerate().filter_map(equal).collect()
}

/// A site that may be taken because none in the band has more cached.
struct Equal {
    index: usize,
    /// Its cost above the least.
    excess_ms: f64,
    /// How much of that does not count.
    width_ms: f64,
    spare: f64,
}

/// Width of the band above the least cost.
pub(super) fn band_ms(least_ms: f64, policy: &Policy) -> f64 {
    (least_ms * policy.band_share).max(policy.band_floor_ms)
}

/// Draws by softmin of cost over the width, times spare capacity.
fn draw(among: &[Equal], rng: &mut impl Rng) -> Option<usize> {
    let weight = |equal: &Equal| {
        let width_ms = equal.width_ms.max(f64::MIN_POSITIVE);
        equal.spare * (-equal.excess_ms / width_ms).exp()
    };
    let mut left = unit(rng) * among.iter().map(weight).sum::<f64>();
    for equal in among {
        left -= weight(equal);
        if left < 0.0 {
            return Some(equal.index);
        }
    }
    among.last().map(|equal| equal.index)
}

/// A number from 0 to below 1.
fn unit(rng: &mut impl Rng) -> f64 {
    const STEPS: f64 = (1_u64 << 53) as f64;
    (rng.next_u64() >> 11) as f64 / STEPS
}
