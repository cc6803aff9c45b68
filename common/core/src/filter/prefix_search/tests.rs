use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::round::Look;
use super::*;
use crate::filter::{Form, Geometry, Writer};

fn key(byte: u8) -> MixKey {
    MixKey::from_bytes(&[byte; 32])
}

fn chain(blocks: usize, seed: u64) -> Vec<ChainHash> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..blocks).map(|_| ChainHash(rng.random())).collect()
}

/// A pool that holds these blocks.
fn pool<'a>(key: &MixKey, blocks: impl IntoIterator<Item = &'a ChainHash>) -> Reader {
    pool_of(Form::Filter, key, blocks)
}

fn pool_of<'a>(
    form: Form,
    key: &MixKey,
    blocks: impl IntoIterator<Item = &'a ChainHash>,
) -> Reader {
    let geometry = Geometry::for_capacity(2_000, key.id()).with_form(form);
    let mut writer = Writer::new(geometry);
    for block in blocks {
        writer.insert(geometry.class(key, *block)).unwrap();
    }
    writer.reader()
}

fn closed<'a>(reader: &'a Reader, key: &'a MixKey) -> Target<'a> {
    Target {
        reader,
        key,
        closed: true,
    }
}

fn holed<'a>(reader: &'a Reader, key: &'a MixKey) -> Target<'a> {
    Target {
        closed: false,
        ..closed(reader, key)
    }
}

/// Depths of pools that hold so many leading blocks of one chain.
fn depths_of(held: &[usize], chain: &[ChainHash]) -> Vec<u32> {
    let key = key(1);
    let pools: Vec<_> = held
        .iter()
        .map(|&held| pool(&key, &chain[..held]))
        .collect();
    let targets: Vec<_> = pools.iter().map(|pool| closed(pool, &key)).collect();
    depths(&targets, chain)
}

proptest! {
    #[test]
    fn closed_pools_are_searched_as_by_counting(
        length in 0_usize..600,
        parts in prop::collection::vec(0.0..=1.0, 0..9),
        seed: u64,
    ) {
        let chain = chain(length, seed);
        let key = key(1);
        let blocks = f64::from(u32::try_from(length).unwrap());
        #[allow(clippy::cast_possible_truncation, reason = "a part of at most 600")]
        let held: Vec<_> = parts.iter().map(|part| (part * blocks).round() as usize).collect();
        let pools: Vec<_> = held.iter().map(|&held| pool(&key, &chain[..held])).collect();
        let targets: Vec<_> = pools.iter().map(|pool| closed(pool, &key)).collect();

        let found = depths(&targets, &chain);

        prop_assert_eq!(found.len(), held.len());
        for ((depth, held), target) in found.into_iter().zip(held).zip(targets) {
            let (depth, class) = (depth as usize, |at: usize| target.reader.geometry().class(&key, chain[at]));
            prop_assert!(depth >= held);
            // Only a false hit can make it more, and then it is just behind the last block held.
            let false_hit = |at: &usize| target.reader.contains(class(*at));
            prop_assert!(depth == held || (held..length).any(|at| false_hit(&at)));
        }
    }

    #[test]
    fn the_deepest_pools_with_holes_are_confirmed(
        length in 1_usize..200,
        pools in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(any::<prop::sample::Index>(), 0..4)), 1..6,
        ),
        seed: u64,
    ) {
        let (chain, key) = (chain(length, seed), key(1));
        let whole_up_to = |holes: &[usize]| holes.iter().min().copied().unwrap_or(length);
        let pools: Vec<_> = pools.into_iter().map(|(closed, holes)| {
            let holes: Vec<_> = holes.iter().map(|hole| hole.index(length)).collect();
            let end = if closed { whole_up_to(&holes) } else { length };
            let held = (0..end).filter(|at| !holes.contains(at));
            (closed, whole_up_to(&holes), pool(&key, held.map(|at| &chain[at])))
        }).collect();
        let targets: Vec<_> = pools
            .iter()
            .map(|(closed, _, reader)| Target { reader, key: &key, closed: *closed })
            .collect();

        let found = depths(&targets, &chain);

        let deepest = found.iter().copied().max().unwrap();
        for ((depth, target), (closed, whole, _)) in found.iter().zip(&targets).zip(&pools) {
            prop_assert!(*depth as usize >= *whole);
            if *depth == deepest && !closed {
                prop_assert_eq!(*depth, confirm(*target, &chain, deepest));
            }
        }
    }
}

fn forms() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Filter), Just(Form::Exact)]
}

proptest! {
    #[test]
    fn exact_pools_are_as_deep_as_what_they_hold_beside_filters(
        length in 0_usize..400,
        pools in prop::collection::vec((forms(), any::<prop::sample::Index>()), 1..40),
        seed: u64,
    ) {
        let (chain, key) = (chain(length, seed), key(1));
        let pools: Vec<_> = pools.into_iter().map(|(form, part)| {
            let held = part.index(length + 1);
            (form, held, pool_of(form, &key, &chain[..held]))
        }).collect();
        let targets: Vec<_> = pools.iter().map(|(_, _, pool)| closed(pool, &key)).collect();

        let found = depths(&targets, &chain);

        for ((depth, target), (form, held, _)) in found.into_iter().zip(targets).zip(&pools) {
            match form {
                Form::Exact => prop_assert_eq!(depth as usize, *held),
                Form::Filter => prop_assert!(depth as usize >= *held),
            }
            prop_assert_eq!(depth, confirm(target, &chain, u32::MAX));
        }
    }

    #[test]
    fn exact_pools_with_holes_are_confirmed(
        length in 1_usize..200,
        holes in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        seed: u64,
    ) {
        let (chain, key) = (chain(length, seed), key(1));
        let holes: Vec<_> = holes.iter().map(|hole| hole.index(length)).collect();
        let held = (0..length).filter(|at| !holes.contains(at)).map(|at| &chain[at]);
        let pool = pool_of(Form::Exact, &key, held);

        let found = depths(&[holed(&pool, &key)], &chain);

        prop_assert_eq!(found[0] as usize, holes.iter().min().copied().unwrap_or(length));
    }

    #[test]
    fn many_pools_are_searched_as_few_whatever_they_have_in_common(
        length in 1_usize..300,
        few in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 17..60),
        seed: u64,
    ) {
        let (chain, key) = (chain(length, seed), key(1));
        let depths_there_are: Vec<_> = few.iter().map(|part| part.index(length + 1)).collect();
        let held: Vec<_> = choices.iter().map(|choice| *choice.get(&depths_there_are)).collect();
        let pools: Vec<_> = held.iter().map(|&held| pool(&key, &chain[..held])).collect();
        let targets: Vec<_> = pools.iter().map(|pool| closed(pool, &key)).collect();

        let together = depths(&targets, &chain);

        for ((depth, held), target) in together.into_iter().zip(held).zip(targets) {
            prop_assert!(depth as usize >= held);
            // Only a false hit just behind can make it more.
            prop_assert_eq!(depth, confirm(target, &chain, u32::MAX));
        }
    }

    #[test]
    fn an_interval_narrows_down_to_the_depth_in_few_rounds(
        blocks in 0_u32..2_000_000,
        form in forms(),
        part in 0.0..=1.0_f64,
        looks in 1_usize..20,
        common in prop::collection::vec(0_u32..100, 0..4),
    ) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of it")]
        let depth = (f64::from(blocks) * part) as u32;
        let (found, rounds) = narrowed((blocks, form), looks, &common, |length| length <= depth);

        prop_assert_eq!(found, depth);
        // An octave of lengths, then a place in it, and the common depths before.
        prop_assert!(rounds <= 2 * 21 + 8, "{rounds} rounds");
    }

    #[test]
    fn lengths_that_are_seen_by_mistake_are_given_up(
        blocks in 100_u32..10_000,
        depth in 0_u32..50,
        mistakes in prop::collection::btree_set(52_u32..10_000, 0..40),
        looks in 1_usize..20,
    ) {
        // No two of them stand together, or they'd be believed.
        let mistakes: Vec<_> = mistakes.into_iter().map(|length| length & !1).collect();
        let seen = |length| length <= depth || mistakes.contains(&length);

        let (found, _) = narrowed((blocks, Form::Filter), looks, &[], seen);

        prop_assert_eq!(found, depth);
    }
}

/// Narrows down an interval by what is seen of lengths; the depth, and the rounds it took.
fn narrowed(
    (blocks, form): (u32, Form),
    looks: usize,
    common: &[u32],
    seen: impl Fn(u32) -> bool,
) -> (u32, u32) {
    let mut known = Known::default();
    common
        .iter()
        .chain(common)
        .for_each(|depth| known.add(*depth));
    let mut interval = Interval::new(blocks, form);
    for round in 0..1_000 {
        if let Some(depth) = interval.depth() {
            return (depth, round);
        }
        let mut lengths = Vec::new();
        interval.plan(looks, &known, |length| lengths.push(length));
        assert!(!lengths.is_empty() && lengths.is_sorted_by(|a, b| a < b));
        assert!(lengths.iter().all(|length| (1..=blocks).contains(length)));
        let looks: Vec<_> = lengths
            .into_iter()
            .map(|length| Look::seen(length, seen(length)))
            .collect();
        interval.narrow(&looks);
    }
    panic!("{interval:?} doesn't end");
}

#[test]
fn nothing_is_found_of_an_empty_chain() {
    assert_eq!(depths_of(&[0, 0], &[]), [0, 0]);
}

#[test]
fn no_targets_have_no_depths() {
    assert!(depths_of(&[], &chain(10, 1)).is_empty());
}

#[test]
fn every_depth_of_a_short_chain_is_right() {
    for length in 1..40 {
        let chain = chain(length, 2);
        let all: Vec<_> = (0..=length).collect();

        let expected: Vec<_> = (0..=u32::try_from(length).unwrap()).collect();
        assert_eq!(depths_of(&all, &chain), expected, "of {length}");
    }
}

#[test]
fn a_false_hit_far_behind_the_last_block_is_not_believed() {
    let (chain, key) = (chain(200, 3), key(1));

    for false_hit in 11..200 {
        let pool = pool(&key, chain[..10].iter().chain([&chain[false_hit]]));

        assert_eq!(depths(&[closed(&pool, &key)], &chain), [10], "{false_hit}");
    }
}

#[test]
fn a_pool_with_a_hole_that_is_called_closed_is_overestimated() {
    // The reason for confirming: a search that jumps can't see every hole.
    let (chain, key) = (chain(64, 5), key(1));
    let pool = pool(&key, chain[..12].iter().chain(&chain[13..]));

    assert_eq!(depths(&[closed(&pool, &key)], &chain), [64]);
    assert_eq!(depths(&[holed(&pool, &key)], &chain), [12]);
}

#[test]
fn counting_stops_at_its_limit() {
    let (chain, key) = (chain(64, 6), key(1));
    let pool = pool(&key, &chain[..50]);

    assert_eq!(confirm(closed(&pool, &key), &chain, 20), 20);
    assert_eq!(confirm(closed(&pool, &key), &chain, 60), 50);
}

#[test]
fn pools_under_two_keys_are_searched_together() {
    let (chain, old, new) = (chain(300, 7), key(1), key(2));
    let pools = [pool(&old, &chain[..200]), pool(&new, &chain[..100])];
    let targets = [closed(&pools[0], &old), closed(&pools[1], &new)];

    assert_eq!(depths(&targets, &chain), [200, 100]);
}

#[test]
fn a_pool_asked_with_the_wrong_key_holds_nothing() {
    let (chain, right, wrong) = (chain(300, 8), key(1), key(2));
    let pool = pool(&right, &chain);

    assert_eq!(depths(&[closed(&pool, &wrong)], &chain), [0]);
    assert_eq!(confirm(closed(&pool, &wrong), &chain, 300), 0);
}
