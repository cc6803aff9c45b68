//! How a table's entries stand in memory, in each form.
//!
//! A bucket of fingerprints is one word, so a change of it is one store. A bucket of whole
//! classes is four words in one cache line, each of which is stored alone. Either way an entry
//! comes and goes by one store, which is all that the protocol in `table.rs` relies on.

use super::bucket::{self, LANE_BITS, LANES};
use super::class::{Class, Seat};
use super::geometry::{Form, Geometry};
use super::words::{Word, Words};

/// The buckets of a table, empty ones of zeros.
pub(super) enum Store<W: Words> {
    /// A word for each, with a fingerprint in each of its lanes.
    Packed(Box<[W::Entries]>),
    /// A word for each slot, with the whole class.
    Whole(Box<[Quad<W::Entries>]>),
}

/// A bucket of whole classes, aligned so that it never lies across two cache lines.
#[repr(align(32))]
pub(super) struct Quad<E>([E; LANES as usize]);

impl<E: Word> Quad<E> {
    fn empty() -> Self {
        Self([(); LANES as usize].map(|()| E::new(0)))
    }

    #[inline]
    fn holds(&self, class: u64) -> bool {
        // Every slot is read: a branch would wait for the one before.
        let slots = self.0.iter();
        slots.fold(false, |held, slot| held | (slot.load() == class))
    }

    #[inline]
    fn empty_slots(&self) -> u32 {
        let slots = self.0.iter();
        slots.map(|slot| u32::from(slot.own() == 0)).sum()
    }

    /// Puts other bits into the first slot with these, as the writer knows it; false if there is
    /// none. Zero is an empty slot.
    #[inline]
    fn replace(&self, bits: u64, by: u64) -> bool {
        let slot = self.0.iter().find(|slot| slot.own() == bits);
        slot.map(|slot| slot.store(by)).is_some()
    }
}

impl<W: Words> Store<W> {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let buckets = 0..geometry.index(geometry.chunks(), 0);
        match geometry.form() {
            Form::Filter => Self::Packed(buckets.map(|_| W::Entries::new(0)).collect()),
            Form::Exact => Self::Whole(buckets.map(|_| Quad::empty()).collect()),
        }
    }

    /// Where a class is looked for; in a larger table than this perhaps nowhere.
    #[inline]
    pub(super) fn spot(&self, geometry: &Geometry, class: Class) -> Spot {
        let seat = geometry.seat(class);
        let (even, odd) = geometry.indices(seat);
        // No table has more buckets than fit.
        let place = |index| u32::try_from(index).unwrap_or(u32::MAX);
        Spot {
            buckets: [place(even), place(odd)],
            entry: match self {
                Self::Packed(_) => seat.fingerprint().into(),
                Self::Whole(_) => class.to_bits(),
            },
        }
    }

    /// Whether either bucket of a spot has its entry at a first look.
    ///
    /// All loads are issued before any is looked at: they miss the cache together.
    #[inline]
    pub(super) fn holds(&self, spot: Spot) -> bool {
        let [even, odd] = spot.buckets.map(|bucket| bucket as usize);
        match self {
            Self::Packed(words) => {
                let fingerprint = bucket::lane(spot.entry, 0);
                let word = |bucket: usize| words.get(bucket).map_or(0, Word::load);
                let (even, odd) = (word(even), word(odd));
                bucket::holds(even, fingerprint) | bucket::holds(odd, fingerprint)
            }
            Self::Whole(quads) => {
                let holds =
                    |bucket: usize| quads.get(bucket).is_some_and(|it| it.holds(spot.entry));
                holds(even) | holds(odd)
            }
        }
    }

    /// Brings both buckets of a spot into the cache; the word means nothing.
    #[inline]
    pub(super) fn read(&self, spot: Spot) -> u64 {
        let [even, odd] = spot.buckets.map(|bucket| bucket as usize);
        match self {
            Self::Packed(words) => {
                let word = |bucket: usize| words.get(bucket).map_or(0, Word::own);
                word(even) | word(odd)
            }
            Self::Whole(quads) => {
                let word = |bucket: usize| quads.get(bucket).map_or(0, |it| it.0[0].own());
                word(even) | word(odd)
            }
        }
    }

    /// The fingerprints in a bucket, as lanes of one word.
    #[inline]
    pub(super) fn fingerprints(&self, geometry: &Geometry, at: usize) -> u64 {
        let quad = match self {
            Self::Packed(words) => return words[at].own(),
            Self::Whole(quads) => &quads[at],
        };
        let fingerprint = |slot: &W::Entries| match Class::from_bits(slot.own()) {
            Some(class) => u64::from(geometry.seat(class).fingerprint()),
            None => 0,
        };
        let lanes = quad.0.iter().rev();
        lanes.fold(0, |word, slot| word << LANE_BITS | fingerprint(slot))
    }

    /// Puts an entry into the emptier of its buckets; false if both are full.
    #[inline]
    pub(super) fn place(&self, (even, odd): (usize, usize), class: Class, seat: Seat) -> bool {
        match self {
            Self::Packed(words) => {
                let (even, odd) = (&words[even], &words[odd]);
                let (in_even, in_odd) = (even.own(), odd.own());
                let (word, entries) = if bucket::empty_lanes(in_odd) > bucket::empty_lanes(in_even)
                {
                    (odd, in_odd)
                } else {
                    (even, in_even)
                };
                let with = bucket::with(entries, seat.fingerprint());
                with.map(|entries| word.store(entries)).is_some()
            }
            Self::Whole(quads) => {
                let (even, odd) = (&quads[even], &quads[odd]);
                let emptier = if odd.empty_slots() > even.empty_slots() {
                    odd
                } else {
                    even
                };
                emptier.replace(0, class.to_bits())
            }
        }
    }

    /// Puts an entry into the first empty slot of a bucket; false if there is none.
    #[inline]
    pub(super) fn put(&self, at: usize, class: Class, seat: Seat) -> bool {
        match self {
            Self::Packed(words) => {
                let with = bucket::with(words[at].own(), seat.fingerprint());
                with.map(|entries| words[at].store(entries)).is_some()
            }
            Self::Whole(quads) => quads[at].replace(0, class.to_bits()),
        }
    }

    /// Erases the first entry of a class in a bucket; false if there is none.
    #[inline]
    pub(super) fn take(&self, at: usize, class: Class, seat: Seat) -> bool {
        match self {
            Self::Packed(words) => {
                let without = bucket::without(words[at].own(), seat.fingerprint());
                without.map(|entries| words[at].store(entries)).is_some()
            }
            Self::Whole(quads) => quads[at].replace(class.to_bits(), 0),
        }
    }

    /// The first entry with this fingerprint in a bucket.
    pub(super) fn find(
        &self,
        geometry: &Geometry,
        (chunk, bucket): (u32, u16),
        fingerprint: u16,
    ) -> Option<Class> {
        let at = geometry.index(chunk, bucket);
        match self {
            Self::Packed(words) => bucket::holds(words[at].own(), fingerprint)
                .then(|| geometry.class_of_stored(chunk, bucket, fingerprint)),
            Self::Whole(quads) => {
                let slots = quads[at].0.iter();
                let mut classes = slots.filter_map(|slot| Class::from_bits(slot.own()));
                classes.find(|class| geometry.seat(*class).fingerprint() == fingerprint)
            }
        }
    }

    /// Adds a bucket's entries to a list.
    #[inline]
    pub(super) fn list(
        &self,
        geometry: &Geometry,
        (chunk, bucket): (u32, u16),
        classes: &mut Vec<Class>,
    ) {
        let at = geometry.index(chunk, bucket);
        match self {
            Self::Packed(words) => {
                let mut word = words[at].own();
                while word != 0 {
                    let fingerprint = bucket::lane(word, 0);
                    if fingerprint != 0 {
                        classes.push(geometry.class_of_stored(chunk, bucket, fingerprint));
                    }
                    word >>= LANE_BITS;
                }
            }
            Self::Whole(quads) => {
                let slots = quads[at].0.iter();
                classes.extend(slots.filter_map(|slot| Class::from_bits(slot.own())));
            }
        }
    }

    pub(super) fn clear(&self) {
        match self {
            Self::Packed(words) => words.iter().for_each(|word| word.store(0)),
            Self::Whole(quads) => {
                let slots = quads.iter().flat_map(|quad| &quad.0);
                slots.for_each(|slot| slot.store(0));
            }
        }
    }
}

/// The two buckets of a class, the even one first, and what to look for in them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    buckets: [u32; 2],
    /// A fingerprint, or a whole class.
    entry: u64,
}
