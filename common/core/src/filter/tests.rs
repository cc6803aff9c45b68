//! The table against a plain multiset.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::block::ChainHash;

fn small(chunks: u32, chunk_buckets: u32) -> Geometry {
    Geometry::from_header(Header {
        chunks,
        chunk_buckets,
        slots: 4,
        fingerprint_bits: 16,
        key_id: 0,
    })
    .unwrap()
}

const FORMS: [Form; 2] = [Form::Filter, Form::Exact];

fn forms() -> impl Strategy<Value = Form> {
    prop::sample::select(&FORMS[..])
}

fn random_classes(geometry: &Geometry, count: u64, seed: u64) -> Vec<Class> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let class = |_| geometry.class_of_mixed(rng.random());
    (0..count).map(class).collect()
}

/// What the table should hold.
#[derive(Default)]
struct Model(BTreeMap<Class, u64>);

impl Model {
    fn insert(&mut self, class: Class) {
        *self.0.entry(class).or_default() += 1;
    }

    fn remove(&mut self, class: Class) -> bool {
        let Some(count) = self.0.get_mut(&class) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&class);
        }
        true
    }

    fn sorted(&self) -> Vec<Class> {
        let times =
            |(class, count): (&Class, &u64)| (0..*count).map(|_| *class).collect::<Vec<_>>();
        self.0.iter().flat_map(times).collect()
    }

    fn chunk(&self, geometry: &Geometry, chunk: u32) -> Vec<Class> {
        let mut classes = self.sorted();
        classes.retain(|class| geometry.chunk(*class) == chunk);
        classes
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(prop::sample::Index),
    Remove(prop::sample::Index),
    Replace(u32, Vec<prop::sample::Index>),
    Clear,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let replacement = prop::collection::vec(any::<prop::sample::Index>(), 0..12);
    let op = prop_oneof![
        20 => any::<prop::sample::Index>().prop_map(Op::Insert),
        12 => any::<prop::sample::Index>().prop_map(Op::Remove),
        1 => (0_u32..3, replacement).prop_map(|(chunk, classes)| Op::Replace(chunk, classes)),
        1 => Just(Op::Clear),
    ];
    prop::collection::vec(op, 0..300)
}

/// Few classes, so that many are there several times and buckets overflow.
fn domain(geometry: &Geometry, seed: u64) -> Vec<Class> {
    random_classes(geometry, 12, seed)
}

fn check_invariants(writer: &Writer, model: &Model, domain: &[Class]) {
    let reader = writer.reader();
    for class in model.0.keys() {
        assert!(reader.contains(*class), "{class:?} is missed");
    }
    // All classes of the domain have different fingerprints, so that no answer is by chance.
    for class in domain {
        assert_eq!(
            reader.contains(*class),
            model.0.contains_key(class),
            "{class:?}"
        );
    }
    let sorted = model.sorted();
    assert_eq!(writer.len(), sorted.len() as u64);
    let mut sum = 0_u64;
    for chunk in 0..writer.geometry().chunks() {
        let classes = model.chunk(writer.geometry(), chunk);
        let digest = classes
            .iter()
            .fold(0_u64, |sum, class| sum.wrapping_add(class.digest()));
        assert_eq!(writer.chunk_classes(chunk), classes);
        assert_eq!(writer.digest(chunk), digest);
        sum = sum.wrapping_add(digest);
    }
    assert_eq!(writer.digest_sum(), sum);
}

fn apply(writer: &mut Writer, model: &mut Model, domain: &[Class], op: Op) {
    match op {
        Op::Insert(which) => {
            let class = *which.get(domain);
            if writer.insert(class).is_ok() {
                model.insert(class);
            } else {
                // The overflow list is larger than this table, so only its load can be at fault.
                assert_eq!(writer.len(), writer.geometry().hard_capacity());
            }
        }
        Op::Remove(which) => {
            let class = *which.get(domain);
            assert_eq!(writer.remove(class), model.remove(class));
        }
        Op::Replace(chunk, classes) => {
            let mut classes: Vec<_> = classes.iter().map(|which| *which.get(domain)).collect();
            let geometry = *writer.geometry();
            classes.retain(|class| geometry.chunk(*class) == chunk);
            classes.sort_unstable();
            let replaced = writer.replace_chunk(chunk, &classes);
            let held = writer.chunk_classes(chunk);
            if replaced.is_ok() {
                assert_eq!(held, classes);
            } else {
                assert_eq!(writer.len(), writer.geometry().hard_capacity());
                assert!(held.iter().all(|class| classes.contains(class)));
            }
            model.0.retain(|class, _| geometry.chunk(*class) != chunk);
            held.into_iter().for_each(|class| model.insert(class));
        }
        Op::Clear => {
            writer.clear();
            model.0.clear();
        }
    }
}

proptest! {
    #[test]
    fn the_table_is_a_multiset(form in forms(), seed: u64, ops in ops(), bits in 1_u32..4) {
        let geometry = small(3, 1 << bits).with_form(form);
        let domain = domain(&geometry, seed);
        let mut distinct: Vec<_> = domain.iter().map(|class| geometry.seat(*class).fingerprint()).collect();
        distinct.sort_unstable();
        distinct.dedup();
        prop_assume!(distinct.len() == domain.len());
        let (mut writer, mut model) = (Writer::new(geometry), Model::default());

        for op in ops {
            apply(&mut writer, &mut model, &domain, op);
            check_invariants(&writer, &model, &domain);
        }
    }

    #[test]
    fn equal_content_has_equal_digests_in_any_order(
        form in forms(),
        classes in prop::collection::vec(0_usize..40, 0..60),
        shuffle: u64,
        extra in prop::collection::vec(0_usize..40, 0..20),
    ) {
        let geometry = small(2, 16).with_form(form);
        let domain = random_classes(&geometry, 40, 7);
        let (mut one, mut other) = (Writer::new(geometry), Writer::new(geometry));

        for &at in &classes {
            one.insert(domain[at]).unwrap();
        }
        // The same classes, others in between, in another order.
        let mut order = classes;
        for &at in &extra {
            other.insert(domain[at]).unwrap();
        }
        let mut rng = SmallRng::seed_from_u64(shuffle);
        while !order.is_empty() {
            let at = order.swap_remove(rng.random_range(0..order.len()));
            other.insert(domain[at]).unwrap();
        }
        for &at in &extra {
            prop_assert!(other.remove(domain[at]));
        }

        prop_assert_eq!(one.digest_sum(), other.digest_sum());
        for chunk in 0..geometry.chunks() {
            prop_assert_eq!(one.digest(chunk), other.digest(chunk));
            prop_assert_eq!(one.chunk_classes(chunk), other.chunk_classes(chunk));
        }
    }
}

#[test]
fn a_replica_built_from_coded_chunks_has_the_digests_of_its_master() {
    for form in FORMS {
        copy_a_table(Geometry::for_capacity(40_000, 0).with_form(form));
    }
}

fn copy_a_table(geometry: Geometry) {
    let mut master = Writer::new(geometry);
    for class in random_classes(&geometry, 40_000, 1) {
        master.insert(class).unwrap();
    }

    let mut replica = Writer::new(geometry);
    for chunk in 0..geometry.chunks() {
        let bytes = encode_classes(&geometry, &master.chunk_classes(chunk));
        let classes = decode_chunk(&geometry, chunk, &bytes).unwrap();
        replica.replace_chunk(chunk, &classes).unwrap();
    }

    assert_eq!(replica.len(), 40_000);
    assert_eq!(replica.digest_sum(), master.digest_sum());
    for chunk in 0..geometry.chunks() {
        assert_eq!(replica.digest(chunk), master.digest(chunk));
    }
}

#[test]
fn a_table_takes_its_hard_load_without_overflow_and_not_a_block_more() {
    for form in FORMS {
        fill_a_table(Geometry::for_capacity(40_000, 0).with_form(form));
    }
}

fn fill_a_table(geometry: Geometry) {
    let mut writer = Writer::new(geometry);
    let classes = random_classes(&geometry, geometry.hard_capacity() + 1, 2);
    let (last, fitting) = classes.split_last().unwrap();

    for class in fitting {
        writer.insert(*class).unwrap();
    }
    let digest = writer.digest_sum();
    let refused = writer.insert(*last);

    assert_eq!(writer.overflowed(), 0);
    assert!(writer.is_crowded());
    let capacity = geometry.hard_capacity();
    assert_eq!(refused, Err(InsertError::Full { capacity }));
    assert_eq!((writer.len(), writer.digest_sum()), (capacity, digest));
    let reader = writer.reader();
    assert!(fitting.iter().all(|class| reader.contains(*class)));
}

#[test]
fn false_positives_are_as_rare_as_the_load_allows() {
    let geometry = Geometry::for_capacity(40_000, 0);
    let mut writer = Writer::new(geometry);
    for class in random_classes(&geometry, geometry.soft_capacity(), 3) {
        writer.insert(class).unwrap();
    }
    let reader = writer.reader();

    let absent = random_classes(&geometry, 2_000_000, 4);
    let found = absent
        .iter()
        .filter(|class| reader.contains(**class))
        .count();

    // Eight slots at load 0.85 out of 65,535 fingerprints; the bound of the design is 1.15 times it.
    let expected = 2_000_000.0 * 8.0 * 0.85 / 65_535.0;
    let found = f64::from(u32::try_from(found).unwrap());
    assert!(
        found < 1.15 * expected,
        "{found} of 2,000,000, not {expected:.0}"
    );
    assert!(
        found > 0.85 * expected,
        "{found} of 2,000,000, not {expected:.0}"
    );
}

#[test]
fn an_exact_table_finds_nothing_that_is_not_there() {
    let geometry = Geometry::for_capacity(40_000, 0).with_form(Form::Exact);
    let mut writer = Writer::new(geometry);
    let held = random_classes(&geometry, geometry.soft_capacity(), 3);
    for class in &held {
        writer.insert(*class).unwrap();
    }
    let reader = writer.reader();

    let absent = random_classes(&geometry, 2_000_000, 4);

    assert!(held.iter().all(|class| reader.contains(*class)));
    assert!(!absent.iter().any(|class| reader.contains(*class)));
}

#[test]
fn an_exact_table_takes_eight_bytes_a_slot() {
    let filter = Geometry::for_capacity(40_000, 0);
    let exact = filter.with_form(Form::Exact);

    assert_eq!(exact.slots(), filter.slots());
    assert_eq!(exact.bytes(), 4 * filter.bytes());
    assert_eq!(exact.header().fingerprint_bits, 64);
    assert_eq!(Geometry::from_header(exact.header()), Ok(exact));
}

#[test]
fn entries_without_a_place_are_found_and_settle_when_there_is_one() {
    for form in FORMS {
        overflow_a_pair(small(1, 64).with_form(form));
    }
}

fn overflow_a_pair(geometry: Geometry) {
    let mut writer = Writer::new(geometry);
    let class = random_classes(&geometry, 1, 5)[0];
    let reader = writer.reader();

    for _ in 0..10 {
        writer.insert(class).unwrap();
    }
    assert_eq!(writer.overflowed(), 2);
    assert_eq!(writer.chunk_classes(0), vec![class; 10]);
    for left in (0..10).rev() {
        assert!(reader.contains(class), "{left} left");
        assert!(writer.remove(class));
    }

    assert_eq!(writer.overflowed(), 0);
    assert!(!reader.contains(class));
    assert!(!writer.remove(class));
}

#[test]
fn an_overflowed_entry_settles_when_another_class_leaves_its_bucket() {
    let geometry = small(40, 2);
    let mut writer = Writer::new(geometry);
    let classes: Vec<_> = (1..=9)
        .map(|fingerprint| geometry.class_at(0, 0, fingerprint).unwrap())
        .collect();
    for class in &classes {
        writer.insert(*class).unwrap();
    }
    assert_eq!(writer.overflowed(), 1);

    assert!(writer.remove(classes[0]));

    assert_eq!(writer.overflowed(), 0);
    assert_eq!(writer.chunk_classes(0), classes[1..]);
}

#[test]
fn a_full_overflow_list_refuses_and_changes_nothing() {
    let mut writer = Writer::new(small(40, 2));
    let class = writer.geometry().class_at(3, 0, 9).unwrap();
    for _ in 0..8 + 64 {
        writer.insert(class).unwrap();
    }
    let digest = writer.digest_sum();

    let refused = writer.insert(class);

    let capacity = writer.geometry().hard_capacity();
    assert_eq!(refused, Err(InsertError::Full { capacity }));
    assert_eq!((writer.len(), writer.digest_sum()), (72, digest));
}

#[test]
fn classes_of_another_geometry_are_refused() {
    let (small, large) = (small(1, 64), small(9, 64));
    let mut writer = Writer::new(small);
    let class = large.class_at(8, 2, 1).unwrap();

    let inserted = writer.insert(class);

    assert_eq!(inserted, Err(InsertError::Foreign { class, chunks: 1 }));
    assert!(!writer.remove(class));
    assert!(!writer.reader().contains(class));
    assert_eq!(
        writer.replace_chunk(0, &[class]),
        Err(ReplaceError::Foreign { class, chunk: 0 })
    );
    assert_eq!(writer.chunk_classes(8), []);
}

#[test]
fn a_chunk_is_not_replaced_by_unsorted_classes() {
    let mut writer = Writer::new(small(1, 64));
    let classes = [2, 1].map(|fingerprint| writer.geometry().class_at(0, 0, fingerprint).unwrap());

    let replaced = writer.replace_chunk(0, &classes);

    assert_eq!(replaced, Err(ReplaceError::Unsorted { chunk: 0 }));
    assert!(writer.is_empty());
}

#[test]
fn the_capacity_asked_for_fits_below_the_soft_load() {
    for blocks in [0, 1, 13_926, 13_927, 10_000_000, 100_000_000] {
        let geometry = Geometry::for_capacity(blocks, 5);

        assert!(geometry.soft_capacity() >= blocks);
        assert!(geometry.soft_capacity() < blocks + 13_927);
        assert_eq!(geometry.key_id(), 5);
        assert_eq!(Geometry::from_header(geometry.header()), Ok(geometry));
    }
}

#[test]
fn no_table_is_larger_than_the_largest() {
    let largest = Geometry::for_capacity(u64::MAX, 0);

    assert_eq!(largest.bytes(), 2 << 30);
    assert_eq!(Geometry::from_header(largest.header()), Ok(largest));
}

#[test]
fn headers_of_other_shapes_are_refused() {
    let header = small(3, 64).header();
    let refused = |header| Geometry::from_header(header).unwrap_err();

    assert_eq!(
        refused(Header {
            chunks: 0,
            ..header
        }),
        GeometryError::Chunks(0)
    );
    let too_many = Header {
        chunks: 65_537,
        ..header
    };
    assert_eq!(refused(too_many), GeometryError::Chunks(65_537));
    for buckets in [0, 1, 3, 8_192, 65_536 + 64] {
        let header = Header {
            chunk_buckets: buckets,
            ..header
        };
        assert_eq!(refused(header), GeometryError::ChunkBuckets(buckets));
    }
    assert_eq!(
        refused(Header { slots: 5, ..header }),
        GeometryError::Slots(5)
    );
    let wide = Header {
        fingerprint_bits: 12,
        ..header
    };
    assert_eq!(refused(wide), GeometryError::FingerprintBits(12));
}

proptest! {
    #[test]
    fn a_class_is_recovered_from_either_of_its_buckets(mixed: u64, chunks in 1_u32..700, bits in 1_u32..13) {
        let geometry = small(chunks, 1 << bits);

        let class = geometry.class_of_mixed(mixed);
        let seat = geometry.seat(class);
        let odd = geometry.alternate(seat.bucket(), seat.fingerprint());

        prop_assert!(geometry.has(class));
        prop_assert_eq!(odd % 2, 1);
        prop_assert!(u32::from(odd) < 1 << bits);
        for bucket in [seat.bucket(), odd] {
            let stored = geometry.class_of_stored(seat.chunk(), bucket, seat.fingerprint());
            prop_assert_eq!(stored, class);
        }
        prop_assert_eq!(geometry.class_of_rank(geometry.rank(class)), Some(class));
    }

    #[test]
    fn a_whole_hash_belongs_where_its_fingerprint_would(mixed: u64, chunks in 1_u32..700, bits in 1_u32..13) {
        let filter = small(chunks, 1 << bits);
        let exact = filter.with_form(Form::Exact);

        let (class, fingerprint) = (exact.class_of_mixed(mixed), filter.class_of_mixed(mixed));

        prop_assert!(exact.has(class));
        prop_assert!(exact.seat(class) == filter.seat(fingerprint));
        prop_assert_eq!(exact.chunk(class), filter.chunk(fingerprint));
        prop_assert_eq!(exact.class_of_rank(exact.rank(class)), Some(class));
    }

    #[test]
    fn each_place_belongs_to_the_chunk_of_its_class(form in forms(), mixed: u64, chunks in 1_u32..700) {
        let geometry = small(chunks, 8).with_form(form);
        let class = geometry.class_of_mixed(mixed);
        let (own, rank) = (geometry.chunk(class), geometry.rank(class));

        let of = (0..chunks).filter(|chunk| geometry.chunk_ranks(*chunk).contains(&rank));

        prop_assert_eq!(of.collect::<Vec<_>>(), [own]);
        prop_assert!(geometry.ranks().contains(&rank));
    }

    #[test]
    fn classes_and_their_places_have_one_order(form in forms(), one: u64, other: u64) {
        let geometry = small(5, 8).with_form(form);
        let (one, other) = (geometry.class_of_mixed(one), geometry.class_of_mixed(other));

        prop_assert_eq!(one.cmp(&other), geometry.rank(one).cmp(&geometry.rank(other)));
    }
}

#[test]
fn hashes_spread_evenly_over_chunks_and_fingerprints() {
    let geometry = Geometry::for_capacity(100_000, 0);
    let key = MixKey::from_bytes(&[3; 32]);
    let mut chunks = vec![0_u32; geometry.chunks() as usize];
    let mut high_fingerprints = 0_u32;

    for hash in 0..80_000 {
        let class = geometry.class(&key, ChainHash(hash));
        let seat = geometry.seat(class);
        chunks[seat.chunk() as usize] += 1;
        high_fingerprints += u32::from(seat.fingerprint() > 0x7fff);
    }

    // Eight chunks of 10,000 and 40,000 of either half, give or take five standard deviations.
    assert!(
        chunks.iter().all(|count| count.abs_diff(10_000) < 470),
        "{chunks:?}"
    );
    assert!(
        high_fingerprints.abs_diff(40_000) < 710,
        "{high_fingerprints}"
    );
}
