//! Decodes what Dynamo's event plane carries: the envelope that every transport uses, and the
//! payloads of three of its topics, `kv-events`, `kv_metrics` and `forward-pass-metrics`.
//!
//! Unlike raw engine events these name blocks by two hashes, of which the second is already
//! Dynamo's own, salt and adapter included: nothing is computed here. Events count up per rank,
//! so that a hole is seen even where messages have none. Fields that are not known are passed
//! over; what can't be used is refused and counted by reason.

use super::msgpack::{Malformed, Reader, Token};
use super::{EngineHash, KvEvent, Refusal, Refusals, StoredBlock, Tier};
use crate::block::BlockHash;

mod envelope;
mod step;
#[cfg(test)]
mod tests;

pub use super::msgpack::Malformed as DecodeError;
pub use envelope::{Envelope, EnvelopeError};
pub use step::{FORWARD_PASS_METRICS, Step, step};

/// The topic of changes to what workers have cached.
pub const KV_EVENTS: &str = "kv-events";

/// The topic of how full workers are.
pub const KV_METRICS: &str = "kv_metrics";

/// The number of a rank's first event.
pub const FIRST_EVENT: u64 = 1;

/// One event of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEvent {
    /// The worker, as discovery names it too.
    pub worker: u64,
    /// The data-parallel rank within it.
    pub rank: u32,
    /// Counts this rank's events from [`FIRST_EVENT`] on, without holes.
    pub number: u64,
    /// What changed; `None` if it was refused, or can't be believed for what comes after it.
    pub event: Option<KvEvent>,
}

/// One message of topic [`KV_EVENTS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvBatch {
    /// The events in order, as far as they have a number.
    pub events: Vec<RankEvent>,
    /// What was refused, by reason.
    pub refused: Refusals,
    /// Whether something was refused that may have been a removal, so that blocks may be gone
    /// which still look held.
    pub unsound: bool,
}

/// One message of topic [`KV_METRICS`], as far as workers themselves know it; what routers add
/// of their own is left out, because each replica counts only what it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvUse {
    /// The worker, as discovery names it too.
    pub worker: u64,
    /// The data-parallel rank within it.
    pub rank: u32,
    /// Device blocks that requests use now; absent in a router's message.
    pub used_blocks: Option<u64>,
}

/// Reads a payload of topic [`KV_EVENTS`]: a list of events, or a single one from sites before
/// Dynamo 1.5. On an error nothing of it may be used.
pub fn kv_events(payload: &[u8]) -> Result<KvBatch, DecodeError> {
    let mut reader = Reader::new(payload);
    let mut batch = KvBatch::default();
    let mut list = reader;
    match list.token()? {
        Token::Map(_) => batch.take(reader.value()?),
        Token::Array(length) => {
            for _ in 0..length {
                batch.take(list.value()?);
            }
        }
        _ => return Err(Malformed::Type),
    }
    Ok(batch)
}

/// Reads a payload of topic [`KV_METRICS`].
pub fn kv_use(payload: &[u8]) -> Result<KvUse, DecodeError> {
    let (mut worker, mut rank, mut used_blocks) = (None, 0, None);
    fields(Reader::new(payload), |name, value| {
        match name {
            b"worker_id" => worker = Some(uint(value)?),
            b"dp_rank" => rank = small(value)?,
            b"kv_used_blocks" => used_blocks = optional(value, uint)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(KvUse {
        worker: worker.ok_or(Malformed::Type)?,
        rank,
        used_blocks,
    })
}

impl KvBatch {
    fn take(&mut self, event: Reader<'_>) {
        let Ok(raw) = RawEvent::read(event) else {
            // Without its number nobody knows what is missing now.
            self.lose_track();
            self.refused.count(Refusal::Malformed);
            return;
        };
        let event = raw.event().map_err(|refusal| {
            if refusal == Refusal::Malformed {
                self.lose_track();
            }
            self.refused.count(refusal);
        });
        self.events.push(RankEvent {
            worker: raw.worker,
            rank: raw.rank,
            number: raw.number,
            event: event.ok(),
        });
    }

    /// What was stored so far may be gone, in this message as in those before it.
    fn lose_track(&mut self) {
        self.unsound = true;
        self.events.iter_mut().for_each(|event| event.event = None);
    }
}

/// An event whose head was understood.
struct RawEvent<'a> {
    worker: u64,
    rank: u32,
    number: u64,
    tier: Option<Reader<'a>>,
    domain: Option<Reader<'a>>,
    data: Reader<'a>,
}

impl<'a> RawEvent<'a> {
    fn read(event: Reader<'a>) -> Result<Self, Malformed> {
        let (mut worker, mut tier, mut domain, mut inner) = (None, None, None, None);
        fields(event, |name, value| {
            match name {
                b"worker_id" => worker = Some(uint(value)?),
                b"storage_tier" => tier = Some(value),
                b"residency_domain" => domain = Some(value),
                b"event" => inner = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        let (mut number, mut rank, mut data) = (None, 0, None);
        fields(inner.ok_or(Malformed::Type)?, |name, value| {
            match name {
                b"event_id" => number = Some(uint(value)?),
                b"dp_rank" => rank = small(value)?,
                b"data" => data = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Self {
            worker: worker.ok_or(Malformed::Type)?,
            rank,
            number: number.ok_or(Malformed::Type)?,
            tier,
            domain,
            data: data.ok_or(Malformed::Type)?,
        })
    }

    /// What changed, if it is the worker's own storage that changed.
    fn event(&self) -> Result<KvEvent, Refusal> {
        self.check_domain()?;
        let mut data = self.data;
        match data.token()? {
            Token::Str(b"cleared") => Ok(KvEvent::Cleared),
            Token::Str(_) => Err(Refusal::UnknownType),
            Token::Map(1) => {
                let kind = data.token()?;
                let value = data.value()?;
                match kind {
                    Token::Str(b"stored") => self.stored(value),
                    Token::Str(b"removed") => self.removed(value),
                    Token::Str(b"cleared") => Ok(KvEvent::Cleared),
                    Token::Str(_) => Err(Refusal::UnknownType),
                    _ => Err(Refusal::Malformed),
                }
            }
            _ => Err(Refusal::Malformed),
        }
    }

    /// Who keeps the block: the worker unless said otherwise. What a cache owner keeps outlives
    /// workers and is none of their storage.
    fn check_domain(&self) -> Result<(), Refusal> {
        match self.domain.map(|mut domain| domain.token()).transpose()? {
            None | Some(Token::Str(b"worker")) => Ok(()),
            Some(Token::Str(_)) => Err(Refusal::Ownership),
            Some(_) => Err(Refusal::Malformed),
        }
    }

    fn tier(&self) -> Result<Tier, Refusal> {
        match self.tier.map(|mut tier| tier.token()).transpose()? {
            None | Some(Token::Str(b"device")) => Ok(Tier::Device),
            Some(Token::Str(b"host_pinned")) => Ok(Tier::HostPinned),
            Some(Token::Str(b"disk")) => Ok(Tier::Disk),
            Some(Token::Str(b"external")) => Ok(Tier::External),
            Some(Token::Str(_)) => Err(Refusal::UnknownMedium),
            Some(_) => Err(Refusal::Malformed),
        }
    }

    fn stored(&self, value: Reader<'_>) -> Result<KvEvent, Refusal> {
        let (mut parent, mut list) = (None, None);
        fields(value, |name, value| {
            match name {
                b"parent_hash" => parent = optional(value, uint)?.map(EngineHash),
                b"blocks" => list = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        let mut list = list.ok_or(Refusal::Malformed)?;
        let length = list.array()?;
        let mut blocks = Vec::with_capacity(most_blocks(&list, length));
        for _ in 0..length {
            blocks.push(block(list.value()?)?);
        }
        Ok(KvEvent::Stored {
            parent,
            tier: self.tier()?,
            blocks,
        })
    }

    fn removed(&self, value: Reader<'_>) -> Result<KvEvent, Refusal> {
        let mut list = None;
        fields(value, |name, value| {
            if name == b"block_hashes" {
                list = Some(value);
            }
            Ok(())
        })?;
        let mut list = list.ok_or(Refusal::Malformed)?;
        let length = list.array()?;
        let mut blocks = Vec::with_capacity(list.at_most(length));
        for _ in 0..length {
            blocks.push(EngineHash(uint(list.value()?)?));
        }
        Ok(KvEvent::Removed {
            tier: self.tier()?,
            blocks,
        })
    }
}

/// The shortest block there can be: two names and two small numbers.
const BLOCK_BYTES: usize = "block_hash".len() + "tokens_hash".len();

fn most_blocks(list: &Reader<'_>, length: u32) -> usize {
    let fit = list.at_most(u32::MAX) / BLOCK_BYTES;
    list.at_most(length).min(fit)
}

/// Images and the like are part of a block's local hash already.
fn block(value: Reader<'_>) -> Result<StoredBlock, Malformed> {
    let (mut engine, mut local) = (None, None);
    fields(value, |name, value| {
        match name {
            b"block_hash" => engine = Some(uint(value)?),
            b"tokens_hash" => local = Some(uint(value)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(StoredBlock {
        engine: EngineHash(engine.ok_or(Malformed::Type)?),
        local: BlockHash(local.ok_or(Malformed::Type)?),
    })
}

/// Gives each field of a map to `each`, by name.
fn fields<'a>(
    mut map: Reader<'a>,
    mut each: impl FnMut(&'a [u8], Reader<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let Token::Map(pairs) = map.token()? else {
        return Err(Malformed::Type);
    };
    for _ in 0..pairs {
        let name = map.token()?;
        let value = map.value()?;
        let Token::Str(name) = name else {
            return Err(Malformed::Type);
        };
        each(name, value)?;
    }
    Ok(())
}

fn uint(mut value: Reader<'_>) -> Result<u64, Malformed> {
    match value.token()? {
        Token::Uint(value) => Ok(value),
        _ => Err(Malformed::Type),
    }
}

fn small(value: Reader<'_>) -> Result<u32, Malformed> {
    u32::try_from(uint(value)?).map_err(|_| Malformed::Type)
}

/// `None` where nil stands.
fn optional<'a, T>(
    value: Reader<'a>,
    read: impl Fn(Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    let mut head = value;
    match head.token()? {
        Token::Nil => Ok(None),
        _ => read(value).map(Some),
    }
}
