//! This edge's own requests that no load sample includes yet.
//!
//! An edge numbers its requests per relay, and a relay's samples echo the highest number
//! they include. What the edge dispatched above that number is added to the sample's queue,
//! exactly once: below it the relay counts, above it the edge does.
//!
//! A [`Lane`] is written by requests and read by decisions at the same time, without a lock:
//! a ring of slots, each a request's number and, packed in one word, its model and tokens.
//! A reader that meets a slot in the middle of a change skips it, which is right for a
//! moment either way. Requests that fall off the ring count as included: so many at once
//! are only in flight when the relay has stopped reporting, and then its load is stale.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use hashbrown::HashTable;

use crate::id::{ModelId, RelayId, name_hash};

/// Requests above the echo that a lane can tell apart; a power of two.
const SLOTS: u64 = 1024;

/// Lanes of all relays; immutable, a shell publishes a new one when a relay appears.
#[derive(Clone, Debug, Default)]
pub struct Inflight(HashTable<Open>);

/// A relay's lane.
#[derive(Clone, Debug)]
struct Open {
    /// What the relay's name hashes to: a decision has it at hand, for each relay.
    hash: u64,
    relay: RelayId,
    lane: Arc<Lane>,
}

impl Inflight {
    /// A relay's lane, if one was opened.
    pub fn lane(&self, relay: &RelayId) -> Option<&Arc<Lane>> {
        self.find((relay, name_hash(relay.as_str())))
    }

    /// Opens a relay's lane, unless there is one. Its first request gets number `first`.
    pub fn open(&mut self, relay: &RelayId, first: u64) {
        let hash = name_hash(relay.as_str());
        if self.find((relay, hash)).is_none() {
            let open = Open {
                hash,
                relay: relay.clone(),
                lane: Arc::new(Lane::new(first)),
            };
            self.0.insert_unique(hash, open, |open| open.hash);
        }
    }

    /// Own requests for `model` above `echo`; none for a relay without a lane. The relay comes
    /// with what its name hashes to.
    pub(super) fn above(&self, relay: (&RelayId, u64), model: ModelId, echo: u64) -> OwnLoad {
        let lane = self.find(relay);
        lane.map_or_else(OwnLoad::default, |lane| lane.above(model, echo))
    }

    fn find(&self, (relay, hash): (&RelayId, u64)) -> Option<&Arc<Lane>> {
        let is = |open: &Open| open.hash == hash && open.relay == *relay;
        Some(&self.0.find(hash, is)?.lane)
    }
}

/// Own requests that a load sample does not include.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLoad {
    /// Requests that have not ended.
    pub requests: u32,
    /// Uncached prompt tokens of those without a first byte.
    pub queued_tokens: u64,
}

/// One relay's numbered requests.
#[derive(Debug)]
pub struct Lane {
    next: AtomicU64,
    open: AtomicU32,
    slots: Box<[Slot]>,
}

/// `number` is 0 while the slot is empty or being changed.
#[derive(Debug, Default)]
struct Slot {
    number: AtomicU64,
    /// Low half of the model's id above the uncached tokens, 32 bits each.
    content: AtomicU64,
}

impl Lane {
    /// A lane whose first request gets number `first`, or 1 if that is 0.
    pub fn new(first: u64) -> Self {
        Self {
            next: AtomicU64::new(first.max(1)),
            open: AtomicU32::new(0),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
        }
    }

    /// Numbers a request that is about to be sent.
    pub fn begin(&self, model: ModelId, uncached_tokens: u32) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        let slot = self.slot(number);
        slot.number.store(0, Ordering::Release);
        slot.content
            .store(pack(model, uncached_tokens), Ordering::Release);
        slot.number.store(number, Ordering::Release);
        number
    }

    /// The request's first byte came: its prompt no longer waits.
    pub fn first_byte(&self, model: ModelId, number: u64) {
        let slot = self.slot(number);
        if slot.number.load(Ordering::Acquire) == number {
            slot.content.store(pack(model, 0), Ordering::Release);
        }
    }

    /// The request ended, well or not. To be called once for each number.
    pub fn end(&self, number: u64) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        // The slot may belong to a younger request by now.
        let _ = self.slot(number).number.compare_exchange(
            number,
            0,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// Requests begun and not ended, of all models.
    pub fn open_requests(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Requests for `model` with numbers above `echo`.
    pub fn above(&self, model: ModelId, echo: u64) -> OwnLoad {
        let next = self.next.load(Ordering::Acquire);
        let first = (echo.saturating_add(1)).max(next.saturating_sub(SLOTS));
        let mut own = OwnLoad::default();
        for number in first..next {
            if let Some(tokens) = self.slot(number).read(number, model) {
                own.requests += 1;
                own.queued_tokens += u64::from(tokens);
            }
        }
        own
    }

    fn slot(&self, number: u64) -> &Slot {
        let index = usize::try_from(number % SLOTS).unwrap_or(0);
        &self.slots[index]
    }
}

impl Slot {
    /// The tokens of request `number`, if the slot holds it and it is for `model`.
    fn read(&self, number: u64, model: ModelId) -> Option<u32> {
        if self.number.load(Ordering::Acquire) != number {
            return None;
        }
        let content = self.content.load(Ordering::Acquire);
        let unchanged = self.number.load(Ordering::Acquire) == number;
        let tokens = content & u64::from(u32::MAX);
        (unchanged && content >> 32 == model.0 & u64::from(u32::MAX))
            .then(|| u32::try_from(tokens).unwrap_or(u32::MAX))
    }
}

fn pack(model: ModelId, tokens: u32) -> u64 {
    model.0 << 32 | u64::from(tokens)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MODEL: ModelId = ModelId(5);

    fn own(requests: u32, queued_tokens: u64) -> OwnLoad {
        OwnLoad {
            requests,
            queued_tokens,
        }
    }

    #[test]
    fn a_request_counts_until_a_sample_includes_it() {
        let lane = Lane::new(1);
        let first = lane.begin(MODEL, 100);
        let second = lane.begin(MODEL, 30);

        assert_eq!(lane.above(MODEL, 0), own(2, 130));
        assert_eq!(lane.above(MODEL, first), own(1, 30));
        assert_eq!(lane.above(MODEL, second), own(0, 0));
    }

    #[test]
    fn a_first_byte_empties_the_queue_and_the_end_the_lane() {
        let lane = Lane::new(1);
        let number = lane.begin(MODEL, 100);

        lane.first_byte(MODEL, number);
        assert_eq!(lane.above(MODEL, 0), own(1, 0));
        assert_eq!(lane.open_requests(), 1);

        lane.end(number);
        assert_eq!(lane.above(MODEL, 0), own(0, 0));
        assert_eq!(lane.open_requests(), 0);
    }

    #[test]
    fn requests_of_other_models_do_not_count() {
        let lane = Lane::new(1);
        lane.begin(ModelId(6), 100);

        assert_eq!(lane.above(MODEL, 0), own(0, 0));
    }

    #[test]
    fn ending_a_request_whose_slot_was_reused_leaves_the_younger_one() {
        let lane = Lane::new(1);
        let first = lane.begin(MODEL, 1);
        for _ in 0..SLOTS {
            lane.begin(MODEL, 1);
        }

        lane.end(first);

        assert_eq!(lane.above(MODEL, 0).requests, 1024);
    }

    #[test]
    fn an_echo_from_the_future_includes_everything() {
        let lane = Lane::new(1);
        lane.begin(MODEL, 1);

        assert_eq!(lane.above(MODEL, u64::MAX), own(0, 0));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Begin(u32),
        FirstByte(usize),
        End(usize),
        Echo(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0_u32..5000).prop_map(Op::Begin),
            (0_usize..64).prop_map(Op::FirstByte),
            (0_usize..64).prop_map(Op::End),
            (0_u64..64).prop_map(Op::Echo),
        ]
    }

    proptest! {
        /// A plain model: a list of (number, tokens still queued).
        #[test]
        fn own_requests_are_added_exactly_once(ops in prop::collection::vec(op(), 1..200)) {
            let lane = Lane::new(1);
            let mut open: Vec<(u64, u32)> = Vec::new();
            let mut echo = 0;

            for op in ops {
                match op {
                    Op::Begin(tokens) => open.push((lane.begin(MODEL, tokens), tokens)),
                    Op::FirstByte(index) => if let Some(request) = open.get_mut(index) {
                        lane.first_byte(MODEL, request.0);
                        request.1 = 0;
                    },
                    Op::End(index) => if index < open.len() {
                        lane.end(open.remove(index).0);
                    },
                    Op::Echo(included) => echo = included,
                }
                let above = open.iter().filter(|(number, _)| *number > echo);
                let requests = u32::try_from(above.clone().count()).unwrap();
                let tokens = above.map(|(_, tokens)| u64::from(*tokens)).sum();
                prop_assert_eq!(lane.above(MODEL, echo), own(requests, tokens));
            }
        }
    }
}
