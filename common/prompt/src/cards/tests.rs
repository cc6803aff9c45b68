use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::CardOptions;

fn encoding(model: &str) -> (Digest, Vec<u8>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-chat");
    let options = CardOptions::new(model, NonZeroU32::new(16).unwrap());
    let bytes = Card::from_model_dir(&dir, options).unwrap().encode();
    (Card::digest_of(&bytes), bytes)
}

fn cards(max_cards: usize) -> Cards {
    let config = CardsConfig {
        max_cards,
        ..CardsConfig::default()
    };
    Cards::new(config).unwrap()
}

/// Waits until a card is loaded or refused.
fn settled(cards: &Cards, digest: &Digest) -> CardState {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match cards.state(digest) {
            Some(CardState::Loading) => assert!(Instant::now() < deadline, "still loading"),
            Some(state) => return state,
            None => panic!("the card is not known"),
        }
        thread::yield_now();
    }
}

#[test]
fn an_offered_card_is_loaded_in_the_background() {
    let cards = cards(8);
    let (digest, bytes) = encoding("tiny-chat");
    assert!(cards.state(&digest).is_none());

    assert!(matches!(cards.offer(digest, bytes), CardState::Loading));

    assert!(matches!(settled(&cards, &digest), CardState::Ready(_)));
    assert_eq!(cards.get(&digest).unwrap().model(), "tiny-chat");
}

#[test]
fn a_card_that_is_not_what_its_digest_says_is_refused_and_listed() {
    let cards = cards(8);
    let (digest, mut bytes) = encoding("tiny-chat");
    *bytes.last_mut().unwrap() ^= 1;

    cards.offer(digest, bytes);

    let CardState::Refused(reason) = settled(&cards, &digest) else {
        panic!("it was accepted");
    };
    assert_eq!(&*reason, "the bytes have another digest");
    assert!(cards.get(&digest).is_none());
    assert_eq!(cards.list().len(), 1);
}

#[test]
fn a_further_card_takes_the_place_of_the_one_unused_the_longest() {
    let cards = cards(2);
    let [first, second, third] = ["first", "second", "third"].map(encoding);
    for (digest, bytes) in [&first, &second] {
        cards.offer(*digest, bytes.clone());
        settled(&cards, digest);
    }
    assert!(cards.get(&first.0).is_some());

    cards.offer(third.0, third.1);

    assert!(matches!(settled(&cards, &third.0), CardState::Ready(_)));
    assert!(cards.get(&first.0).is_some());
    assert!(cards.state(&second.0).is_none());
}

#[test]
fn cards_that_are_being_loaded_make_no_room() {
    let cards = cards(0);
    let (digest, bytes) = encoding("tiny-chat");

    assert!(matches!(cards.offer(digest, bytes), CardState::Refused(_)));
    assert!(cards.list().is_empty());
}
