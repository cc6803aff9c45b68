use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::filter::{Form, Header};

/// A table as large or small as wanted.
fn geometry(chunks: u32, chunk_buckets: u32) -> Geometry {
    Geometry::from_header(Header {
        chunks,
        chunk_buckets,
        slots: 4,
        fingerprint_bits: 16,
        key_id: 0,
    })
    .unwrap()
}

fn geometries() -> impl Strategy<Value = Geometry> {
    let buckets = (1_u32..=12).prop_map(|bits| 1 << bits);
    (1_u32..=40, buckets, forms())
        .prop_map(|(chunks, buckets, form)| geometry(chunks, buckets).with_form(form))
}

fn forms() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Filter), Just(Form::Exact)]
}

/// Random classes of the table, in order, often twice.
fn classes(geometry: &Geometry, count: usize, seed: u64) -> Vec<Class> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut classes: Vec<_> = (0..count)
        .map(|_| geometry.class_of_mixed(rng.random()))
        .collect();
    if count > 2 {
        classes[0] = classes[count / 2];
    }
    classes.sort_unstable();
    classes
}

/// Bytes that a multiset of so many classes out of so many carries for each of them.
fn entropy_bytes(classes: f64, universe: f64) -> f64 {
    ((universe / classes).log2() + core::f64::consts::LOG2_E) / 8.0
}

proptest! {
    #[test]
    fn classes_survive_the_wire(geometry in geometries(), part in 0.0..1.0, seed: u64) {
        let room = f64::from(u32::try_from(geometry.slots().min(20_000)).unwrap());
        #[allow(clippy::cast_possible_truncation, reason = "a part of at most 20,000")]
        let classes = classes(&geometry, (room * part) as usize, seed);

        let bytes = encode_classes(&geometry, &classes);

        prop_assert_eq!(decode_classes(&geometry, &bytes), Ok(classes));
    }

    #[test]
    fn cut_bytes_are_never_taken_for_whole_ones(
        geometry in geometries(), count in 1_usize..8, seed: u64, cut: prop::sample::Index,
    ) {
        let classes = classes(&geometry, count, seed);
        let bytes = encode_classes(&geometry, &classes);
        let cut = cut.index(bytes.len());

        // Without any byte there is the right form of no classes left.
        prop_assume!(cut > 0);

        prop_assert!(decode_classes(&geometry, &bytes[..cut]).is_err());
    }

    #[test]
    fn whatever_is_decoded_is_sorted_and_of_the_table(
        geometry in geometries(), bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        if let Ok(classes) = decode_classes(&geometry, &bytes) {
            prop_assert!(classes.is_sorted());
            prop_assert!(classes.iter().all(|class| geometry.has(*class)));
            prop_assert!(classes.len() <= bytes.len() * 8);
        }
    }

    #[test]
    fn a_changed_bit_is_refused_or_means_something_else(
        geometry in geometries(), count in 1_usize..50, seed: u64, flip: prop::sample::Index,
    ) {
        let classes = classes(&geometry, count, seed);
        let mut bytes = encode_classes(&geometry, &classes);
        let bit = flip.index(bytes.len() * 8);
        // The parameter is the sender's choice: another one may fit the same gaps.
        prop_assume!(bit / 8 != 1);

        bytes[bit / 8] ^= 1 << (bit % 8);

        prop_assert_ne!(decode_classes(&geometry, &bytes), Ok(classes));
    }

    #[test]
    fn a_chunk_is_decoded_under_its_own_number_only(
        chunks in 2_u32..40, form in forms(), count in 1_usize..50, seed: u64,
    ) {
        let whole = geometry(chunks, 64).with_form(form);
        let all = classes(&whole, count, seed);
        let chunk = whole.chunk(all[0]);
        let one: Vec<_> = all.into_iter().filter(|class| whole.chunk(*class) == chunk).collect();
        let bytes = encode_classes(&whole, &one);

        let elsewhere = decode_chunk(&whole, (chunk + 1) % chunks, &bytes);

        prop_assert_eq!(decode_chunk(&whole, chunk, &bytes), Ok(one));
        prop_assert_eq!(elsewhere, Err(CodecError::Class { index: 0 }));
    }
}

#[test]
fn a_full_chunk_takes_hardly_more_than_its_entropy() {
    let geometry = geometry(1, 4_096);
    let classes = classes(&geometry, 13_926, 1);

    let bytes = f64::from(u32::try_from(encode_classes(&geometry, &classes).len()).unwrap());

    let entropy = entropy_bytes(13_926.0, 2_048.0 * 65_535.0);
    assert!(bytes / 13_926.0 < 1.05 * entropy, "{bytes} bytes");
    assert!(bytes / 13_926.0 < 2.0, "{bytes} bytes");
}

#[test]
fn a_batch_on_a_large_table_takes_hardly_more_than_its_entropy() {
    let geometry = Geometry::for_capacity(10_000_000, 0);
    let classes = classes(&geometry, 10_000, 2);

    let bytes = f64::from(u32::try_from(encode_classes(&geometry, &classes).len()).unwrap());

    let entropy = entropy_bytes(10_000.0, f64::from(geometry.chunks()) * 2_048.0 * 65_535.0);
    assert!(bytes / 10_000.0 < 1.05 * entropy, "{bytes} bytes");
    assert!(bytes / 10_000.0 < 3.3, "{bytes} bytes");
}

#[test]
fn whole_hashes_take_hardly_more_than_their_entropy() {
    let geometry = Geometry::for_capacity(10_000_000, 0).with_form(Form::Exact);
    let (least, most) = (geometry.chunk_ranks(3), 2_f64.powi(64));
    let chunk = |class: &Class| least.contains(&geometry.rank(*class));
    let held = classes(&geometry, 10_000_000 / 8, 5);
    let held: Vec<_> = held.into_iter().filter(chunk).collect();
    let batch = classes(&geometry, 10_000, 6);

    for (classes, universe) in [(held, most / f64::from(geometry.chunks())), (batch, most)] {
        let count = f64::from(u32::try_from(classes.len()).unwrap());
        let bytes = encode_classes(&geometry, &classes).len();
        let bytes = f64::from(u32::try_from(bytes).unwrap()) / count;
        let entropy = entropy_bytes(count, universe);
        assert!(bytes < 1.05 * entropy, "{bytes} bytes, {entropy} at least");
    }
}

#[test]
fn the_first_and_the_last_of_all_hashes_survive_the_wire() {
    let geometry = geometry(3, 64).with_form(Form::Exact);
    let classes: Vec<_> = [0, u64::MAX]
        .map(|mixed| geometry.class_of_mixed(mixed))
        .into();

    let bytes = encode_classes(&geometry, &classes);

    assert!(bytes.len() < 64, "{} bytes", bytes.len());
    assert_eq!(decode_classes(&geometry, &bytes), Ok(classes));
}

#[test]
fn no_classes_are_no_bytes() {
    let geometry = geometry(3, 64);

    assert!(encode_classes(&geometry, &[]).is_empty());
    assert_eq!(decode_classes(&geometry, &[]), Ok(Vec::new()));
}

#[test]
fn a_count_beyond_the_table_is_refused_before_anything_is_allocated() {
    let geometry = geometry(1, 2);
    let mut bytes = BitWriter::with_capacity(0);
    bytes.varint(u64::MAX);

    let error = decode_classes(&geometry, &bytes.finish());

    let (count, limit) = (u64::MAX, 8 + 64);
    assert_eq!(error, Err(CodecError::Count { count, limit }));
}

#[test]
fn a_count_beyond_the_bytes_is_refused_before_anything_is_allocated() {
    let geometry = Geometry::for_capacity(10_000_000, 0);
    let mut bytes = BitWriter::with_capacity(0);
    bytes.varint(9_000_000);
    bytes.put(10, 8);
    bytes.varint(1);

    let error = decode_classes(&geometry, &bytes.finish());

    assert_eq!(error, Err(CodecError::Truncated));
}

#[test]
fn what_follows_the_classes_is_refused() {
    let geometry = geometry(3, 64);
    let mut bytes = encode_classes(&geometry, &classes(&geometry, 20, 3));
    bytes.push(0);

    assert_eq!(decode_classes(&geometry, &bytes), Err(CodecError::Trailing));
}

#[test]
fn a_class_without_a_fingerprint_is_refused() {
    let geometry = geometry(3, 64);
    let mut bytes = BitWriter::with_capacity(0);
    bytes.varint(1);
    bytes.put(0, 8);
    bytes.varint(1 << 16);

    let error = decode_classes(&geometry, &bytes.finish());

    assert_eq!(error, Err(CodecError::Class { index: 0 }));
}

#[test]
#[should_panic(expected = "in their order")]
fn unsorted_classes_are_a_bug() {
    let geometry = geometry(1, 64);
    let mut classes = classes(&geometry, 2, 4);
    classes.reverse();

    encode_classes(&geometry, &classes);
}
