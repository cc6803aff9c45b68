//! Decodes what an engine publishes about its KV cache: vLLM's, SGLang's and TensorRT-LLM's
//! ZeroMQ messages, one payload at a time.
//!
//! A batch is `[seconds, events, rank?]`; a map with these names is taken too. What can't be
//! hashed as Dynamo and the edges would hash it is refused: a block that is hidden costs a
//! prefill, a block that is invented costs a wrong decision. Refusals are counted by reason.
//!
//! A decoder belongs to one life of one publisher, because kinds of groups and salts are
//! learned along the way.

use core::num::NonZeroU32;

use xxhash_rust::xxh3::xxh3_64;

use super::msgpack::{Malformed, Reader, Token};
use super::{EngineHash, KvEvent, StoredBlock, Tier};
use crate::block::{HashFormat, HashSeed, block_hashes};

mod attention;
mod extra_keys;
mod raw;
mod salt;
#[cfg(test)]
mod tests;

pub use super::msgpack::Malformed as DecodeError;
pub use super::refusal::{Refusal, Refusals};

use attention::Attention;
use raw::{Fields, Kind};
use salt::Salts;

/// What a publisher's blocks must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// Tokens per block; events with another size are refused.
    pub block_size: NonZeroU32,
    /// How the pool's blocks are hashed; events in the other format are refused.
    pub format: HashFormat,
    /// Most salted blocks that are remembered; runs with a salt past it are refused.
    pub max_salted: usize,
}

/// One message's events, those that mean something here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineBatch {
    /// The engine's clock in seconds, as sent.
    pub at: f64,
    /// The data-parallel rank that the message names.
    pub rank: Option<u32>,
    /// The events in order; if the message is unsound, those after the last refusal that makes
    /// it so.
    pub events: Vec<KvEvent>,
    /// What was refused, by reason.
    pub refused: Refusals,
    /// Whether something was refused that may have been a removal, so that blocks may be gone
    /// which still look held.
    pub unsound: bool,
}

impl EngineBatch {
    /// What was stored so far may be gone, in this message as in those before it.
    fn lose_track(&mut self) {
        self.unsound = true;
        self.events.clear();
    }
}

/// Decodes the messages of one publisher's life.
#[derive(Clone, Debug)]
pub struct Decoder {
    config: DecoderConfig,
    attention: Attention,
    salts: Salts,
    tokens: Vec<u32>,
}

/// A message taken apart, its events still undecoded.
struct Message<'a> {
    at: f64,
    rank: Option<u32>,
    events: Reader<'a>,
}

impl Decoder {
    /// A decoder that has seen nothing.
    pub fn new(config: DecoderConfig) -> Self {
        Self {
            config,
            attention: Attention::default(),
            salts: Salts::new(config.max_salted),
            tokens: Vec::new(),
        }
    }

    /// Decodes one payload of the publisher whose rank is `rank` unless the message names one.
    /// On an error nothing was learned and nothing of the message may be used.
    pub fn decode(&mut self, rank: u32, payload: &[u8]) -> Result<EngineBatch, DecodeError> {
        let message = Message::read(payload)?;
        let mut batch = EngineBatch {
            at: message.at,
            rank: message.rank,
            ..EngineBatch::default()
        };
        let rank = message.rank.unwrap_or(rank);
        let mut events = message.events;
        for _ in 0..events.array()? {
            let event = events.value()?;
            self.decode_event(rank, event, &mut batch);
        }
        Ok(batch)
    }

    fn decode_event(&mut self, rank: u32, event: Reader<'_>, batch: &mut EngineBatch) {
        let decoded = match raw::read(event) {
            Ok((Kind::Stored, fields)) => self.stored(rank, &fields, &mut batch.refused),
            Ok((Kind::Removed, fields)) => {
                let removed = self.removed(rank, &fields);
                if removed == Err(Refusal::Malformed) {
                    batch.lose_track();
                }
                removed.map(Some)
            }
            Ok((Kind::Cleared, fields)) => self.cleared(rank, &fields).map(Some),
            Ok((Kind::Unknown, _)) => Err(Refusal::UnknownType),
            Err(_) => {
                batch.lose_track();
                Err(Refusal::Malformed)
            }
        };
        match decoded {
            Ok(event) => batch.events.extend(event),
            Err(refusal) => batch.refused.count(refusal),
        }
    }

    /// A stored run, as far as it can be hashed.
    fn stored(
        &mut self,
        rank: u32,
        fields: &Fields<'_>,
        refused: &mut Refusals,
    ) -> Result<Option<KvEvent>, Refusal> {
        let group = fields.group.map(uint).transpose()?;
        let kind = fields.attention.map(text).transpose()?;
        self.attention.learn(rank, group, kind);
        self.attention.check(rank, group, kind)?;
        let tier = local_tier(fields)?;
        let parent = fields.parent.map(engine_hash).transpose()?;
        let names = engine_hashes(fields.block_hashes.ok_or(Refusal::Malformed)?)?;
        let (seed, plain) = self.seed(rank, fields, parent, &names)?;
        self.check_size(fields)?;
        let hashable = &names[..names.len().min(plain)];
        let blocks = self.hashed(fields, hashable, seed)?;
        if hashable.len() < names.len() {
            refused.count(Refusal::ExtraKeys);
        } else if blocks.len() < names.len() {
            refused.count(Refusal::FewTokens);
        }
        let event = (!blocks.is_empty()).then_some(KvEvent::Stored {
            parent,
            tier,
            blocks,
        });
        Ok(event)
    }

    /// The seed of a run's hashes, and how many of its blocks have no other content than tokens.
    fn seed(
        &mut self,
        rank: u32,
        fields: &Fields<'_>,
        parent: Option<EngineHash>,
        names: &[EngineHash],
    ) -> Result<(HashSeed, usize), Refusal> {
        let lora = adapter(fields)?;
        let keys = extra_keys::read(fields.extra_keys, fields.mm_infos, lora)?;
        let named = fields.cache_salt.map(text).transpose()?;
        let named = named.map(utf8).transpose()?.filter(|salt| !salt.is_empty());
        let salt = self.salts.of_run(rank, parent, named.or(keys.salt))?;
        self.salts.store(rank, names, salt.as_ref())?;
        Ok((HashSeed::new(lora, salt.as_deref()), keys.plain_blocks))
    }

    fn check_size(&self, fields: &Fields<'_>) -> Result<(), Refusal> {
        let size = uint(fields.block_size.ok_or(Refusal::Malformed)?)?;
        if size == u64::from(self.config.block_size.get()) {
            Ok(())
        } else {
            Err(Refusal::BlockSize)
        }
    }

    /// The blocks that have all their tokens.
    fn hashed(
        &mut self,
        fields: &Fields<'_>,
        names: &[EngineHash],
        seed: HashSeed,
    ) -> Result<Vec<StoredBlock>, Refusal> {
        let format = read_tokens(fields.tokens.ok_or(Refusal::Malformed)?, &mut self.tokens)?;
        if format != self.config.format && !self.tokens.is_empty() {
            return Err(Refusal::HashFormat);
        }
        let hashes = block_hashes(&self.tokens, self.config.block_size, format, seed);
        let named = names.iter().zip(hashes);
        Ok(named
            .map(|(engine, local)| StoredBlock {
                engine: *engine,
                local,
            })
            .collect())
    }

    fn removed(&mut self, rank: u32, fields: &Fields<'_>) -> Result<KvEvent, Refusal> {
        let group = fields.group.map(uint).transpose()?;
        let kind = fields.attention.map(text).transpose()?;
        self.attention.check(rank, group, kind)?;
        let tier = local_tier(fields)?;
        let blocks = engine_hashes(fields.block_hashes.ok_or(Refusal::Malformed)?)?;
        self.salts.remove(rank, &blocks);
        Ok(KvEvent::Removed { tier, blocks })
    }

    fn cleared(&mut self, rank: u32, fields: &Fields<'_>) -> Result<KvEvent, Refusal> {
        // An owner other than the engine clears its own storage, not the accelerator's.
        if fields.ownership.is_some() {
            return Err(Refusal::Ownership);
        }
        self.salts.clear(rank);
        Ok(KvEvent::Cleared)
    }
}

impl<'a> Message<'a> {
    fn read(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        match reader.token()? {
            Token::Array(length) if length >= 2 => {
                let at = reader.value()?;
                let events = reader.value()?;
                let rank = if length > 2 {
                    Some(reader.value()?)
                } else {
                    None
                };
                Self::new(Some(at), events, rank)
            }
            Token::Map(pairs) => Self::read_map(reader, pairs),
            _ => Err(Malformed::Type),
        }
    }

    fn read_map(mut reader: Reader<'a>, pairs: u32) -> Result<Self, Malformed> {
        let (mut at, mut events, mut rank) = (None, None, None);
        for _ in 0..pairs {
            let mut key = reader.value()?;
            let value = reader.value()?;
            match key.token()? {
                Token::Str(b"ts") => at = Some(value),
                Token::Str(b"events") => events = Some(value),
                Token::Str(b"data_parallel_rank" | b"dp_rank") => rank = Some(value),
                _ => {}
            }
        }
        Self::new(at, events.ok_or(Malformed::Type)?, rank)
    }

    fn new(
        at: Option<Reader<'a>>,
        events: Reader<'a>,
        rank: Option<Reader<'a>>,
    ) -> Result<Self, Malformed> {
        let at = match at.map(|mut at| at.token()).transpose()? {
            Some(Token::Float(seconds)) => seconds,
            _ => 0.0,
        };
        let rank = match rank.map(|mut rank| rank.token()).transpose()? {
            None | Some(Token::Nil) => None,
            Some(Token::Uint(rank)) => Some(u32::try_from(rank).map_err(|_| Malformed::Type)?),
            Some(_) => return Err(Malformed::Type),
        };
        Ok(Self { at, rank, events })
    }
}

/// The tier of the worker's own storage that an event speaks of.
fn local_tier(fields: &Fields<'_>) -> Result<Tier, Refusal> {
    if fields.ownership.is_some() {
        return Err(Refusal::Ownership);
    }
    if let Some(locality) = fields.locality
        && text(locality)? != b"LOCAL"
    {
        return Err(Refusal::Remote);
    }
    match fields.medium {
        None => Ok(Tier::Device),
        Some(medium) => tier_of(text(medium)?).ok_or(Refusal::UnknownMedium),
    }
}

fn tier_of(medium: &[u8]) -> Option<Tier> {
    Some(match medium.to_ascii_uppercase().as_slice() {
        b"GPU" | b"DEVICE" => Tier::Device,
        b"CPU" | b"CPU_PINNED" | b"CPU_TIER1" => Tier::HostPinned,
        b"CPU_TIER2" | b"DISK" | b"NVME" | b"STORAGE" => Tier::Disk,
        b"EXTERNAL" | b"NETWORK" | b"REMOTE" | b"SHARED" => Tier::External,
        _ => return None,
    })
}

/// The adapter's name; an adapter that has only a number can't be hashed.
fn adapter<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, Refusal> {
    match fields.lora_name {
        Some(name) => utf8(text(name)?).map(Some),
        None if fields.lora_id.is_some() => Err(Refusal::Adapter),
        None => Ok(None),
    }
}

fn engine_hashes(mut array: Reader<'_>) -> Result<Vec<EngineHash>, Refusal> {
    let length = array.array()?;
    let mut hashes = Vec::with_capacity(array.at_most(length));
    for _ in 0..length {
        hashes.push(hash_of(array.token()?)?);
    }
    Ok(hashes)
}

fn engine_hash(mut value: Reader<'_>) -> Result<EngineHash, Refusal> {
    hash_of(value.token()?)
}

fn hash_of(token: Token<'_>) -> Result<EngineHash, Refusal> {
    Ok(EngineHash(match token {
        Token::Uint(value) => value,
        Token::Int(value) => value.cast_unsigned(),
        Token::Bin(bytes) | Token::Str(bytes) => xxh3_64(bytes),
        _ => return Err(Refusal::Malformed),
    }))
}

/// Reads tokens, or the pairs of neighbours that EAGLE engines send.
fn read_tokens(mut array: Reader<'_>, tokens: &mut Vec<u32>) -> Result<HashFormat, Refusal> {
    tokens.clear();
    let length = array.array()?;
    let mut format = HashFormat::Standard;
    for index in 0..length {
        match array.token()? {
            Token::Uint(token) if format == HashFormat::Standard => tokens.push(token_id(token)?),
            Token::Array(2) if index == 0 || format == HashFormat::Eagle => {
                format = HashFormat::Eagle;
                let first = uint_token(array.token()?)?;
                let second = uint_token(array.token()?)?;
                tokens.pop();
                tokens.extend([first, second]);
            }
            _ => return Err(Refusal::Malformed),
        }
    }
    Ok(format)
}

fn uint_token(token: Token<'_>) -> Result<u32, Refusal> {
    match token {
        Token::Uint(token) => token_id(token),
        _ => Err(Refusal::Malformed),
    }
}

fn token_id(token: u64) -> Result<u32, Refusal> {
    u32::try_from(token).map_err(|_| Refusal::Malformed)
}

fn uint(mut value: Reader<'_>) -> Result<u64, Refusal> {
    match value.token()? {
        Token::Uint(value) => Ok(value),
        _ => Err(Refusal::Malformed),
    }
}

fn text(mut value: Reader<'_>) -> Result<&[u8], Refusal> {
    match value.token()? {
        Token::Str(text) => Ok(text),
        _ => Err(Refusal::Malformed),
    }
}

fn utf8(text: &[u8]) -> Result<&str, Refusal> {
    core::str::from_utf8(text).map_err(|_| Refusal::Malformed)
}
