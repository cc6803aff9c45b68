//! What pools publish, held against a model that shares no code with them.
//!
//! Streams of KV events go through all that is pure on their way: positions in a publisher's
//! life, decoders, residency. Some are captured from real publishers, most are random, with
//! lost, doubled and swapped messages, restarts and broken bytes. Two things must hold:
//!
//! - What a feed says it has applied is an unbroken part of one life, up to the last message
//!   that came, and as long a part as can be known. Where the past can be asked for again it
//!   is the whole life; else it begins with the first message after a hole, because a removal
//!   may have been in it.
//! - The pool is what the model makes of just these messages. So it is never more than the
//!   publisher really holds, and no less than can be known.

use std::collections::BTreeSet;
use std::ops::Range;

use kvgrid_core::Instant;
use kvgrid_core::event::Tier;
use kvgrid_core::residency::{Copies, PoolOp};

use super::pool::Pool;
use crate::config::LimitsTable;
use crate::sources::{FeedState, SourceEvent};

mod captures;
mod engine;
mod filters;
mod model;
mod random;
mod value;
mod worker;

use engine::Said;
use model::{Again, Fact, Model};

const TIERS: [Tier; 2] = [Tier::Device, Tier::HostPinned];

/// Runs of each kind; more by `KVGRID_SEEDS`.
fn seeds() -> Range<u64> {
    let seeds = std::env::var("KVGRID_SEEDS").ok();
    0..seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(300)
}

/// The pools of one source, one a tier, and copies of them made from their changes.
struct Pools {
    again: Again,
    pools: Vec<(Tier, Pool, BTreeSet<u64>)>,
}

impl Pools {
    fn new(again: Again) -> Self {
        let copies = match again {
            Again::More => Copies::Counted,
            Again::Same => Copies::Once,
        };
        let limits = LimitsTable {
            entries: 100_000,
            ..LimitsTable::default()
        };
        let pool = |tier| {
            let pool = Pool::new(0, (tier, copies), &limits, Instant::ZERO);
            (tier, pool, BTreeSet::new())
        };
        let pools = TIERS.map(pool).into();
        Self { again, pools }
    }

    fn take(&mut self, event: &SourceEvent) {
        for (_, pool, copy) in &mut self.pools {
            pool.handle(event.clone());
            while pool.residency.step(7) {}
            for change in pool.residency.drain_ops() {
                match change {
                    PoolOp::Insert(chain) => assert!(copy.insert(chain.0), "inserted twice"),
                    PoolOp::Remove(chain) => assert!(copy.remove(&chain.0), "was not there"),
                }
            }
        }
    }

    /// Insists that the pools are what the model makes of what the feeds have applied.
    fn check<'a>(&self, lives: &(impl Iterator<Item = &'a Life> + Clone), when: &str) {
        let again = self.again;
        let known = |tier| {
            let lives = lives.clone();
            lives.flat_map(move |life| life.known(again).chains(tier))
        };
        self.check_against(known, when);
    }

    /// Insists that each tier's pool has just these chains.
    fn check_against<C: Iterator<Item = u64>>(&self, known: impl Fn(Tier) -> C, when: &str) {
        for (tier, pool, copy) in &self.pools {
            let expected: BTreeSet<u64> = known(*tier).collect();
            assert_eq!(*copy, expected, "{tier:?} {when}");
            let published: BTreeSet<u64> = pool.residency.published().map(|it| it.0).collect();
            assert_eq!(published, expected, "{tier:?} {when}");
        }
    }
}

/// A publisher's life as it was, and what its feed says it has applied of it.
struct Life {
    said: Vec<Said>,
    claim: Option<Claim>,
    state: FeedState,
    /// A life that is over, with what the feed still believes of it.
    before: Option<(Claim, Vec<Said>)>,
}

/// What a feed says it has applied of a life.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The feed's own name of the life.
    publisher: u64,
    first: u64,
    last: u64,
}

impl Claim {
    fn said(self, said: &[Said]) -> &[Said] {
        &said[index(self.first)..=index(self.last)]
    }
}

impl Life {
    const fn new() -> Self {
        Self {
            said: Vec::new(),
            claim: None,
            state: FeedState::Connecting,
            before: None,
        }
    }

    /// The publisher starts anew, and its feed doesn't know yet.
    fn restart(&mut self) {
        let said = std::mem::take(&mut self.said);
        self.before = self.claim.take().map(|claim| (claim, said));
    }

    /// Takes note of what the feed tells.
    fn take(&mut self, event: &SourceEvent) {
        match event {
            SourceEvent::Feed { state, .. } => self.state = *state,
            SourceEvent::PublisherGone { publisher, .. } => {
                self.claim = self.claim.filter(|claim| claim.publisher != *publisher);
                let over = self.before.take();
                self.before = over.filter(|(claim, _)| claim.publisher != *publisher);
            }
            SourceEvent::Batch {
                worker, sequence, ..
            } => self.claim(worker.publisher, *sequence),
            _ => {}
        }
    }

    fn claim(&mut self, publisher: u64, sequence: u64) {
        assert!(self.before.is_none(), "one life at a time");
        let claim = self.claim.get_or_insert(Claim {
            publisher,
            first: sequence,
            last: sequence,
        });
        assert_eq!(claim.publisher, publisher, "one life at a time");
        assert!(sequence <= claim.last + 1, "a message is passed over");
        claim.last = claim.last.max(sequence);
    }

    /// What the feed can know, if it has understood all that it has applied.
    fn known(&self, again: Again) -> Model {
        let now = self.claim.map(|claim| claim.said(&self.said));
        let before = self.before.as_ref();
        let before = before.map(|(claim, said)| claim.said(said));
        let said = before.or(now).unwrap_or_default();
        Model::after(again, said.iter().flat_map(|said| &said.told))
    }

    /// What the publisher held when it sent the last message that was applied.
    fn truth(&self, again: Again) -> Model {
        let past = self.claim.map_or(0, |claim| index(claim.last) + 1);
        let said = self.said[..past].iter();
        Model::after(again, said.flat_map(|said| &said.happened))
    }

    /// Insists that nothing is known that isn't so.
    fn check_truth(&self, again: Again, when: &str) {
        if self.before.is_some() {
            return;
        }
        for tier in TIERS {
            let (known, truth) = (
                self.known(again).chains(tier),
                self.truth(again).chains(tier),
            );
            assert!(known.is_subset(&truth), "{tier:?} {when}");
        }
        if self.state == FeedState::Whole {
            let cleared = |claim: Claim| {
                let mut said = claim.said(&self.said).iter();
                said.any(|said| said.told.iter().any(|it| matches!(it, Fact::Cleared(_))))
            };
            // On Dynamo's plane a rank that was cleared begins anew.
            let begins = |claim: Claim| claim.first == 0 || again == Again::Same && cleared(claim);
            assert!(self.claim.is_none_or(begins), "not whole {when}");
        }
    }

    /// The first message that a feed may make use of: the last one that can't be understood.
    fn first_understood(&self, before: u64) -> u64 {
        let mut past = self.said.iter().take(index(before) + 1);
        past.rposition(|said| said.holed).unwrap_or(0) as u64
    }
}

fn index(sequence: u64) -> usize {
    usize::try_from(sequence).unwrap()
}
