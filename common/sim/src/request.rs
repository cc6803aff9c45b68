//! What goes into a site and what comes out of it.

use std::sync::Arc;

use kvgrid_core::event::EngineHash;
use thiserror::Error;

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Length of the answer, at least one.
    pub max_tokens: u32,
    /// Whose blocks these are; requests of different namespaces share none.
    pub namespace: Option<Arc<str>>,
}

/// A request accepted by a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Why a site does not take a request. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// There are no tokens to compute; the client is at fault.
    #[error("the prompt has no tokens")]
    Empty,
    /// Prompt and answer do not fit into the whole cache; the client is at fault.
    #[error("{needed} blocks do not fit into a cache of {capacity}")]
    TooLong {
        /// Blocks for prompt and answer.
        needed: usize,
        /// Blocks there are.
        capacity: usize,
    },
    /// The queue is full; later may do.
    #[error("{waiting} requests are waiting already")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
}

/// What a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them were not computed again.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub output_tokens: u32,
}

/// What a site does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Blocks were stored, in the order of their chain.
    Stored {
        /// The block before the first.
        parent: Option<EngineHash>,
        /// The engine's names.
        blocks: Vec<EngineHash>,
        /// The blocks' tokens, one block after the other.
        tokens: Vec<u32>,
        /// Whose they are.
        namespace: Option<Arc<str>>,
    },
    /// Blocks were evicted.
    Removed {
        /// The engine's names.
        blocks: Vec<EngineHash>,
    },
    /// A token of an answer; number 0 ends the prefill.
    Token {
        /// Whose.
        request: RequestId,
        /// Counts from zero.
        number: u32,
        /// The token.
        token: u32,
    },
    /// An answer is complete.
    Done {
        /// Whose.
        request: RequestId,
        /// What it took.
        usage: Usage,
    },
}

/// How busy a site is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteLoad {
    /// Requests in a slot.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Prompt tokens in the queue.
    pub waiting_tokens: usize,
    /// Blocks that can't be evicted now.
    pub used_blocks: usize,
    /// Blocks in the cache, in use or not.
    pub cached_blocks: usize,
    /// Most blocks there can be.
    pub capacity_blocks: usize,
}
