use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-chat")
}

/// The tiny model's encoder with a memo, and Hugging Face's tokenizer as Dynamo loads it.
static TINY: LazyLock<(TextEncoder, HuggingFaceTokenizer)> = LazyLock::new(|| {
    let dir = fixture();
    let encoder = TextEncoder::load(&dir, TokenizerBackend::Default, 1 << 20).unwrap();
    let (slow, _) = load_slow(&dir, &dir.join("tokenizer.json")).unwrap();
    (encoder, slow)
});

proptest! {
    #[test]
    fn memo_and_fast_tokenizer_give_the_ids_of_the_sites_own(
        pieces in prop::collection::vec(
            prop_oneof![
                Just("<|im_start|>".to_owned()),
                Just("<|im_end|>".to_owned()),
                Just("<|endoftext|>".to_owned()),
                Just("<|im_".to_owned()),
                "[a-z ]{0,12}",
                "\\PC{0,6}",
                "[ \\n\\t\\r]{1,4}",
            ],
            0..24,
        ),
    ) {
        let (encoder, slow) = &*TINY;
        let text = pieces.concat();

        prop_assert!(encoder.memo.is_some());
        prop_assert_eq!(encoder.encode(&text).unwrap(), encode_slow(slow, &text).unwrap());
    }
}

/// A directory with the tiny model's files, changed.
fn changed(change: impl Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let json = fs::read(fixture().join("tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    change(&mut json);
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    dir
}

#[test]
fn a_limit_in_the_tokenizers_file_cuts_no_prompt() {
    let dir = changed(|json| {
        json["truncation"] = serde_json::json!({
            "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0
        });
    });

    let encoder = TextEncoder::load(dir.path(), TokenizerBackend::Default, 0).unwrap();

    let text = "one two three four five six seven eight";
    assert_eq!(encoder.encode(text).unwrap(), TINY.0.encode(text).unwrap());
}

#[test]
fn a_special_token_of_the_configuration_alone_is_matched() {
    let dir = changed(|_| {});
    let config = serde_json::json!({"added_tokens_decoder": {"2048": {
        "content": "<|image_pad|>", "special": true, "normalized": false,
        "lstrip": false, "rstrip": false, "single_word": false
    }}});
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let (slow, _) = load_slow(dir.path(), &dir.path().join("tokenizer.json")).unwrap();

    let encoder = TextEncoder::load(dir.path(), TokenizerBackend::Default, 1 << 20).unwrap();

    let text = "a<|image_pad|>b";
    assert_eq!(encode_slow(&slow, text).unwrap().len(), 3);
    assert_eq!(
        encoder.encode(text).unwrap(),
        encode_slow(&slow, text).unwrap()
    );
}

#[test]
fn a_tokenizer_that_the_fast_one_does_not_know_is_encoded_by_the_slow_one() {
    let dir = changed(|json| {
        json["model"] = serde_json::json!({
            "type": "WordLevel", "unk_token": "?", "vocab": {"?": 3, "hello": 4}
        });
        json["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"});
    });

    let encoder = TextEncoder::load(dir.path(), TokenizerBackend::Default, 0).unwrap();

    assert!(
        matches!(encoder.kind(), EncoderKind::Slow { .. }),
        "{:?}",
        encoder.kind()
    );
    assert_eq!(encoder.encode("hello x").unwrap(), [4, 3]);
}

/// A real tokenizer of the folder that `KVGRID_SHARED` names, unpacked.
fn shared(test: &str, name: &str) -> Option<tempfile::TempDir> {
    let Some(shared) = std::env::var_os("KVGRID_SHARED") else {
        // Written past cargo's capture, so that it shows although the test passes.
        let reason = "KVGRID_SHARED names no folder of real tokenizers";
        writeln!(std::io::stderr(), "skipped: {test}: {reason}").unwrap();
        return None;
    };
    let from = Path::new(&shared).join("tokenizers").join(name);
    let dir = tempfile::tempdir().unwrap();
    let packed = from.join("tokenizer.json.xz");
    let unpacked = Command::new("xz").arg("-dc").arg(packed).output().unwrap();
    assert!(unpacked.status.success(), "xz could not unpack it");
    fs::write(dir.path().join("tokenizer.json"), unpacked.stdout).unwrap();
    let config = fs::read(from.join("tokenizer_config.json")).unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    Some(dir)
}

#[test]
fn real_tokenizers_are_encoded_fast_and_with_a_memo() {
    for name in ["qwen3", "gptoss"] {
        let Some(dir) = shared("real_tokenizers_are_encoded_fast_and_with_a_memo", name) else {
            return;
        };

        let encoder = TextEncoder::load(dir.path(), TokenizerBackend::Default, 1 << 20).unwrap();

        assert_eq!(encoder.kind(), &EncoderKind::Fast, "{name}");
        assert!(
            encoder.memo_stats().is_ok(),
            "{name}: {:?}",
            encoder.memo_stats()
        );
    }
}
