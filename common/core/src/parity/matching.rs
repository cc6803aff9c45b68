//! Whether a pool that gets traffic ever matches.
//!
//! A pool whose hashes are not the prompts' (another format, another block size, other tokens)
//! or that hears of nothing looks like one that is merely cold: all depths are 0. What tells
//! the two apart is that the site itself has cached what the pool does not know. So requests
//! are counted that should have matched and did not: the site says that blocks of them were
//! cached, or, where it says nothing, they begin as others did that were sent there before.
//!
//! A pool is not blamed for what another one of the site's knows, nor for prompts that are other
//! ones there, nor for a burst, whose events are still on their way.

use core::time::Duration;

use crate::time::Instant;

/// When a pool is said not to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchingConfig {
    /// Requests in a row that should have matched.
    pub requests: u32,
    /// Least time from the first of them to the last; events take a part of it.
    pub span: Duration,
}

impl Default for MatchingConfig {
    fn default() -> Self {
        Self {
            requests: 20,
            span: Duration::from_secs(10),
        }
    }
}

/// What a request says of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// Nothing.
    None,
    /// It matched.
    Match,
    /// It should have matched.
    Miss {
        /// Whether the site itself says so; else only what it was sent before does.
        told: bool,
    },
}

/// Requests in a row that should have matched, and did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// All of them.
    pub requests: u32,
    /// Those of which the site says that blocks were cached; the others begin as earlier ones.
    pub told: u32,
}

/// How a pool has matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    requests: u64,
    matched: u64,
    missed: Missed,
    missing_since: Option<Instant>,
    unmatched: bool,
}

impl Matching {
    /// Requests of two blocks or more.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Those of which it held some.
    pub const fn matched(&self) -> u64 {
        self.matched
    }

    /// Those since the last match that should have matched.
    pub const fn missed(&self) -> Missed {
        self.missed
    }

    /// Whether it is said not to match.
    pub const fn is_unmatched(&self) -> bool {
        self.unmatched
    }

    /// Takes a request; gives whether the pool is said not to match, if that changes.
    pub(super) fn note(
        &mut self,
        evidence: Evidence,
        config: &MatchingConfig,
        now: Instant,
    ) -> Option<bool> {
        self.requests += 1;
        match evidence {
            Evidence::None => None,
            Evidence::Match => {
                self.matched += 1;
                self.missed = Missed::default();
                self.missing_since = None;
                std::mem::take(&mut self.unmatched).then_some(false)
            }
            Evidence::Miss { told } => {
                let Missed {
                    requests,
                    told: by_site,
                } = &mut self.missed;
                *requests = requests.saturating_add(1);
                *by_site = by_site.saturating_add(u32::from(told));
                let since = *self.missing_since.get_or_insert(now);
                let lasts = now.saturating_since(since) >= config.span;
                let enough = self.missed.requests >= config.requests && lasts && !self.unmatched;
                self.unmatched |= enough;
                enough.then_some(true)
            }
        }
    }
}
