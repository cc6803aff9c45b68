//! What engines and frontends call the figures of their load.
//!
//! - vLLM: a rank is an `engine`; the size of its cache stands in labels.
//! - SGLang: a rank is a `dp_rank`. Totals have no priority, and those with one are parts of
//!   them. Its usage is of what requests hold; what could be evicted is told beside it.
//! - TensorRT-LLM: one rank a page.
//! - Dynamo's frontend: one figure a model, of which the sizes are of one rank; the ranks that
//!   it knows stand in labels. Its workers pass on what their engines say. Each of its processes
//!   names itself.
//!
//! Neither vLLM nor SGLang tells how many requests it computes at once. What a frontend says of
//! prompts under way (`worker_active_prefill_tokens`) is of those that it has sent itself, or of
//! whichever router has spoken last, and is left aside.

use super::exposition::Sample;

/// Who tells a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    Engine,
    Frontend,
}

/// What a figure is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Requests being computed; a frontend's are all that are in flight.
    Running,
    /// Requests that wait for a place.
    Waiting,
    /// Share of the KV cache that requests hold.
    KvUse,
    /// The same under a name that newer versions don't mean.
    KvUseOld,
    /// Blocks of the KV cache.
    KvBlocks,
    /// Tokens in one of them.
    BlockTokens,
    /// Tokens that the KV cache has room for.
    KvTokens,
    /// Tokens in it that no request holds, kept for reuse.
    EvictableTokens,
    /// Requests that are computed at once.
    MaxRequests,
    /// The size of the cache, in labels.
    CacheConfig,
    /// A rank that a frontend's router knows, in labels.
    Registered,
    /// The process whose page it is, in a label.
    Process,
}

impl Speaker {
    /// The label that has the model's name.
    pub(super) const fn model_label(self) -> &'static str {
        match self {
            Self::Engine => "model_name",
            Self::Frontend => "model",
        }
    }
}

/// What a metric of this name is; nothing if it is of no use here.
pub(super) fn figure(name: &str) -> Option<(Speaker, Figure)> {
    use Figure::{
        BlockTokens, CacheConfig, EvictableTokens, KvBlocks, KvTokens, KvUse, KvUseOld,
        MaxRequests, Process, Registered, Running, Waiting,
    };
    let frontend = |figure| Some((Speaker::Frontend, figure));
    let engine = |figure| Some((Speaker::Engine, figure));
    match name {
        "vllm:num_requests_running" => engine(Running),
        "vllm:num_requests_waiting" => engine(Waiting),
        "vllm:kv_cache_usage_perc" => engine(KvUse),
        "vllm:gpu_cache_usage_perc" => engine(KvUseOld),
        "vllm:cache_config_info" => engine(CacheConfig),
        "sglang:num_running_reqs" => engine(Running),
        "sglang:num_queue_reqs" => engine(Waiting),
        "sglang:token_usage" => engine(KvUse),
        "sglang:max_total_num_tokens" => engine(KvTokens),
        "sglang:kv_evictable_tokens" => engine(EvictableTokens),
        "trtllm_num_requests_running" => engine(Running),
        "trtllm_num_requests_waiting" => engine(Waiting),
        "trtllm_max_num_active_requests" => engine(MaxRequests),
        "trtllm_kv_cache_utilization" => engine(KvUse),
        "trtllm_kv_cache_max_blocks" => engine(KvBlocks),
        "trtllm_kv_cache_tokens_per_block" => engine(BlockTokens),
        "dynamo_frontend_inflight_requests" => frontend(Running),
        "dynamo_frontend_queued_requests" => frontend(Waiting),
        "dynamo_frontend_model_total_kv_blocks" => frontend(KvBlocks),
        "dynamo_frontend_model_kv_cache_block_size" => frontend(BlockTokens),
        "dynamo_frontend_model_max_num_seqs" => frontend(MaxRequests),
        "dynamo_component_router_worker_registered" => frontend(Registered),
        "dynamo_component_uptime_seconds" => frontend(Process),
        _ => None,
    }
}

/// The rank that an engine speaks of; nothing if it speaks of a part of its requests only.
pub(super) fn rank(sample: &Sample<'_>) -> Option<u32> {
    if sample.label("priority").is_some_and(|it| !it.is_empty()) {
        return None;
    }
    let rank = sample.label("engine").or(sample.label("dp_rank"));
    rank.unwrap_or("0").parse().ok()
}
