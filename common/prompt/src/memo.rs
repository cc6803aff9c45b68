//! The segment memo: token ids of the texts between a prompt's special tokens.
//!
//! Turns of a conversation, system prompts and tool lists come again in request after
//! request, and a tokenizer treats what stands between two added tokens on its own. So a
//! prompt is cut at its added tokens, and each segment's ids are kept under a keyed 128-bit
//! hash of its text. Cutting is exact only under conditions on the tokenizer: see
//! [`boundaries`]; a tokenizer that fails one, or the differential test at load, has no memo.
//!
//! Bounded by bytes: each shard has a young and an old half; when the young one is full it
//! becomes the old one, and what was not asked for since is forgotten.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128_with_seed;

const SHARDS: usize = 16;
/// A segment of more bytes is encoded each time: one entry must not empty a shard.
const MAX_SEGMENT_BYTES: usize = 2 << 20;
/// An entry's cost beside its ids: key, pointers and the map's slack.
const ENTRY_BYTES: usize = 96;

/// An added token that is matched as it stands, wherever it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boundary {
    pub(crate) text: String,
    pub(crate) id: u32,
}

/// An added token and how it is matched.
#[derive(Clone, Debug)]
pub(crate) struct AddedToken {
    pub(crate) text: String,
    pub(crate) id: u32,
    pub(crate) normalized: bool,
    /// It takes spaces beside it along, or matches whole words only.
    pub(crate) contextual: bool,
}

/// What a memo has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoStats {
    /// Segments found.
    pub hits: u64,
    /// Segments encoded and kept.
    pub misses: u64,
    /// Bytes held.
    pub bytes: usize,
}

pub(crate) struct Memo {
    finder: AhoCorasick,
    ids: Vec<u32>,
    seed: u64,
    shards: [Mutex<Shard>; SHARDS],
    half_shard_bytes: usize,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct Shard {
    young: HashMap<Key, Arc<[u32]>>,
    old: HashMap<Key, Arc<[u32]>>,
    young_bytes: usize,
    old_bytes: usize,
}

/// The length guards against the rare collision and the tuple costs nothing.
type Key = (u128, usize);

/// The steps of tokenizer.json that look at a text's beginning or end.
#[derive(Deserialize)]
struct Pipeline {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

/// Where a text may be cut: added tokens that are matched before anything else happens to
/// it. `Err` says why this tokenizer's texts may not be cut at all.
pub(crate) fn boundaries(
    tokenizer_json: &[u8],
    added: &[AddedToken],
) -> Result<Vec<Boundary>, &'static str> {
    let pipeline: Pipeline =
        serde_json::from_slice(tokenizer_json).map_err(|_| "tokenizer.json is not readable")?;
    if any(&pipeline.normalizer, &|step| {
        matches!(
            kind(step),
            Some("Prepend" | "Strip" | "StripAccents" | "BertNormalizer")
        )
    }) {
        return Err("the normalizer treats the text's ends specially");
    }
    if any(&pipeline.pre_tokenizer, &|step| {
        kind(step) == Some("Metaspace") || step["add_prefix_space"] == Value::Bool(true)
    }) {
        return Err("the pre-tokenizer treats the text's beginning specially");
    }
    let literal = added.iter().filter(|token| !token.normalized);
    if literal.clone().any(|token| token.contextual) {
        return Err("an added token is matched by its neighbours");
    }
    let boundaries: Vec<Boundary> = literal
        .filter(|token| !token.text.is_empty())
        .map(|token| Boundary {
            text: token.text.clone(),
            id: token.id,
        })
        .collect();
    if boundaries.is_empty() {
        return Err("no added token is matched literally");
    }
    Ok(boundaries)
}

fn kind(step: &Value) -> Option<&str> {
    step["type"].as_str()
}

/// Whether a step, or one of a sequence's steps, is of a kind.
fn any(step: &Value, wanted: &dyn Fn(&Value) -> bool) -> bool {
    let nested = ["normalizers", "pretokenizers"];
    wanted(step)
        || nested.iter().any(|list| {
            let steps = step[*list].as_array();
            steps.is_some_and(|steps| steps.iter().any(|step| any(step, wanted)))
        })
}

impl Memo {
    /// A memo of at most `budget` bytes that cuts at `boundaries`.
    pub(crate) fn new(boundaries: &[Boundary], budget: usize) -> Result<Self, String> {
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(boundaries.iter().map(|boundary| &boundary.text))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            finder,
            ids: boundaries.iter().map(|boundary| boundary.id).collect(),
            // A seed that nobody knows: keys can't be made to collide from outside.
            seed: RandomState::new().hash_one(0),
            shards: std::array::from_fn(|_| Mutex::default()),
            half_shard_bytes: budget / SHARDS / 2,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// The ids of `text`, where `plain` encodes a text that holds no boundary.
    pub(crate) fn encode<E>(
        &self,
        text: &str,
        plain: impl Fn(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Vec<u32>, E> {
        let mut out = Vec::with_capacity(text.len() / 3);
        let mut at = 0;
        for found in self.finder.find_iter(text) {
            self.append(&text[at..found.start()], &plain, &mut out)?;
            out.push(self.ids[found.pattern().as_usize()]);
            at = found.end();
        }
        self.append(&text[at..], &plain, &mut out)?;
        Ok(out)
    }

    fn append<E>(
        &self,
        segment: &str,
        plain: &impl Fn(&str) -> Result<Vec<u32>, E>,
        out: &mut Vec<u32>,
    ) -> Result<(), E> {
        if segment.is_empty() {
            return Ok(());
        }
        if segment.len() > MAX_SEGMENT_BYTES {
            out.extend(plain(segment)?);
            return Ok(());
        }
        let key = (
            xxh3_128_with_seed(segment.as_bytes(), self.seed),
            segment.len(),
        );
        if let Some(ids) = self.get(&key) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            out.extend_from_slice(&ids);
            return Ok(());
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let ids: Arc<[u32]> = plain(segment)?.into();
        out.extend_from_slice(&ids);
        self.keep(key, ids);
        Ok(())
    }

    fn shard(&self, key: &Key) -> std::sync::MutexGuard<'_, Shard> {
        let low = key.0.to_le_bytes()[0];
        // A shard stays whole if a thread died holding it: every change is one insertion.
        self.shards[usize::from(low) % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &Key) -> Option<Arc<[u32]>> {
        let mut shard = self.shard(key);
        if let Some(ids) = shard.young.get(key) {
            return Some(Arc::clone(ids));
        }
        let ids = shard.old.remove(key)?;
        shard.old_bytes -= cost(&ids);
        shard.insert(*key, Arc::clone(&ids), self.half_shard_bytes);
        Some(ids)
    }

    fn keep(&self, key: Key, ids: Arc<[u32]>) {
        if cost(&ids) <= self.half_shard_bytes {
            self.shard(&key).insert(key, ids, self.half_shard_bytes);
        }
    }

    /// What happened so far, and the bytes held.
    pub(crate) fn stats(&self) -> MemoStats {
        let held = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.young_bytes + shard.old_bytes
        };
        MemoStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            bytes: self.shards.iter().map(held).sum(),
        }
    }
}

impl Shard {
    fn insert(&mut self, key: Key, ids: Arc<[u32]>, half_bytes: usize) {
        let bytes = cost(&ids);
        if self.young_bytes + bytes > half_bytes {
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
        if self.young.insert(key, ids).is_none() {
            self.young_bytes += bytes;
        }
    }
}

fn cost(ids: &[u32]) -> usize {
    size_of_val(ids) + ENTRY_BYTES
}

#[cfg(test)]
mod tests;
