use super::super::join::Known;
use super::*;

const ENGINE: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n\
    vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2\n\
    vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 1\n\
    vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n\
    vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.9\n\
    vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\n\
    vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"None\"} 1\n";
const FRONTEND: &str = "dynamo_frontend_inflight_requests{model=\"m\"} 7\n\
    dynamo_frontend_queued_requests{model=\"m\"} 2\n\
    dynamo_frontend_model_total_kv_blocks{model=\"m\"} 2048\n\
    dynamo_frontend_model_kv_cache_block_size{model=\"m\"} 16\n\
    dynamo_frontend_model_max_num_seqs{model=\"m\"} 4\n";
const REGISTERED: &str = "dynamo_component_uptime_seconds{worker_id=\"2bf1e80559fb735e\"} 785.1\n\
    dynamo_component_router_worker_registered{dp_rank=\"0\",router_worker_id=\"7\",worker_id=\"2b\",worker_type=\"decode\"} 1\n\
    dynamo_component_router_worker_registered{dp_rank=\"1\",router_worker_id=\"7\",worker_id=\"2b\",worker_type=\"decode\"} 1\n\
    dynamo_component_router_worker_registered{dp_rank=\"0\",router_worker_id=\"8\",worker_id=\"2b\",worker_type=\"decode\"} 0\n";

fn model() -> ModelId {
    ModelName::new("m").unwrap().id()
}

fn merged(pages: &[&str]) -> Vec<EngineLoad> {
    let pages: Vec<_> = (1..)
        .zip(pages)
        .map(|(worker, text)| (worker, Instant::ZERO, Page::parse(text)))
        .collect();
    let known = Known {
        pages: &pages,
        usage: &[],
        pools: &[],
        rank_requests: None,
    };
    known.engines(Instant::ZERO)
}

#[test]
fn an_engine_tells_load_per_rank() {
    let loads = merged(&[ENGINE]);

    assert_eq!(loads.len(), 2);
    assert_eq!(
        (loads[0].rank, loads[0].running, loads[0].waiting),
        (0, 3, Some(2))
    );
    assert_eq!(
        (loads[0].kv_use, loads[0].kv_tokens),
        (Some(0.5), Some(1600))
    );
    assert_eq!((loads[1].rank, loads[1].running), (1, 1));
}

#[test]
fn a_cache_that_is_not_measured_yet_has_no_size() {
    let page = ENGINE.replace("num_gpu_blocks=\"100\"", "num_gpu_blocks=\"0\"");

    assert_eq!(merged(&[&page])[0].kv_tokens, None);
}

#[test]
fn what_an_engine_does_not_tell_is_unknown_and_not_zero() {
    let loads = merged(&[ENGINE]);

    assert_eq!((loads[1].waiting, loads[1].kv_use), (None, None));
    assert_eq!((loads[1].kv_tokens, loads[0].kv_cached), (None, None));
}

#[test]
fn sglang_tells_what_requests_hold_and_what_could_be_evicted() {
    let labels = "model_name=\"m\",engine_type=\"unified\",tp_rank=\"0\",pp_rank=\"0\"";
    let page = format!(
        "sglang:num_running_reqs{{{labels}}} 4\n\
         sglang:num_queue_reqs{{{labels}}} 1\n\
         sglang:token_usage{{{labels}}} 0.25\n\
         sglang:max_total_num_tokens{{{labels}}} 4000\n\
         sglang:kv_evictable_tokens{{{labels}}} 2000\n"
    );

    let [load] = merged(&[&page])[..] else {
        panic!("one rank");
    };

    assert_eq!((load.running, load.waiting), (4, Some(1)));
    assert_eq!((load.kv_use, load.kv_cached), (Some(0.25), Some(0.5)));
    assert_eq!(load.kv_tokens, Some(4000));
}

#[test]
fn sglangs_priorities_and_processes_are_no_further_requests() {
    let page = "sglang:num_running_reqs{dp_rank=\"1\",model_name=\"m\",priority=\"\",tp_rank=\"0\"} 5\n\
        sglang:num_running_reqs{dp_rank=\"1\",model_name=\"m\",priority=\"7\",tp_rank=\"0\"} 3\n\
        sglang:num_running_reqs{dp_rank=\"1\",model_name=\"m\",priority=\"\",tp_rank=\"1\"} 5\n\
        sglang:num_running_reqs{dp_rank=\"0\",model_name=\"m\",priority=\"\",tp_rank=\"0\"} 2\n";

    let loads: Vec<_> = merged(&[page])
        .iter()
        .map(|it| (it.rank, it.running))
        .collect();

    assert_eq!(loads, [(0, 2), (1, 5)]);
}

#[test]
fn tensorrt_llm_tells_load_by_its_own_names() {
    let page = "trtllm_num_requests_running{engine_type=\"trtllm\",model_name=\"m\"} 2\n\
        trtllm_num_requests_waiting{engine_type=\"trtllm\",model_name=\"m\"} 9\n\
        trtllm_max_num_active_requests{engine_type=\"trtllm\",model_name=\"m\"} 64\n\
        trtllm_kv_cache_utilization{engine_type=\"trtllm\",model_name=\"m\"} 0.75\n\
        trtllm_kv_cache_max_blocks{engine_type=\"trtllm\",model_name=\"m\"} 10\n\
        trtllm_kv_cache_tokens_per_block{engine_type=\"trtllm\",model_name=\"m\"} 32\n";

    let [load] = merged(&[page])[..] else {
        panic!("one rank");
    };

    assert_eq!((load.running, load.waiting), (2, Some(9)));
    assert_eq!((load.kv_use, load.kv_tokens), (Some(0.75), Some(320)));
    assert_eq!(load.max_requests, Some(64));
}

#[test]
fn a_frontend_counts_the_waiting_among_those_in_flight() {
    let loads = merged(&[FRONTEND]);

    assert_eq!(loads.len(), 1);
    assert_eq!((loads[0].running, loads[0].waiting), (5, Some(2)));
    assert_eq!(loads[0].extent, Extent::Site { ranks: None });
}

#[test]
fn what_a_frontend_says_of_one_rank_is_of_as_many_as_it_knows() {
    let page = format!("{FRONTEND}{REGISTERED}");
    let blocks = |page| {
        let blocks: Vec<_> = Page::parse(page).kv_blocks().collect();
        blocks
    };

    let [load] = merged(&[&page])[..] else {
        panic!("one part");
    };
    let [unknown] = merged(&[FRONTEND])[..] else {
        panic!("one part");
    };

    let ranks = NonZeroU32::new(2);
    assert_eq!(load.extent, Extent::Site { ranks });
    assert_eq!(load.max_requests, Some(2 * 4));
    assert_eq!(load.kv_tokens, Some(2 * 2048 * 16));
    assert_eq!(blocks(&page), [(model(), 2 * 2048)]);
    assert_eq!((unknown.max_requests, unknown.kv_tokens), (None, None));
    assert_eq!(blocks(FRONTEND), []);
    assert_eq!(Page::parse(&page).process, Some(0x2bf1_e805_59fb_735e));
}

#[test]
fn ranks_that_may_not_be_the_models_or_not_alike_are_not_counted() {
    let two_models =
        format!("{FRONTEND}{REGISTERED}dynamo_frontend_inflight_requests{{model=\"n\"}} 1\n");
    let prefill = "dynamo_component_router_worker_registered{dp_rank=\"0\",router_worker_id=\"9\",worker_type=\"prefill\"} 1\n";
    let two_kinds = format!("{FRONTEND}{REGISTERED}{prefill}");

    for page in [two_models, two_kinds] {
        let loads = merged(&[&page]);
        assert!(loads.iter().all(|load| load.max_requests.is_none()));
        assert_eq!(loads[0].extent, Extent::Site { ranks: None });
    }
}

#[test]
fn a_frontend_without_a_queue_does_not_say_that_nobody_waits() {
    let loads = merged(&["dynamo_frontend_inflight_requests{model=\"m\"} 7\n"]);

    assert_eq!((loads[0].running, loads[0].waiting), (7, None));
}

#[test]
fn a_frontend_is_not_counted_beside_its_engines() {
    let loads = merged(&[FRONTEND, ENGINE]);

    assert_eq!(loads.iter().map(|load| load.running).sum::<u32>(), 4);
}

#[test]
fn a_page_that_tells_nothing_of_load_is_no_idle_engine() {
    assert!(merged(&["vllm:kv_cache_usage_perc{model_name=\"m\"} 0.5\nup 1\n"]).is_empty());
}

#[test]
fn values_out_of_range_saturate_and_those_below_none_are_unknown() {
    let loads = merged(&["vllm:num_requests_running{model_name=\"m\"} 1e30\n\
         vllm:num_requests_waiting{model_name=\"m\"} -4\n\
         vllm:kv_cache_usage_perc{model_name=\"m\"} 7\n\
         vllm:num_requests_running{model_name=\"n\"} -1\n"]);

    assert_eq!(loads.len(), 1);
    assert_eq!((loads[0].running, loads[0].waiting), (u32::MAX, None));
    assert_eq!(loads[0].kv_use, Some(1.0));
}
