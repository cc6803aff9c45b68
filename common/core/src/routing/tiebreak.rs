//! Which of the cheapest sites is taken.
//!
//! 1. The band: sites whose cost is at most the larger of 5 % and 5 ms above the least.
//!    Costs are not known any better than that.
//! 2. Within it the deepest overlap wins, so leaving a warm site takes a gain above the band.
//! 3. Sites of equal overlap share the requests: each is taken with a probability that falls
//!    with its cost over the band's width and grows with its spare capacity. The width grows
//!    by what may have arrived since the load was reported, because all edges see the same
//!    old numbers and must not all run to the same site. Without tokens to compare, a
//!    session keeps to one of these sites by rendezvous hashing instead.

use rand::Rng;

use crate::id::SiteId;

use super::policy::Policy;
use super::score::Score;

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

/// Picks among scored sites; `None` if there are none. The index is that of `scored`.
pub(super) fn pick(
    scored: &[(&SiteId, &Score)],
    session: Option<u64>,
    policy: &Policy,
    rng: &mut impl Rng,
) -> Option<(usize, Pick)> {
    let cheapest = scored
        .iter()
        .map(|(_, score)| *score)
        .min_by(|a, b| a.total_ms.total_cmp(&b.total_ms))?;
    let band = band_ms(cheapest.total_ms, policy);
    let within = |score: &Score, width: f64| score.total_ms <= cheapest.total_ms + width;
    let in_band = scored.iter().filter(|(_, score)| within(score, band));
    let deepest = in_band
        .clone()
        .map(|(_, score)| score.overlap.expected_tokens)
        .max()?;
    let width = band + cheapest.growth_ms.min(policy.spread_limit_ms.max(0.0));
    let equals: Vec<usize> = (0..scored.len())
        .filter(|index| {
            let score = scored[*index].1;
            score.overlap.expected_tokens == deepest && within(score, width)
        })
        .collect();
    let pick = match equals.as_slice() {
        [only] if in_band.count() > 1 => (*only, Pick::Deepest),
        [only] => (*only, Pick::Cheapest),
        several => match session {
            Some(session) => (
                affine(scored, several, session)?,
                Pick::Affine(several.len()),
            ),
            None => (
                draw(scored, several, width, rng)?,
                Pick::Drawn(several.len()),
            ),
        },
    };
    Some(pick)
}

/// Width of the band above the least cost.
pub(super) fn band_ms(least_ms: f64, policy: &Policy) -> f64 {
    (least_ms * policy.band_share).max(policy.band_floor_ms)
}

fn affine(scored: &[(&SiteId, &Score)], among: &[usize], session: u64) -> Option<usize> {
    let weight = |index: &usize| super::rendezvous(session, scored[*index].0.as_str());
    among.iter().copied().max_by_key(weight)
}

/// Draws by softmin of cost over `width`, times spare capacity.
fn draw(
    scored: &[(&SiteId, &Score)],
    among: &[usize],
    width: f64,
    rng: &mut impl Rng,
) -> Option<usize> {
    let costs = among.iter().map(|index| scored[*index].1.total_ms);
    let least = costs.fold(f64::INFINITY, f64::min);
    let weight = |index: usize| {
        let score = scored[index].1;
        let excess = (score.total_ms - least) / width.max(f64::MIN_POSITIVE);
        score.spare * (-excess).exp()
    };
    let weights: Vec<f64> = among.iter().map(|index| weight(*index)).collect();
    let mut left = unit(rng) * weights.iter().sum::<f64>();
    for (index, weight) in among.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return Some(*index);
        }
    }
    among.last().copied()
}

/// A number from 0 to below 1.
fn unit(rng: &mut impl Rng) -> f64 {
    const STEPS: f64 = (1_u64 << 53) as f64;
    (rng.next_u64() >> 11) as f64 / STEPS
}
