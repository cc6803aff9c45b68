use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MOST: usize = 10_000_000;

fn index(raw: u32) -> Index {
    Index::from_raw(raw).unwrap()
}

impl Lookup {
    /// Bytes of all buckets.
    fn bytes(&self) -> usize {
        let buckets = self.shards.iter().map(|shard| shard.buckets.len());
        buckets.sum::<usize>() * size_of::<Bucket>()
    }

    fn passed(&self) -> u32 {
        let buckets = self.shards.iter().flat_map(|shard| &shard.buckets);
        buckets.map(|bucket| bucket.passed).sum()
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len).sum()
    }
}

/// Keys by place.
type Keys = BTreeMap<u32, u64>;

fn found(lookup: &Lookup, keys: &Keys, hash: impl Fn(u64) -> u64, key: u64) -> Option<u32> {
    let is = |place: Index| keys.get(&place.raw()) == Some(&key);
    lookup.find(hash(key), is).map(Index::raw)
}

#[test]
fn a_key_takes_no_more_than_six_bytes_at_any_size() {
    let mut lookup = Lookup::new(MOST);

    for place in 1..600_000 {
        let hash = |place: Index| mixed(u64::from(place.raw()));
        lookup.insert(hash(index(place)), index(place), hash);

        if place > 200_000 && place % 1_000 == 0 {
            let a_key = lookup.bytes() as f64 / f64::from(place);
            assert!(a_key <= 6.0, "{a_key} bytes at {place}");
        }
    }
}

#[test]
fn keys_of_one_hash_are_all_found() {
    let mut lookup = Lookup::new(MOST);

    for place in 1..200 {
        lookup.insert(7, index(place), |_| 7);
    }

    for place in 1..200 {
        assert_eq!(
            lookup.find(7, |found| found.raw() == place),
            Some(index(place))
        );
    }
}

#[test]
fn the_largest_place_of_a_slab_is_found() {
    for most in [1, 2, 255, 256, MOST, u32::MAX as usize] {
        let last = index(u32::try_from(most).unwrap());
        let mut lookup = Lookup::new(most);

        lookup.insert(u64::MAX, last, |_| u64::MAX);

        assert_eq!(lookup.find(u64::MAX, |_| true), Some(last), "of {most}");
    }
}

proptest! {
    #[test]
    fn a_lookup_knows_what_was_put_in_and_not_taken_out(
        steps in prop::collection::vec((0u64..400, any::<bool>()), 1..1_500),
        // Few bits make many keys share a hash.
        hash_bits in 2u32..64,
    ) {
        let hash = |key: u64| mixed(key) >> (63 - hash_bits) << (63 - hash_bits);
        let mut lookup = Lookup::new(1_000);
        let mut keys = Keys::new();
        let mut places: BTreeMap<u64, u32> = BTreeMap::new();

        for (key, is_insert) in steps {
            match (is_insert, places.get(&key).copied()) {
                (true, None) => {
                    let place = (1..).find(|place| !keys.contains_key(place)).unwrap();
                    keys.insert(place, key);
                    places.insert(key, place);
                    lookup.insert(hash(key), index(place), |place| hash(keys[&place.raw()]));
                }
                (false, Some(place)) => {
                    lookup.remove(hash(key), index(place));
                    keys.remove(&place);
                    places.remove(&key);
                }
                (true, Some(_)) | (false, None) => {}
            }
            prop_assert_eq!(found(&lookup, &keys, hash, key), places.get(&key).copied());
        }

        prop_assert_eq!(lookup.len(), keys.len());
        for (key, place) in &places {
            prop_assert_eq!(found(&lookup, &keys, hash, *key), Some(*place));
        }
        for (key, place) in places {
            lookup.remove(hash(key), index(place));
        }
        prop_assert_eq!((lookup.len(), lookup.passed()), (0, 0));
    }
}
