//! The card's encoding.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Card, CardError, MAGIC, MAX_HEADER_BYTES};

/// Names a card may carry; anything else in a card is refused.
pub(super) const NAMES: [&str; 4] = [
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header<C> {
    card: C,
    files: Vec<FileEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    name: String,
    bytes: usize,
}

pub(super) fn encode(card: &Card) -> Vec<u8> {
    let header = header_of(card);
    let length = u32::try_from(header.len()).expect("a header holds names and flags only");
    let total: usize = card.files.values().map(|file| file.len()).sum();
    let mut bytes = Vec::with_capacity(MAGIC.len() + 4 + header.len() + total);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&header);
    for file in card.files.values() {
        bytes.extend_from_slice(file);
    }
    bytes
}

fn header_of(card: &Card) -> Vec<u8> {
    let entry = |(name, file): (&String, &Arc<[u8]>)| FileEntry {
        name: name.clone(),
        bytes: file.len(),
    };
    let header = Header {
        card,
        files: card.files.iter().map(entry).collect(),
    };
    serde_json::to_vec(&header).expect("strings, numbers and JSON values serialise")
}

pub(super) fn decode(bytes: &[u8]) -> Result<Card, CardError> {
    check_size(bytes.len())?;
    let malformed = |reason: &str| CardError::Malformed(reason.into());
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| malformed("the first line is another"))?;
    let (length, rest) = rest
        .split_first_chunk::<4>()
        .ok_or_else(|| malformed("it ends in the header's length"))?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER_BYTES || length > rest.len() {
        return Err(malformed("the header's length is wrong"));
    }
    let (header, body) = rest.split_at(length);
    let parsed: Header<Card> =
        serde_json::from_slice(header).map_err(|error| CardError::Malformed(error.to_string()))?;
    let mut card = parsed.card;
    card.files = split(&parsed.files, body)?;
    if header_of(&card) != header {
        return Err(malformed("the header is not in canonical form"));
    }
    Ok(card)
}

fn split(entries: &[FileEntry], mut body: &[u8]) -> Result<BTreeMap<String, Arc<[u8]>>, CardError> {
    let mut files = BTreeMap::new();
    for entry in entries {
        if !NAMES.contains(&entry.name.as_str()) {
            return Err(CardError::Malformed(format!("file {:?}", entry.name)));
        }
        if entry.bytes > body.len() {
            return Err(CardError::Malformed(format!("{} is cut off", entry.name)));
        }
        let (file, rest) = body.split_at(entry.bytes);
        files.insert(entry.name.clone(), file.into());
        body = rest;
    }
    if body.is_empty() {
        Ok(files)
    } else {
        Err(CardError::Malformed("bytes after the last file".into()))
    }
}

pub(super) fn check_size(bytes: usize) -> Result<(), CardError> {
    let limit = Card::MAX_BYTES;
    if bytes > limit {
        return Err(CardError::TooLarge { bytes, limit });
    }
    Ok(())
}
