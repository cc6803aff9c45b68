use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-chat")
}

fn options() -> CardOptions {
    CardOptions {
        time_zone: Some("UTC".into()),
        ..CardOptions::new("tiny-chat", NonZeroU32::new(16).unwrap())
    }
}

fn card() -> Card {
    Card::from_model_dir(&fixture(), options()).unwrap()
}

#[test]
fn a_card_takes_what_the_model_directory_says() {
    let card = card();

    assert_eq!(card.context_length, 131_072);
    assert_eq!(card.model_type.as_deref(), Some("llama"));
    assert_eq!(
        card.file("tokenizer.json").map(|file| file.len()),
        Some(124_825)
    );
    assert!(card.file("chat_template.jinja").is_none());
}

#[test]
fn files_make_the_same_card_as_their_directory() {
    let read = |name: &str| fs::read(fixture().join(name)).unwrap();
    let names = ["config.json", "tokenizer.json", "tokenizer_config.json"];
    let files = names.map(|name| (name.to_owned(), read(name)));

    let made = Card::from_files(files.clone().into(), options()).unwrap();

    assert_eq!(made.encode(), card().encode());
    let mut odd: BTreeMap<_, _> = files.into();
    odd.insert("weights.bin".into(), Vec::new());
    assert!(Card::from_files(odd, options()).is_err());
    let none = Card::from_files(BTreeMap::new(), options()).unwrap_err();
    assert_eq!(
        none.to_string(),
        "the model directory has no tokenizer.json"
    );
}

#[test]
fn a_card_survives_its_encoding_and_keeps_its_digest() {
    let mut card = card();
    card.chat.template_args =
        serde_json::from_str(r#"{"b": {"z": 1, "a": [1.50, "x"]}, "a": null}"#).unwrap();
    card.chat.context = vec![ContextMixin::Llama3DateTime];

    let encoded = card.encode();
    let decoded = Card::decode(&encoded).unwrap();

    assert_eq!(decoded, card);
    assert_eq!(decoded.digest(), Card::digest_of(&encoded));
}

#[test]
fn every_change_changes_the_digest() {
    let mut other = card();
    other.chat.exclude_tools_when_tool_choice_none = false;

    assert_ne!(other.digest(), card().digest());
}

#[test]
fn a_damaged_card_is_refused_wherever_it_is_cut() {
    let encoded = card().encode();

    for end in (0..600).chain([encoded.len() - 1]) {
        assert!(Card::decode(&encoded[..end]).is_err(), "cut at {end}");
    }
    let mut longer = encoded;
    longer.push(0);
    assert_eq!(
        Card::decode(&longer).unwrap_err().to_string(),
        "not a card: bytes after the last file"
    );
}

fn with_header(change: impl Fn(&str) -> String) -> Result<Card, CardError> {
    let encoded = card().encode();
    let start = MAGIC.len() + 4;
    let length = u32::from_le_bytes(encoded[MAGIC.len()..start].try_into().unwrap());
    let end = start + usize::try_from(length).unwrap();
    let header = change(std::str::from_utf8(&encoded[start..end]).unwrap());
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&u32::try_from(header.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&encoded[end..]);
    Card::decode(&bytes)
}

#[test]
fn a_field_this_build_does_not_know_is_refused_by_name() {
    let error = with_header(|header| header.replacen("\"model\"", "\"modle\":1,\"model\"", 1));

    assert!(error.unwrap_err().to_string().contains("`modle`"));
}

#[test]
fn a_second_spelling_of_a_card_is_refused() {
    let error = with_header(|header| header.replacen("{\"card\"", "{ \"card\"", 1));

    assert_eq!(
        error.unwrap_err().to_string(),
        "not a card: the header is not in canonical form"
    );
}

#[test]
fn a_file_that_no_card_has_is_refused() {
    let error = with_header(|header| header.replacen("tokenizer.json", "../../passwd", 1));

    assert!(error.unwrap_err().to_string().contains("../../passwd"));
}

proptest! {
    /// Whatever arrives, either it is refused or it is the one encoding of what it says.
    #[test]
    fn changed_bytes_are_refused_or_read_as_they_are(
        changes in prop::collection::vec((0_usize..900, any::<u8>()), 1..4),
    ) {
        let mut bytes = card().encode();
        for (at, byte) in changes {
            bytes[at] = byte;
        }

        if let Ok(read) = Card::decode(&bytes) {
            prop_assert_eq!(read.encode(), bytes);
        }
    }
}

#[test]
fn a_card_that_is_too_large_is_refused_before_it_is_read() {
    let error = Card::decode(&vec![0; Card::MAX_BYTES + 1]).unwrap_err();

    assert!(matches!(error, CardError::TooLarge { .. }));
}

#[test]
fn a_directory_without_a_tokenizer_is_refused_by_the_files_name() {
    let empty = tempfile::tempdir().unwrap();

    let error = Card::from_model_dir(empty.path(), options()).unwrap_err();

    assert_eq!(
        error.to_string(),
        "the model directory has no tokenizer.json"
    );
}

#[test]
fn a_template_of_the_operators_choice_replaces_the_models() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(
        fixture().join("tokenizer.json"),
        dir.path().join("tokenizer.json"),
    )
    .unwrap();
    fs::write(dir.path().join("chat_template.jinja"), "model's").unwrap();
    fs::write(dir.path().join("own.jinja"), "operator's").unwrap();
    let template = |options| {
        let card = Card::from_model_dir(dir.path(), options).unwrap();
        card.file("chat_template.jinja").unwrap().to_vec()
    };

    assert_eq!(template(options()), b"model's");
    let own = CardOptions {
        chat_template: Some(dir.path().join("own.jinja")),
        ..options()
    };
    assert_eq!(template(own), b"operator's");
}

#[test]
fn a_site_with_other_versions_or_another_tokenizer_is_not_supported() {
    let mut card = card();
    assert_eq!(card.supported(), Ok(()));

    card.tokenizer_backend = TokenizerBackend::Basetenkenizer;
    assert!(card.supported().is_err());

    card.tokenizer_backend = TokenizerBackend::Default;
    card.software.renderer = "10.0.0".into();
    assert_eq!(
        card.supported().unwrap_err().to_string(),
        "the site runs dynamo-renderer 10.0.0, this build has 8.0.3"
    );
}

#[test]
fn the_versions_named_are_the_versions_built() {
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    let lock = fs::read_to_string(lock).unwrap();
    let Software {
        renderer,
        tokenizers,
        protocols,
    } = Software::current();

    for (name, version) in [
        ("renderer", renderer),
        ("tokenizers", tokenizers),
        ("protocols", protocols),
    ] {
        let entry = format!("name = \"dynamo-{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&entry), "{entry}");
    }
}
