use proptest::prelude::*;

use super::*;

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn predictions(max_blocks: usize) -> Predictions {
    let key = MixKey::from_bytes(&[7; 32]);
    Predictions::new(PredictionConfig { max_blocks }, key)
}

fn chain(seed: u64, length: u64) -> Vec<ChainHash> {
    let block = |at: u64| ChainHash(xxhash_rust::xxh3::xxh3_64(&(seed << 32 | at).to_le_bytes()));
    (0..length).map(block).collect()
}

fn place(of: &Predictions, site: &str, model: u64) -> Place {
    let site = SiteId::new(site).unwrap();
    of.predicted().place(&site, ModelId(model))
}

/// How deep a chain is expected at fra, of which nothing else is known.
fn depth(of: &Predictions, chain: &[ChainHash]) -> u32 {
    of.predicted().extend(&place(of, "fra", 1), chain, 0)
}

#[test]
fn what_was_sent_is_expected_there_and_nowhere_else() {
    let mut all = predictions(1_000);
    let sent = chain(1, 100);
    let fra = place(&all, "fra", 1);

    all.note(&fra, &sent, at(10));

    assert_eq!(depth(&all, &sent), 100);
    assert_eq!(depth(&all, &sent[..64]), 64);
    assert_eq!(depth(&all, &chain(2, 100)), 0);
    for (site, model) in [("iad", 1), ("fra", 2)] {
        let other = place(&all, site, model);
        assert_eq!(all.predicted().extend(&other, &sent, 0), 0);
    }
}

#[test]
fn what_is_held_is_extended_by_what_was_sent_beyond_it() {
    let mut all = predictions(1_000);
    let sent = chain(1, 100);
    let fra = place(&all, "fra", 1);
    all.note(&fra, &sent[40..], at(10));
    let extend = |depth| all.predicted().extend(&fra, &sent, depth);

    assert_eq!(extend(40), 100);
    assert_eq!(extend(70), 100);
    // What the note begins with was evicted since.
    assert_eq!(extend(39), 39);
    assert_eq!(extend(100), 100);
    assert_eq!(extend(200), 100);
}

#[test]
fn a_note_counts_until_its_time_unless_it_is_given_another() {
    let mut all = predictions(1_000);
    let (one, two) = (chain(1, 10), chain(2, 10));
    let fra = place(&all, "fra", 1);
    all.note(&fra, &one, at(10));
    let longer = all.note(&fra, &two, at(10));
    all.extend(longer, at(20));

    assert_eq!(all.poll_timeout(), Some(at(10)));
    all.handle_timeout(at(10));
    assert_eq!((depth(&all, &one), depth(&all, &two)), (0, 10));
    all.handle_timeout(at(20));
    assert_eq!((depth(&all, &two), all.blocks()), (0, 0));
    assert_eq!(all.poll_timeout(), None);
    all.extend(longer, at(30));
    assert_eq!(all.poll_timeout(), None);
}

#[test]
fn what_two_requests_have_sent_is_expected_until_both_are_over() {
    let mut all = predictions(1_000);
    let sent = chain(1, 20);
    let fra = place(&all, "fra", 1);
    let one = all.note(&fra, &sent, at(10));
    let two = all.note(&fra, &sent[..10], at(10));

    all.end(one);
    assert_eq!(depth(&all, &sent), 10);
    all.end(two);
    all.end(two);
    assert_eq!(depth(&all, &sent), 0);
}

#[test]
fn past_the_bound_the_notes_that_would_end_first_go() {
    let mut all = predictions(100);
    let (one, two, three) = (chain(1, 60), chain(2, 40), chain(3, 50));
    let fra = place(&all, "fra", 1);
    all.note(&fra, &one, at(20));
    all.note(&fra, &two, at(10));

    all.note(&fra, &three, at(30));

    assert_eq!(depth(&all, &one), 0);
    assert_eq!(depth(&all, &two), 0);
    assert_eq!(depth(&all, &three), 50);
    all.note(&fra, &chain(4, 1_000), at(40));
    assert_eq!(all.blocks(), 100);
    assert_eq!(depth(&all, &chain(4, 1_000)), 100);
}

proptest! {
    #[test]
    fn any_history_leaves_what_its_open_notes_say(
        steps in proptest::collection::vec((0u64..4, 1u64..40, 0u64..20, 0usize..12), 1..60),
    ) {
        let mut all = predictions(10_000);
        let fra = place(&all, "fra", 1);
        let mut open: Vec<(NoteId, u64, u64, u64)> = Vec::new();
        for (now, (seed, length, lasts, what)) in steps.into_iter().enumerate() {
            let now = now as u64;
            match what {
                0..3 if what < open.len() => {
                    let (id, ..) = open.remove(what);
                    all.end(id);
                }
                3..6 => {
                    all.handle_timeout(at(now));
                    open.retain(|(_, _, _, until)| *until > now);
                }
                _ => {
                    let until = now + lasts;
                    let id = all.note(&fra, &chain(seed, length), at(until));
                    open.push((id, seed, length, until));
                }
            }
            for seed in 0..4 {
                let of_seed = open.iter().filter(|(_, of, ..)| *of == seed);
                let most = of_seed.map(|(_, _, length, _)| *length).max().unwrap_or(0);
                prop_assert_eq!(u64::from(depth(&all, &chain(seed, 50))), most);
            }
        }
    }
}
