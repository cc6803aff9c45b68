use core::time::Duration;
use std::collections::BTreeMap;

use kvgrid_core::event::EngineHash;
use proptest::prelude::*;

use super::*;

const BLOCK: usize = 4;

fn config() -> SiteConfig {
    SiteConfig {
        block_size: NonZeroU32::new(4).unwrap(),
        capacity_blocks: 64,
        slots: 4,
        prefills: 4,
        queue: 64,
        timing: Timing::default(),
        vocabulary: Arc::new([]),
        seed: 1,
    }
}

fn request(tokens: impl IntoIterator<Item = u32>, max_tokens: u32) -> Request {
    Request {
        tokens: tokens.into_iter().collect(),
        max_tokens,
        namespace: None,
    }
}

fn drain(site: &mut Site) -> Vec<Output> {
    core::iter::from_fn(|| site.poll_output()).collect()
}

/// Lets time pass until nothing is left to do.
fn run(site: &mut Site) -> Vec<Output> {
    let mut outputs = drain(site);
    while let Some(due) = site.poll_timeout() {
        site.handle_timeout(due);
        outputs.extend(drain(site));
    }
    outputs
}

fn usage(outputs: &[Output], id: RequestId) -> Option<Usage> {
    outputs.iter().find_map(|output| match output {
        Output::Done { request, usage } if *request == id => Some(*usage),
        Output::Done { .. }
        | Output::Stored { .. }
        | Output::Removed { .. }
        | Output::Token { .. } => None,
    })
}

fn serve(site: &mut Site, request: Request) -> (Usage, Vec<Output>) {
    let id = site.handle_request(Instant::ZERO, request).unwrap();
    let outputs = run(site);
    (usage(&outputs, id).unwrap(), outputs)
}

#[test]
fn a_repeated_prompt_computes_its_last_block_again() {
    let cached = |tokens: u32| {
        let mut site = Site::new(config());
        serve(&mut site, request(0..tokens, 1));
        serve(&mut site, request(0..tokens, 1)).0.cached_tokens
    };

    assert_eq!([4, 8, 10, 12].map(cached), [0, 4, 8, 8]);
}

#[test]
fn an_answer_is_cached_but_for_its_last_token() {
    let mut site = Site::new(config());
    let (_, outputs) = serve(&mut site, request(0..6, 7));
    let answer = outputs.iter().filter_map(|output| match output {
        Output::Token { token, .. } => Some(*token),
        Output::Stored { .. } | Output::Removed { .. } | Output::Done { .. } => None,
    });
    let next: Vec<u32> = (0..6).chain(answer).chain([7; 4]).collect();

    let (usage, _) = serve(&mut site, request(next, 1));

    assert_eq!(usage.cached_tokens, 12);
}

#[test]
fn the_first_token_comes_after_the_prefill_and_the_next_ones_after_a_step_each() {
    let mut site = Site::new(config());
    site.handle_request(Instant::ZERO, request(0..100, 3))
        .unwrap();

    let mut times = Vec::new();
    while let Some(due) = site.poll_timeout() {
        times.push(due);
        site.handle_timeout(due);
    }

    let first = Instant::ZERO + Timing::default().prefill(100);
    let step = Duration::from_millis(6);
    assert_eq!(times, [first, first + step, first + step + step]);
}

#[test]
fn a_warm_prefix_shortens_the_prefill() {
    let mut site = Site::new(config());
    serve(&mut site, request(0..200, 1));
    let now = Instant::from_micros(10_000_000);

    site.handle_request(now, request(0..204, 1)).unwrap();

    assert_eq!(
        site.poll_timeout(),
        Some(now + Timing::default().prefill(4))
    );
}

#[test]
fn requests_wait_for_a_slot_in_order() {
    let mut site = Site::new(SiteConfig {
        slots: 1,
        ..config()
    });
    let ids: Vec<_> = (0..3)
        .map(|n| {
            site.handle_request(Instant::ZERO, request(n..n + 9, 2))
                .unwrap()
        })
        .collect();
    assert_eq!((site.load().running, site.load().waiting), (1, 2));
    assert_eq!(site.load().waiting_tokens, 18);

    let done: Vec<_> = run(&mut site)
        .iter()
        .filter_map(|output| match output {
            Output::Done { request, .. } => Some(*request),
            Output::Stored { .. } | Output::Removed { .. } | Output::Token { .. } => None,
        })
        .collect();

    assert_eq!(done, ids);
    assert_eq!(site.load().waiting_tokens, 0);
}

#[test]
fn one_prefill_at_a_time_lets_others_decode() {
    let mut site = Site::new(SiteConfig {
        prefills: 1,
        ..config()
    });
    site.handle_request(Instant::ZERO, request(0..9, 50))
        .unwrap();
    site.handle_request(Instant::ZERO, request(1..10, 50))
        .unwrap();
    assert_eq!(site.load().running, 1);

    let first = site.poll_timeout().unwrap();
    site.handle_timeout(first);

    assert_eq!(site.load().running, 2);
}

#[test]
fn work_after_a_late_timeout_begins_when_it_was_due() {
    let mut site = Site::new(SiteConfig {
        slots: 1,
        ..config()
    });
    site.handle_request(Instant::ZERO, request(0..9, 1))
        .unwrap();
    site.handle_request(Instant::ZERO, request(1..10, 1))
        .unwrap();
    let first = site.poll_timeout().unwrap();

    site.handle_timeout(first + Duration::from_millis(5));

    assert_eq!(
        site.poll_timeout(),
        Some(first + Timing::default().prefill(9))
    );
}

#[test]
fn a_full_queue_refuses() {
    let mut site = Site::new(SiteConfig {
        slots: 1,
        queue: 1,
        ..config()
    });
    site.handle_request(Instant::ZERO, request(0..9, 1))
        .unwrap();
    site.handle_request(Instant::ZERO, request(0..9, 1))
        .unwrap();

    let refusal = site
        .handle_request(Instant::ZERO, request(0..9, 1))
        .unwrap_err();

    assert_eq!(refusal, Refusal::Busy { waiting: 1 });
}

#[test]
fn a_prompt_larger_than_the_cache_is_refused() {
    let mut site = Site::new(config());

    let refusal = site
        .handle_request(Instant::ZERO, request(0..250, 10))
        .unwrap_err();

    assert_eq!(
        refusal,
        Refusal::TooLong {
            needed: 65,
            capacity: 64
        }
    );
    let empty = site.handle_request(Instant::ZERO, request([], 1));
    assert_eq!(empty, Err(Refusal::Empty));
}

#[test]
fn a_cancelled_request_gives_its_room_to_the_next() {
    let mut site = Site::new(SiteConfig {
        slots: 1,
        ..config()
    });
    let first = site
        .handle_request(Instant::ZERO, request(0..9, 9))
        .unwrap();
    let second = site
        .handle_request(Instant::ZERO, request(1..10, 1))
        .unwrap();
    let third = site
        .handle_request(Instant::ZERO, request(2..11, 1))
        .unwrap();

    site.cancel(Instant::ZERO, third);
    site.cancel(Instant::ZERO, first);
    let outputs = run(&mut site);

    assert!(usage(&outputs, second).is_some());
    assert!(usage(&outputs, first).is_none() && usage(&outputs, third).is_none());
    assert_eq!(site.load().used_blocks, 0);
}

#[test]
fn namespaces_share_no_blocks() {
    let mut site = Site::new(config());
    serve(&mut site, request(0..20, 1));

    let mut other = request(0..20, 1);
    other.namespace = Some("tenant-a".into());

    assert_eq!(serve(&mut site, other.clone()).0.cached_tokens, 0);
    assert_eq!(serve(&mut site, other).0.cached_tokens, 16);
}

#[test]
fn two_seeds_name_the_same_blocks_differently_but_answer_alike() {
    let outputs = |seed| {
        let mut site = Site::new(SiteConfig { seed, ..config() });
        serve(&mut site, request(0..20, 5)).1
    };
    let tokens = |outputs: &[Output]| -> Vec<Output> {
        let is_token = |output: &&Output| matches!(output, Output::Token { .. });
        outputs.iter().filter(is_token).cloned().collect()
    };

    let (one, two) = (outputs(1), outputs(2));
    assert_ne!(one, two);
    assert_eq!(tokens(&one), tokens(&two));
    assert_eq!(one, outputs(1));
}

/// What a listener knows who only hears the events.
#[derive(Default)]
struct Listener {
    /// Each block by its engine's name, with all tokens up to its end.
    blocks: BTreeMap<EngineHash, Vec<u32>>,
}

impl Listener {
    fn hear(&mut self, output: &Output) {
        match output {
            Output::Stored {
                parent,
                blocks,
                tokens,
                ..
            } => self.stored(*parent, blocks, tokens),
            Output::Removed { blocks } => {
                for block in blocks {
                    let gone = self
                        .blocks
                        .remove(block)
                        .expect("a removed block was stored");
                    let extends =
                        |other: &&Vec<u32>| other.len() > gone.len() && other.starts_with(&gone);
                    assert_eq!(self.blocks.values().find(extends), None, "leaf first");
                }
            }
            Output::Token { .. } | Output::Done { .. } => {}
        }
    }

    fn stored(&mut self, parent: Option<EngineHash>, blocks: &[EngineHash], tokens: &[u32]) {
        assert_eq!(tokens.len(), blocks.len() * BLOCK);
        let mut path = parent.map_or_else(Vec::new, |parent| self.blocks[&parent].clone());
        for (block, tokens) in blocks.iter().zip(tokens.chunks(BLOCK)) {
            path.extend(tokens);
            let known = self.blocks.insert(*block, path.clone());
            assert_eq!(known, None, "a stored block was not there");
        }
    }

    fn cached_tokens(&self, prompt: &[u32]) -> usize {
        let longest = self
            .blocks
            .values()
            .filter(|path| prompt.starts_with(path))
            .map(Vec::len)
            .max()
            .unwrap_or(0);
        longest.min((prompt.len() - 1) / BLOCK * BLOCK)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Request { tokens: Vec<u32>, answer: u32 },
    Cancel(usize),
    Wait(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Two token values make shared prefixes common.
    let tokens = prop::collection::vec(0u32..2, 1..40);
    let op = prop_oneof![
        4 => (tokens, 1u32..12).prop_map(|(tokens, answer)| Op::Request { tokens, answer }),
        1 => (0usize..8).prop_map(Op::Cancel),
        4 => (0u64..60_000).prop_map(Op::Wait),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #[test]
    fn events_tell_a_listener_exactly_what_is_cached(
        ops in ops(), capacity_blocks in 14usize..40, slots in 1usize..4, prefills in 1usize..4,
    ) {
        let vocabulary: Arc<[u32]> = Arc::new([0, 1]);
        let mut site = Site::new(SiteConfig {
            capacity_blocks, slots, prefills, vocabulary, ..config()
        });
        let mut listener = Listener::default();
        let mut now = Instant::ZERO;
        let mut ids = Vec::new();
        for op in ops {
            match op {
                Op::Request { tokens, answer } => {
                    ids.extend(site.handle_request(now, request(tokens, answer)));
                }
                Op::Cancel(n) => {
                    if let Some(id) = ids.get(n) {
                        site.cancel(now, *id);
                    }
                }
                Op::Wait(micros) => {
                    now += Duration::from_micros(micros);
                    site.handle_timeout(now);
                }
            }
            drain(&mut site).iter().for_each(|output| listener.hear(output));
            let load = site.load();
            prop_assert_eq!(load.cached_blocks, listener.blocks.len());
            prop_assert!(load.used_blocks <= capacity_blocks);
            prop_assert!(load.cached_blocks <= capacity_blocks);
            prop_assert!(load.running <= slots);
        }
        run(&mut site).iter().for_each(|output| listener.hear(output));
        prop_assert_eq!(site.load().used_blocks, 0);
        prop_assert_eq!(site.load().waiting, 0);
    }

    #[test]
    fn cached_tokens_are_the_longest_prefix_that_events_announced(
        prompts in prop::collection::vec((prop::collection::vec(0u32..2, 1..40), 1u32..9), 1..40),
        capacity_blocks in 12usize..40,
    ) {
        let vocabulary: Arc<[u32]> = Arc::new([0, 1]);
        let mut site = Site::new(SiteConfig { capacity_blocks, vocabulary, ..config() });
        let mut listener = Listener::default();
        for (tokens, answer) in prompts {
            let expected = listener.cached_tokens(&tokens);
            prop_assert_eq!(site.cached_tokens(&tokens, None), expected);
            let (usage, outputs) = serve(&mut site, request(tokens, answer));
            outputs.iter().for_each(|output| listener.hear(output));
            prop_assert_eq!(usage.cached_tokens, expected);
            prop_assert_eq!(usage.output_tokens, answer);
        }
    }
}
