//! Which sites may serve a request at all.
//!
//! Every check is hard: a site that fails one is not weighed. The first that fails is the
//! one the explanation names, so the checks run from the lasting to the passing.

use std::collections::BTreeMap;
use std::fmt;

use crate::id::{ModelId, RelayId};
use crate::label::Violation;
use crate::time::Instant;
use crate::view::RelayView;
use crate::view::plan::{Path, Seat};

use super::question::Question;

/// Why a site is not a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// The site does not list the model.
    NotServed,
    /// A rule of the policy, the tenant or the request forbids it.
    Forbidden(Violation),
    /// The prompt does not fit the model's context there.
    ContextLength {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens that fit, the answer's included.
        limit: u32,
    },
    /// None of its relays is connected.
    NotConnected,
    /// The site lists the model but cannot serve it now.
    NotReady,
    /// All its connected relays are leaving.
    Draining,
    /// Requests to it have failed of late.
    BreakerOpen,
    /// This request has been there already.
    Tried,
}

/// Models at relays that requests are kept from, and until when; immutable, a shell publishes
/// a new one when a breaker changes. What is not listed is let through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakers(BTreeMap<RelayId, BTreeMap<ModelId, Instant>>);

impl Breakers {
    /// Keeps requests for a model from a relay until a time.
    pub fn open(&mut self, relay: &RelayId, model: ModelId, until: Instant) {
        let models = self.0.entry(relay.clone()).or_default();
        models.insert(model, until);
    }

    /// Lets requests through again.
    pub fn close(&mut self, relay: &RelayId, model: ModelId) {
        if let Some(models) = self.0.get_mut(relay) {
            models.remove(&model);
        }
        self.0.retain(|_, models| !models.is_empty());
    }

    /// Until when requests are kept back; `None` while the breaker is closed. A time that has
    /// passed means that it is half open.
    pub fn until(&self, relay: &RelayId, model: ModelId) -> Option<Instant> {
        self.0.get(relay)?.get(&model).copied()
    }

    /// Whether all is let through.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a relay may be sent a request for a model.
    pub fn allows(&self, relay: &RelayId, model: ModelId, now: Instant) -> bool {
        self.until(relay, model).is_none_or(|until| until <= now)
    }
}

/// Through which of a site's relays a request goes.
pub(super) struct Way {
    /// Which of its relays.
    pub(super) relay: usize,
    pub(super) path: Path,
}

impl Question<'_> {
    /// The way to a site that may serve the request.
    pub(super) fn way(&self, seat: &Seat) -> Result<Way, Exclusion> {
        for rules in &self.rules {
            let site = self.site(seat);
            rules
                .check(site.region.as_ref(), &site.labels)
                .map_err(Exclusion::Forbidden)?;
        }
        // What is counted here says nothing of the length of another prompt.
        if !self.is_aside(seat) {
            self.fits(seat)?;
        }
        let tried = self.request.exclude;
        if !tried.is_empty() && tried.contains(self.name(seat)) {
            return Err(Exclusion::Tried);
        }
        if !seat.alive {
            return Err(Exclusion::NotConnected);
        }
        if !seat.ready {
            return Err(Exclusion::NotReady);
        }
        let spared = self.request.exclude_relays.is_empty() && self.local.breakers.is_empty();
        match seat.only {
            // Most sites have one relay, and then there's nothing to weigh.
            Some(path) if spared => Ok(Way { relay: 0, path }),
            _ => self.relay(seat),
        }
    }

    /// An engine needs a place for at least one token of its answer.
    fn fits(&self, seat: &Seat) -> Result<(), Exclusion> {
        match (self.length(seat), seat.limit) {
            (Some(prompt_tokens), Some(limit)) if prompt_tokens >= limit.get() => {
                Err(Exclusion::ContextLength {
                    prompt_tokens,
                    limit: limit.get(),
                })
            }
            _ => Ok(()),
        }
    }

    /// The relay through which the request goes, among those that can be used.
    ///
    /// A site's frontends share no state, so a session, else what prompts begin with, keeps to
    /// one relay by rendezvous hashing, unless that one has more than its share to do.
    fn relay(&self, seat: &Seat) -> Result<Way, Exclusion> {
        let site = self.site(seat);
        let mut obstacle = None;
        let mut usable = Vec::new();
        for (place, relay) in site.relays.iter().enumerate() {
            match self.obstacle_of(relay, seat.model) {
                None => usable.push((place, relay)),
                // Of several, the most passing one: it says best what to wait for.
                found => obstacle = obstacle.max(found),
            }
        }
        let chosen = match usable.as_slice() {
            [] => return Err(obstacle.map_or(Exclusion::NotConnected, Obstacle::exclusion)),
            [only] => *only,
            several => self.at_home(seat, several),
        };
        let (relay, view) = chosen;
        Ok(Way {
            relay,
            path: Path::to(view),
        })
    }

    /// Of several relays that can be used, the one that the request keeps to.
    fn at_home<'v>(
        &self,
        seat: &Seat,
        usable: &[(usize, &'v RelayView)],
    ) -> (usize, &'v RelayView) {
        let open = |relay: &RelayView| {
            let lane = self.local.inflight.lane(&relay.id);
            lane.map_or(0, |lane| lane.open_requests())
        };
        let all: u32 = usable.iter().map(|(_, relay)| open(relay)).sum();
        let relays = u32::try_from(usable.len()).unwrap_or(u32::MAX).max(1);
        let share = SLACK + all.saturating_mul(5) / relays.saturating_mul(4);
        let key = self.home(seat);
        let weight = |(_, relay): &&(usize, &RelayView)| {
            let weight = super::rendezvous(key, relay.id.as_str());
            (open(relay) <= share, weight)
        };
        let heaviest = usable.iter().max_by_key(weight);
        *heaviest.unwrap_or(&usable[0])
    }

    /// What a request's relay is chosen by: its session, else its prompt's beginning.
    fn home(&self, seat: &Seat) -> u64 {
        let beginning = || {
            let site = self.site(seat);
            let card = site.model(seat.model)?.card.as_ref()?;
            self.request.chains.beginning(&card.digest, card.block_size)
        };
        self.request.affinity.or_else(beginning).unwrap_or(0)
    }

    fn obstacle_of(&self, relay: &RelayView, model: ModelId) -> Option<Obstacle> {
        if !relay.connected {
            Some(Obstacle::NotConnected)
        } else if relay.draining {
            Some(Obstacle::Draining)
        } else if !relay.serves.contains(&model) {
            Some(Obstacle::NotReady)
        } else if self.request.exclude_relays.contains(&relay.id) {
            Some(Obstacle::Tried)
        } else if !self.local.breakers.allows(&relay.id, model, self.now) {
            Some(Obstacle::BreakerOpen)
        } else {
            None
        }
    }
}

/// Requests that a relay may have beyond its share before sessions leave it.
const SLACK: u32 = 4;

/// Why a relay can't be used, from the lasting to the passing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Obstacle {
    NotConnected,
    Draining,
    NotReady,
    BreakerOpen,
    Tried,
}

impl Obstacle {
    const fn exclusion(self) -> Exclusion {
        match self {
            Self::NotConnected => Exclusion::NotConnected,
            Self::Draining => Exclusion::Draining,
            Self::NotReady => Exclusion::NotReady,
            Self::BreakerOpen => Exclusion::BreakerOpen,
            Self::Tried => Exclusion::Tried,
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServed => f.write_str("model not served"),
            Self::Forbidden(violation) => violation.fmt(f),
            Self::ContextLength {
                prompt_tokens,
                limit,
            } => write!(f, "{prompt_tokens} tokens do not fit {limit}"),
            Self::NotConnected => f.write_str("not connected"),
            Self::NotReady => f.write_str("model not ready"),
            Self::Draining => f.write_str("draining"),
            Self::BreakerOpen => f.write_str("breaker open"),
            Self::Tried => f.write_str("already tried"),
        }
    }
}
