//! A bucket: four 16-bit lanes in one word, zero for an empty lane.
//!
//! All four lanes are compared at once with plain arithmetic, so a lookup has no branch and
//! a change of a bucket is one store.

/// Lanes of a bucket.
pub(super) const LANES: u32 = 4;

/// Bits of a lane.
pub(super) const LANE_BITS: u32 = 16;

const ONES: u64 = 0x0001_0001_0001_0001;
const HIGH: u64 = 0x8000_8000_8000_8000;

/// The high bit of each lane that is zero.
#[inline]
const fn zero_lanes(word: u64) -> u64 {
    // No carry leaves a lane, so the answer is exact for every lane, not just the lowest.
    !((word & !HIGH).wrapping_add(!HIGH) | word | !HIGH)
}

#[inline]
const fn matching(word: u64, fingerprint: u16) -> u64 {
    zero_lanes(word ^ ONES.wrapping_mul(fingerprint as u64))
}

/// Whether a lane has this fingerprint.
#[inline]
pub(super) const fn holds(word: u64, fingerprint: u16) -> bool {
    matching(word, fingerprint) != 0
}

/// How many lanes are empty.
#[inline]
pub(super) const fn empty_lanes(word: u64) -> u32 {
    zero_lanes(word).count_ones()
}

/// The fingerprint in a lane.
#[inline]
pub(super) const fn lane(word: u64, lane: u32) -> u16 {
    (word >> (lane * 16) & 0xffff) as u16
}

/// The word with this fingerprint in its first empty lane.
#[inline]
pub(super) const fn with(word: u64, fingerprint: u16) -> Option<u64> {
    let empty = zero_lanes(word);
    if empty == 0 {
        return None;
    }
    Some(word | (fingerprint as u64) << (empty.trailing_zeros() - 15))
}

/// The word without the first lane of this fingerprint.
#[inline]
pub(super) const fn without(word: u64, fingerprint: u16) -> Option<u64> {
    let found = matching(word, fingerprint);
    if found == 0 {
        return None;
    }
    Some(word & !(0xffff << (found.trailing_zeros() - 15)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn word(lanes: [u16; 4]) -> u64 {
        lanes
            .iter()
            .rev()
            .fold(0, |word, &lane| word << 16 | u64::from(lane))
    }

    fn lanes() -> impl Strategy<Value = [u16; 4]> {
        let interesting = prop_oneof![
            Just(0),
            Just(1),
            Just(2),
            Just(0x7fff),
            Just(0x8000),
            Just(0xffff),
            any::<u16>()
        ];
        [
            interesting.clone(),
            interesting.clone(),
            interesting.clone(),
            interesting,
        ]
    }

    proptest! {
        #[test]
        fn a_word_behaves_as_its_four_lanes(lanes in lanes(), choice in 0_usize..4, other: u16) {
            let packed = word(lanes);

            for wanted in [lanes[choice], other, 0x8000, 1] {
                prop_assert_eq!(holds(packed, wanted), lanes.contains(&wanted));
                let mut removed = lanes;
                let expected = lanes.iter().position(|&lane| lane == wanted).map(|at| {
                    removed[at] = 0;
                    word(removed)
                });
                prop_assert_eq!(without(packed, wanted), expected);
                let mut added = lanes;
                let expected = lanes.iter().position(|&lane| lane == 0).map(|at| {
                    added[at] = wanted;
                    word(added)
                });
                prop_assert_eq!(with(packed, wanted), expected);
            }
            let empty = lanes.iter().filter(|&&lane| lane == 0).count();
            prop_assert_eq!(usize::try_from(empty_lanes(packed)), Ok(empty));
            prop_assert_eq!([0, 1, 2, 3].map(|at| lane(packed, at)), lanes);
        }
    }
}
