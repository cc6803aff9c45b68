//! Text to token ids, as the site's tokenizer does it.
//!
//! `fastokens` is ten to fifty times faster than Hugging Face's tokenizers. For a site that
//! runs the latter it is used only after both agreed on fixed and on random texts when the
//! card was loaded; else the slower one is used, which [`EncoderKind`] tells.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;

use dynamo_renderer::RenderedPrompt;
use dynamo_tokenizers::HuggingFaceTokenizer;
use dynamo_tokenizers::hf::merge_special_tokens_from_config;
use dynamo_tokenizers::traits::Encoder as _;
use tokenizers::Tokenizer as HfTokenizer;

use crate::card::TokenizerBackend;
use crate::memo::{self, AddedToken, Memo, MemoStats};
use crate::verify;

/// Which implementation encodes a model's texts, and why not the fast one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncoderKind {
    /// The fast one, which agreed with the site's on every text tried.
    Fast,
    /// The slow one.
    Slow {
        /// Why the fast one isn't used.
        because: String,
    },
}

/// Bytes of text to warm up each thread with: as much as the fast one gives to one, twice.
const WARM_UP_BYTES: usize = 128 << 10;
/// Threads that are warmed up at most.
const MAX_WARM_UP: usize = 32;

pub(crate) struct TextEncoder {
    backend: Backend,
    kind: EncoderKind,
    memo: Option<Memo>,
    memo_off_because: Option<String>,
}

enum Backend {
    Fast(Box<fastokens::Tokenizer>),
    HuggingFace(Box<HuggingFaceTokenizer>),
}

impl TextEncoder {
    /// Loads the tokenizer that lies in `dir`, which holds tokenizer.json and, where the
    /// model has it, tokenizer_config.json.
    pub(crate) fn load(
        dir: &Path,
        site: TokenizerBackend,
        memo_bytes: usize,
    ) -> Result<Self, String> {
        let path = dir.join("tokenizer.json");
        let (backend, kind, added) = match site {
            TokenizerBackend::Fastokens => Self::as_fastokens_site(dir, &path)?,
            TokenizerBackend::Default | TokenizerBackend::Basetenkenizer => {
                Self::as_default_site(dir, &path)?
            }
        };
        let mut encoder = Self {
            backend,
            kind,
            memo: None,
            memo_off_because: None,
        };
        encoder.warm_up();
        match encoder.safe_memo(&path, &added, memo_bytes) {
            Ok(memo) => encoder.memo = Some(memo),
            Err(because) => encoder.memo_off_because = Some(because),
        }
        Ok(encoder)
    }

    /// A site told to use fastokens falls back to the slow one only if that can't be loaded.
    fn as_fastokens_site(
        dir: &Path,
        path: &Path,
    ) -> Result<(Backend, EncoderKind, Vec<AddedToken>), String> {
        match load_fast(path) {
            Ok(fast) => {
                let added = fast_added_tokens(&fast);
                Ok((Backend::Fast(Box::new(fast)), EncoderKind::Fast, added))
            }
            Err(because) => {
                let (slow, added) = load_slow(dir, path)?;
                let kind = EncoderKind::Slow { because };
                Ok((Backend::HuggingFace(Box::new(slow)), kind, added))
            }
        }
    }

    fn as_default_site(
        dir: &Path,
        path: &Path,
    ) -> Result<(Backend, EncoderKind, Vec<AddedToken>), String> {
        let (slow, added) = load_slow(dir, path)?;
        let agreed = load_fast(path).and_then(|mut fast| {
            // The site lifts the limits that a tokenizer.json may set on lengths.
            fast.set_truncation(None);
            fast.set_padding(None);
            let texts = verify::texts(&added);
            verify::agree(
                &texts,
                |text| encode_fast(&fast, text),
                |text| encode_slow(&slow, text),
            )?;
            Ok(fast)
        });
        Ok(match agreed {
            Ok(fast) => (Backend::Fast(Box::new(fast)), EncoderKind::Fast, added),
            Err(because) => {
                let kind = EncoderKind::Slow { because };
                (Backend::HuggingFace(Box::new(slow)), kind, added)
            }
        })
    }

    /// The fast one shares long texts among its threads and makes tables of tens of megabytes
    /// at the first: that costs its first request no time if it happens here.
    fn warm_up(&self) {
        if let Backend::Fast(fast) = &self.backend {
            let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
            let text = "to warm it up ".repeat(WARM_UP_BYTES / 14 * threads.min(MAX_WARM_UP));
            // The ids are of no interest, nor is a refusal: the first request would see it.
            let _ = encode_fast(fast, &text);
        }
    }

    fn safe_memo(&self, path: &Path, added: &[AddedToken], bytes: usize) -> Result<Memo, String> {
        if bytes == 0 {
            return Err("no memory is set aside for it".into());
        }
        let json = std::fs::read(path).map_err(|error| error.to_string())?;
        let boundaries = memo::boundaries(&json, added)?;
        let memo = Memo::new(&boundaries, bytes)?;
        let trial = Memo::new(&boundaries, bytes)?;
        let plain = |text: &str| self.encode_plain(text);
        verify::agree(
            &verify::texts(added),
            |text| trial.encode(text, plain),
            plain,
        )?;
        Ok(memo)
    }

    /// The ids of a text. Bytes of zero are dropped, as the site drops them.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let stripped;
        let text = if text.contains('\0') {
            stripped = text.replace('\0', "");
            &stripped
        } else {
            text
        };
        match &self.memo {
            Some(memo) => memo.encode(text, |segment| self.encode_plain(segment)),
            None => self.encode_plain(text),
        }
    }

    /// The ids of a rendered prompt; one that comes in segments keeps ordinary text from
    /// being taken for special tokens.
    pub(crate) fn encode_prompt(&self, prompt: &RenderedPrompt) -> Result<Vec<u32>, String> {
        let Some(segments) = prompt.encode_segments() else {
            return self.encode(prompt.as_str());
        };
        match &self.backend {
            Backend::Fast(fast) => {
                let segments: Vec<_> = segments
                    .iter()
                    .map(|segment| fastokens::EncodeSegment {
                        text: segment.text,
                        allow_special: segment.allow_special,
                    })
                    .collect();
                fast.encode_segments(&segments)
                    .map_err(|error| error.to_string())
            }
            Backend::HuggingFace(slow) => match slow.encode_segments(&segments) {
                Ok(encoding) => Ok(encoding.token_ids().to_vec()),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, String> {
        match &self.backend {
            Backend::Fast(fast) => encode_fast(fast, text),
            Backend::HuggingFace(slow) => encode_slow(slow, text),
        }
    }

    pub(crate) fn kind(&self) -> &EncoderKind {
        &self.kind
    }

    /// The memo's counters, or why there is no memo.
    pub(crate) fn memo_stats(&self) -> Result<MemoStats, &str> {
        let off = self.memo_off_because.as_deref();
        self.memo
            .as_ref()
            .map(Memo::stats)
            .ok_or(off.unwrap_or_default())
    }
}

fn encode_fast(fast: &fastokens::Tokenizer, text: &str) -> Result<Vec<u32>, String> {
    fast.encode(text).map_err(|error| error.to_string())
}

fn encode_slow(slow: &HuggingFaceTokenizer, text: &str) -> Result<Vec<u32>, String> {
    match slow.encode(text) {
        Ok(encoding) => Ok(encoding.token_ids().to_vec()),
        Err(error) => Err(error.to_string()),
    }
}

/// Loads the slow one as Dynamo does: special tokens that only tokenizer_config.json
/// declares are added, truncation and padding are lifted.
fn load_slow(dir: &Path, path: &Path) -> Result<(HuggingFaceTokenizer, Vec<AddedToken>), String> {
    let mut slow = HfTokenizer::from_file(path).map_err(|error| error.to_string())?;
    merge_special_tokens_from_config(&mut slow, dir);
    slow.with_truncation(None)
        .map_err(|error| error.to_string())?;
    slow.with_padding(None);
    let mut added: Vec<AddedToken> = slow
        .get_added_tokens_decoder()
        .into_iter()
        .map(|(id, token)| AddedToken {
            contextual: token.lstrip || token.rstrip || token.single_word,
            normalized: token.normalized,
            text: token.content,
            id,
        })
        .collect();
    added.sort_by_key(|token| token.id);
    Ok((HuggingFaceTokenizer::from_tokenizer(slow), added))
}

/// A tokenizer.json of a kind it doesn't know makes fastokens fail, and may make it panic.
fn load_fast(path: &Path) -> Result<fastokens::Tokenizer, String> {
    match catch_unwind(AssertUnwindSafe(|| fastokens::Tokenizer::from_file(path))) {
        Ok(Ok(fast)) => Ok(fast),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("fastokens panicked on this tokenizer.json".into()),
    }
}

fn fast_added_tokens(fast: &fastokens::Tokenizer) -> Vec<AddedToken> {
    let configs = fast.added_token_configs().iter();
    configs
        .map(|token| AddedToken {
            text: token.content.clone(),
            id: token.id,
            normalized: token.normalized,
            contextual: token.lstrip || token.rstrip || token.single_word,
        })
        .collect()
}

#[cfg(test)]
mod tests;
