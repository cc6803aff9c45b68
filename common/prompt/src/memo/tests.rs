use std::cell::RefCell;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

/// An encoder whose ids show how the text was cut: a length for each word, 0 between words.
fn words(text: &str) -> Result<Vec<u32>, Infallible> {
    let mut ids = Vec::new();
    for word in text.split(' ') {
        ids.push(u32::try_from(word.len()).unwrap());
        ids.push(0);
    }
    ids.pop();
    Ok(ids)
}

fn memo(budget: usize) -> Memo {
    let boundary = |(text, id): (&str, u32)| Boundary {
        text: text.into(),
        id,
    };
    Memo::new(&[("<a>", 900), ("<ab>", 901)].map(boundary), budget).unwrap()
}

fn added(text: &str) -> AddedToken {
    AddedToken {
        text: text.into(),
        id: 7,
        normalized: false,
        contextual: false,
    }
}

#[test]
fn a_text_is_cut_at_the_longest_leftmost_added_token() {
    let memo = memo(1 << 20);

    let ids = memo.encode("xx<ab>y<a<a>", words).unwrap();

    assert_eq!(ids, [2, 901, 3, 900]);
}

#[test]
fn a_segment_seen_before_is_not_encoded_again() {
    let memo = memo(1 << 20);
    let encoded = RefCell::new(Vec::new());
    let plain = |text: &str| {
        encoded.borrow_mut().push(text.to_owned());
        words(text)
    };

    let first = memo.encode("hello<a>world", plain).unwrap();
    let second = memo.encode("hello<a>world<a>again", plain).unwrap();

    assert_eq!(second[..first.len()], first[..]);
    assert_eq!(*encoded.borrow(), ["hello", "world", "again"]);
    assert_eq!((memo.stats().hits, memo.stats().misses), (2, 3));
}

#[test]
fn an_encoders_error_is_passed_on_and_not_kept() {
    let memo = memo(1 << 20);

    assert_eq!(memo.encode("x", |_| Err("no")), Err("no"));
    assert_eq!(memo.encode("x", words), Ok(vec![1]));
}

#[test]
fn the_memo_keeps_within_its_bytes_and_forgets_what_nobody_asks_for() {
    let budget = 64 << 10;
    let memo = memo(budget);

    for round in 0..5000 {
        memo.encode(&format!("segment {round}"), words).unwrap();
        memo.encode("always wanted", words).unwrap();
        assert!(memo.stats().bytes <= budget);
    }

    assert!(memo.stats().bytes > budget / 4);
    assert_eq!(memo.stats().misses, 5001);
}

#[test]
fn an_entry_too_large_for_a_shard_is_encoded_and_not_kept() {
    let memo = memo(16 << 10);
    let large = "x ".repeat(4000);

    memo.encode(&large, words).unwrap();

    assert_eq!(memo.stats().bytes, 0);
}

#[test]
fn tokenizers_that_look_at_the_texts_ends_are_not_cut() {
    let refused = [
        r#"{"normalizer": {"type": "Prepend", "prepend": "_"}}"#,
        r#"{"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}}"#,
        r#"{"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"}}"#,
        r#"{"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "ByteLevel", "add_prefix_space": true}]}}"#,
    ];
    for json in refused {
        assert!(
            boundaries(json.as_bytes(), &[added("<a>")]).is_err(),
            "{json}"
        );
    }

    let usual = br#"{"normalizer": {"type": "NFC"}, "model": {"vocab": {}},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}}"#;
    assert!(boundaries(usual, &[added("<a>")]).is_ok());
}

#[test]
fn only_tokens_matched_literally_are_boundaries() {
    let normalized = AddedToken {
        normalized: true,
        contextual: true,
        ..added("<n>")
    };
    let contextual = AddedToken {
        contextual: true,
        ..added("<c>")
    };

    let found = boundaries(b"{}", &[added("<a>"), normalized.clone()]).unwrap();

    assert_eq!(found.len(), 1);
    assert!(boundaries(b"{}", &[normalized]).is_err());
    assert!(boundaries(b"{}", &[added("<a>"), contextual]).is_err());
}

/// What a tokenizer does: added tokens first, then the words of each text between them.
fn plain(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let (mut from, mut at) = (0, 0);
    let flush = |ids: &mut Vec<u32>, segment: &str| {
        if !segment.is_empty() {
            ids.extend(words(segment).unwrap());
        }
    };
    while at < text.len() {
        let found = [("<ab>", 901), ("<a>", 900)]
            .into_iter()
            .find(|(token, _)| text[at..].starts_with(token));
        match found {
            Some((token, id)) => {
                flush(&mut ids, &text[from..at]);
                ids.push(id);
                at += token.len();
                from = at;
            }
            None => at += 1,
        }
    }
    flush(&mut ids, &text[from..]);
    ids
}

proptest! {
    #[test]
    fn the_memo_changes_no_ids(
        texts in prop::collection::vec("([ a-c]|<a>|<ab>|<){0,24}", 1..20),
        budget in 0_usize..40_000,
    ) {
        let memo = memo(budget);
        for text in texts {
            prop_assert_eq!(memo.encode(&text, words).unwrap(), plain(&text));
        }
    }
}
