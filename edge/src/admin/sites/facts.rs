//! What the page says of how a pool is fed, as its relay counts.

use std::collections::BTreeMap;

use kvgrid_core::Instant;
use kvgrid_core::view::PoolFacts;
use serde::Serialize;

use super::age_ms;

/// Counts since the relay's start.
#[derive(Serialize)]
pub(super) struct Facts<'a> {
    accepted_blocks: Option<u64>,
    refused_events: BTreeMap<&'a str, u64>,
    refused_blocks: Option<u64>,
    copies: Option<u64>,
    orphans: Option<u64>,
    gaps: Option<u64>,
    repairs: Option<u64>,
    last_event_age_ms: Option<f64>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(facts: &'a PoolFacts, now: Instant) -> Self {
        let refused = facts.refused.iter();
        Self {
            accepted_blocks: facts.accepted,
            refused_events: refused.map(|(reason, count)| (&**reason, *count)).collect(),
            refused_blocks: facts.refused_blocks,
            copies: facts.copies,
            orphans: facts.orphans,
            gaps: facts.gaps,
            repairs: facts.repairs,
            last_event_age_ms: facts.heard_at.map(|at| age_ms(at, now)),
        }
    }
}
