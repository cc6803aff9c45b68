use std::time::Duration;

use kvgrid_core::ModelName;

use super::*;
use crate::sources::dynamo_events::tests::usage_of;

const ENGINE: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n\
    vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2\n\
    vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n\
    vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\n";
const FRONTEND: &str = "dynamo_frontend_inflight_requests{model=\"m\"} 7\n\
    dynamo_frontend_queued_requests{model=\"m\"} 2\n\
    dynamo_frontend_model_total_kv_blocks{model=\"m\"} 100\n\
    dynamo_frontend_model_kv_cache_block_size{model=\"m\"} 16\n\
    dynamo_frontend_model_max_num_seqs{model=\"m\"} 4\n";

fn model() -> ModelId {
    ModelName::new("m").unwrap().id()
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// What is known by these pages, each of the worker of that number, and these workers' word.
fn engines(pages: &[(u64, &str)], usage: &Usage, rank_requests: Option<u32>) -> Vec<EngineLoad> {
    let read = |(worker, text): &(u64, &str)| (*worker, at(10), Page::parse(text));
    let pages: Vec<_> = pages.iter().map(read).collect();
    let known = Known {
        pages: &pages,
        usage: &[(model(), usage)],
        pools: &[],
        rank_requests,
    };
    known.engines(at(10))
}

#[test]
fn steps_count_before_pages_and_pages_fill_in_what_they_leave_out() {
    let usage = usage_of(1, 1)
        .used(7, 0, 10)
        .step(7, 0, at(10), (4, 1, 900));
    let page = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n\
        sglang:kv_evictable_tokens{model_name=\"m\"} 400\n\
        sglang:max_total_num_tokens{model_name=\"m\"} 1600\n";

    let [load] = engines(&[(7, page), (1, FRONTEND)], &usage.0, None)[..] else {
        panic!("one rank");
    };

    assert_eq!((load.running, load.waiting), (4, Some(1)));
    assert_eq!(load.waiting_tokens, Some(900));
    assert_eq!((load.kv_use, load.kv_cached), (Some(0.1), Some(0.25)));
    assert_eq!((load.worker, load.max_requests), (7, Some(8)));
}

#[test]
fn pages_count_where_a_rank_tells_no_steps_with_the_size_from_its_card() {
    let usage = usage_of(2, 1).step(7, 0, at(10), (4, 1, 900));

    let [load] = engines(&[(7, ENGINE), (1, FRONTEND)], &usage.0, None)[..] else {
        panic!("the one page");
    };

    assert_eq!((load.running, load.waiting), (3, Some(2)));
    assert_eq!((load.kv_use, load.max_requests), (Some(0.5), Some(8)));
    assert_eq!(load.waiting_tokens, None);
}

#[test]
fn a_frontends_page_counts_last_and_the_sizes_are_the_cards() {
    let usage = usage_of(2, 2).used(7, 0, 25).used(8, 1, 75);

    let [load] = engines(&[(1, FRONTEND)], &usage.0, None)[..] else {
        panic!("one part");
    };

    let ranks = NonZeroU32::new(4);
    assert_eq!(load.extent, Extent::Site { ranks });
    assert_eq!((load.running, load.waiting), (5, Some(2)));
    assert_eq!((load.kv_use, load.kv_tokens), (Some(0.5), Some(4 * 1600)));
    assert_eq!(load.max_requests, Some(32));
}

#[test]
fn a_rank_computes_as_many_requests_as_a_frontend_or_else_the_configuration_says() {
    let requests = |pages: &[(u64, &str)], configured| {
        let loads = engines(pages, &Usage::default(), configured);
        loads[0].max_requests
    };

    assert_eq!(requests(&[(7, ENGINE)], None), None);
    assert_eq!(requests(&[(7, ENGINE)], Some(64)), Some(64));
    assert_eq!(requests(&[(7, ENGINE), (1, FRONTEND)], Some(64)), Some(4));
}

#[test]
fn use_without_requests_is_no_idle_engine() {
    let usage = usage_of(1, 1).used(7, 0, 10);

    assert_eq!(engines(&[], &usage.0, None), []);
}

#[test]
fn of_many_ranks_the_sum_is_told_and_what_one_leaves_out_is_unknown() {
    let mut usage = usage_of(1, 200);
    for rank in 0..200 {
        usage = usage.step(7, rank, at(10), (3, 1, 10));
    }

    let [sum] = engines(&[], &usage.0, None)[..] else {
        panic!("one part");
    };

    let ranks = NonZeroU32::new(200);
    assert_eq!(sum.extent, Extent::Site { ranks });
    assert_eq!((sum.running, sum.waiting), (600, Some(200)));
    assert_eq!(sum.waiting_tokens, Some(2000));
    assert_eq!(sum.max_requests, Some(1600));
    assert_eq!((sum.kv_tokens, sum.kv_use), (Some(200 * 1600), None));
}
