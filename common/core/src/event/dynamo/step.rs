//! What an engine's scheduler says of each of its steps.

use super::super::msgpack::{Malformed, Reader, Token};
use super::{DecodeError, fields, small, uint};

/// The topic of engines' steps. A worker publishes one message a step and rank, and about one a
/// second while it has nothing to do.
pub const FORWARD_PASS_METRICS: &str = "forward-pass-metrics";

/// The only form of message that is known here.
const VERSION: u64 = 1;

/// One message of topic [`FORWARD_PASS_METRICS`], as far as it says how busy the rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The worker, as discovery names it too.
    pub worker: u64,
    /// The data-parallel rank within it.
    pub rank: u32,
    /// Requests that the step computed something of.
    pub running: u32,
    /// Requests that waited meanwhile, those among them that had to make room.
    pub waiting: u32,
    /// Prompt tokens of those that have not been computed yet: whole prompts, for what is cached
    /// of them is only looked up when their turn comes.
    pub waiting_tokens: u64,
}

/// Reads a payload of topic [`FORWARD_PASS_METRICS`].
pub fn step(payload: &[u8]) -> Result<Step, DecodeError> {
    let (mut worker, mut rank) = (None, None);
    let (mut scheduled, mut queued) = (None, None);
    fields(Reader::new(payload), |name, value| {
        match name {
            b"version" if uint(value)? != VERSION => return Err(Malformed::Type),
            b"worker_id" => worker = Some(worker_id(value)?),
            b"dp_rank" => rank = Some(small(value)?),
            b"scheduled_requests" => scheduled = Some(Requests::read(value)?),
            b"queued_requests" => queued = Some(Requests::read(value)?),
            _ => {}
        }
        Ok(())
    })?;
    let scheduled = scheduled.ok_or(Malformed::Type)?;
    let queued = queued.ok_or(Malformed::Type)?;
    Ok(Step {
        worker: worker.ok_or(Malformed::Type)?,
        rank: rank.ok_or(Malformed::Type)?,
        running: scheduled.prefill.saturating_add(scheduled.decode),
        waiting: queued.prefill.saturating_add(queued.decode),
        waiting_tokens: queued.prefill_tokens,
    })
}

/// Requests by what is computed of them next.
struct Requests {
    prefill: u32,
    decode: u32,
    prefill_tokens: u64,
}

impl Requests {
    fn read(value: Reader<'_>) -> Result<Self, Malformed> {
        let (mut prefill, mut decode, mut prefill_tokens) = (None, None, None);
        fields(value, |name, value| {
            match name {
                b"num_prefill_requests" => prefill = Some(small(value)?),
                b"num_decode_requests" => decode = Some(small(value)?),
                b"sum_prefill_tokens" => prefill_tokens = Some(uint(value)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Self {
            prefill: prefill.ok_or(Malformed::Type)?,
            decode: decode.ok_or(Malformed::Type)?,
            prefill_tokens: prefill_tokens.ok_or(Malformed::Type)?,
        })
    }
}

/// Written in decimal digits; a number would be as good.
fn worker_id(value: Reader<'_>) -> Result<u64, Malformed> {
    let mut digits = value;
    match digits.token()? {
        Token::Str(digits) => {
            let digits = core::str::from_utf8(digits).map_err(|_| Malformed::Type)?;
            digits.parse().map_err(|_| Malformed::Type)
        }
        _ => uint(value),
    }
}
