//! The engine's metrics page, by vLLM's names.

use std::fmt::Write as _;

use super::engine::EngineStats;

/// Renders the page in Prometheus' text form.
pub(super) fn page(model: &str, stats: &EngineStats, block_size: u32) -> String {
    let load = stats.load;
    let share = |blocks: usize| {
        let of = |blocks| u32::try_from(blocks).map_or(f64::MAX, f64::from);
        of(blocks) / of(load.capacity_blocks.max(1))
    };
    let mut page = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: f64| {
        let family = name.trim_end_matches("_total");
        let _ = writeln!(page, "# HELP vllm:{family} {help}");
        let _ = writeln!(page, "# TYPE vllm:{family} {kind}");
        let _ = writeln!(
            page,
            "vllm:{name}{{engine=\"0\",model_name={model:?}}} {value}"
        );
    };
    let count = |n: usize| u32::try_from(n).map_or(f64::MAX, f64::from);
    #[allow(clippy::cast_precision_loss, reason = "Prometheus has only doubles")]
    let total = |n: u64| n as f64;
    metric(
        "num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        count(load.running),
    );
    metric(
        "num_requests_waiting",
        "gauge",
        "Number of requests waiting to be processed.",
        count(load.waiting),
    );
    metric(
        "kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        share(load.used_blocks),
    );
    metric(
        "prefix_cache_queries_total",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
        total(stats.prompt_tokens),
    );
    metric(
        "prefix_cache_hits_total",
        "counter",
        "Prefix cache hits, in terms of number of cached tokens.",
        total(stats.cached_tokens),
    );
    metric(
        "generation_tokens_total",
        "counter",
        "Number of generation tokens processed.",
        total(stats.output_tokens),
    );
    metric(
        "request_success_total",
        "counter",
        "Count of successfully processed requests.",
        total(stats.answers),
    );
    let _ = writeln!(
        page,
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig"
    );
    let _ = writeln!(page, "# TYPE vllm:cache_config_info gauge");
    let _ = writeln!(
        page,
        "vllm:cache_config_info{{block_size=\"{block_size}\",num_gpu_blocks=\"{}\"}} 1",
        load.capacity_blocks
    );
    page
}
