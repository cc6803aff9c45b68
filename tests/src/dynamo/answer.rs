//! What a Dynamo site says of a request it served.

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::Place;
use crate::client;

/// A site's answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; null when it wasn't JSON.
    pub body: Value,
}

impl Answer {
    /// Tokens of the prompt, as the site counts them.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.body.pointer("/usage/prompt_tokens")?.as_u64()
    }

    /// Tokens of the prompt that the site had cached.
    pub fn cached_tokens(&self) -> Option<u64> {
        self.body
            .pointer("/usage/prompt_tokens_details/cached_tokens")?
            .as_u64()
    }

    /// Who has computed its prompt, when the request asked for that; the same worker answers
    /// unless its site has others for that.
    pub fn place(&self) -> Option<Place> {
        let worker = self.body.pointer("/nvext/worker_id")?;
        let told = |prefill, decode| worker.get(prefill).or_else(|| worker.get(decode))?.as_u64();
        let rank = told("prefill_dp_rank", "decode_dp_rank")?;
        Some(Place {
            worker: told("prefill_worker_id", "decode_worker_id")?,
            rank: u32::try_from(rank).ok()?,
        })
    }

    /// The prompt's token ids, when the request asked for them.
    pub fn prompt_token_ids(&self) -> Option<Vec<u32>> {
        let ids = self.body.pointer("/nvext/prompt_token_ids")?.as_array()?;
        ids.iter()
            .map(|id| u32::try_from(id.as_u64()?).ok())
            .collect()
    }
}

impl From<client::Answer> for Answer {
    fn from(answer: client::Answer) -> Self {
        Self {
            body: answer.json().unwrap_or(Value::Null),
            status: answer.status,
            headers: answer.headers,
        }
    }
}
