//! How wrong an edge is about what a site will have cached when a request's turn comes, with
//! and without the age at which that site evicts.
//!
//! A simulated site whose cache holds half of what its conversations need, and whose queue is
//! some seconds long: between the decision and the prefill, part of what was there goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvgrid_core::Instant;
use kvgrid_core::block::ChainHash;
use kvgrid_core::event::EngineHash;
use kvgrid_core::eviction::{EvictionAges, survival};
use kvgrid_sim::{Output, Request, RequestId, Site, SiteConfig, Timing};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::bench::figure::Figure;

const BLOCK: u32 = 16;
/// Conversations, each of which some client comes back to.
const CONVERSATIONS: usize = 400;
/// Tokens of each.
const TOKENS: usize = 4_000;
/// Answers take one token: what is measured is over when a prefill begins.
const ANSWER: u32 = 1;
/// What the site's prefill takes for a token, as an edge learns it.
const MS_PER_TOKEN: f64 = 0.02;

pub(super) fn run(quick: bool) -> anyhow::Result<()> {
    let requests = if quick { 5_000 } else { 50_000 };
    let mut run = Run::new();
    for _ in 0..requests {
        run.ask()?;
    }
    for (metric, value) in [
        ("error_of_overlap_rms", run.plain.rms()),
        ("error_of_overlap_rms_by_eviction_age", run.aged.rms()),
        ("error_of_overlap_mean", run.plain.mean().abs()),
        (
            "error_of_overlap_mean_by_eviction_age",
            run.aged.mean().abs(),
        ),
    ] {
        Figure::less("eviction", metric, value, "tokens").print()?;
    }
    Ok(())
}

/// Differences between what was expected and what was cached.
#[derive(Default)]
struct Errors {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Errors {
    fn add(&mut self, expected: f64, cached: f64) {
        let error = expected - cached;
        self.count += 1.0;
        self.sum += error;
        self.squares += error * error;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count
    }

    fn rms(&self) -> f64 {
        (self.squares / self.count).sqrt()
    }
}

struct Run {
    site: Site,
    ages: EvictionAges,
    rng: SmallRng,
    now: Instant,
    conversations: Vec<Vec<u32>>,
    /// What was expected of requests that wait: without ages, and with them.
    expected: BTreeMap<RequestId, (usize, f64, f64)>,
    /// Conversations of which a request waits.
    waiting: BTreeSet<usize>,
    plain: Errors,
    aged: Errors,
}

impl Run {
    fn new() -> Self {
        let mut rng = SmallRng::seed_from_u64(1);
        let conversation = |_| (0..TOKENS).map(|_| rng.random_range(0..1_000)).collect();
        let conversations = (0..CONVERSATIONS).map(conversation).collect();
        let needed = CONVERSATIONS * (TOKENS / BLOCK as usize);
        let site = Site::new(SiteConfig {
            block_size: BLOCK.try_into().expect("it is not zero"),
            capacity_blocks: needed / 2,
            slots: 8,
            prefills: 1,
            queue: usize::MAX,
            timing: Timing::default(),
            vocabulary: [].into(),
            seed: 1,
        });
        Self {
            site,
            ages: EvictionAges::default(),
            rng,
            now: Instant::ZERO,
            conversations,
            expected: BTreeMap::new(),
            waiting: BTreeSet::new(),
            plain: Errors::default(),
            aged: Errors::default(),
        }
    }

    /// Somebody asks, in a rush or after a pause, so that the queue grows and shrinks.
    fn ask(&mut self) -> anyhow::Result<()> {
        let load = self.site.load();
        let mean_ms = if load.waiting > 100 { 120.0 } else { 30.0 };
        let pause = -mean_ms * self.rng.random::<f64>().max(1e-9).ln();
        self.advance(self.now + Duration::from_secs_f64(pause / 1_000.0));

        let talk = self.rng.random_range(0..self.conversations.len());
        let tokens = self.conversations[talk].clone();
        let overlap = self.site.cached_tokens(&tokens, None) as f64;
        // As relays report it: what is expected to be computed before.
        let waiting = self.expected.values();
        let queued: f64 = waiting.map(|(_, plain, _)| TOKENS as f64 - plain).sum();
        let wait = queued * MS_PER_TOKEN;
        let wait = Duration::from_secs_f64(wait / 1_000.0);
        let whole = ((tokens.len() - 1) / BLOCK as usize * BLOCK as usize) as f64;
        let is_sent = self.waiting.contains(&talk);
        let age = self.ages.age(self.now);
        // As edges do: what was just sent there counts as cached, and as fresh.
        let (overlap, share) = match (is_sent && overlap < whole, age) {
            (true, _) => (whole, 1.0),
            (false, Some(age)) => (overlap, survival(age, wait)),
            (false, None) => (overlap, 1.0),
        };
        let request = Request {
            tokens,
            max_tokens: ANSWER,
            namespace: None,
        };
        let id = self.site.handle_request(self.now, request)?;
        self.waiting.insert(talk);
        self.expected.insert(id, (talk, overlap, overlap * share));
        self.drain();
        Ok(())
    }

    fn advance(&mut self, to: Instant) {
        while let Some(due) = self.site.poll_timeout().filter(|due| *due <= to) {
            self.now = due;
            self.site.handle_timeout(due);
            self.drain();
        }
        self.now = to;
    }

    fn drain(&mut self) {
        let named = |name: &EngineHash| ChainHash(name.0);
        while let Some(output) = self.site.poll_output() {
            match output {
                Output::Stored { blocks, .. } => blocks
                    .iter()
                    .for_each(|block| self.ages.handle_stored(named(block), self.now)),
                Output::Removed { blocks } => blocks
                    .iter()
                    .for_each(|block| self.ages.handle_evicted(named(block), self.now)),
                Output::Done { request, usage } => {
                    if let Some((talk, plain, aged)) = self.expected.remove(&request) {
                        self.waiting.remove(&talk);
                        self.plain.add(plain, usage.cached_tokens as f64);
                        self.aged.add(aged, usage.cached_tokens as f64);
                    }
                }
                Output::Token { .. } => {}
            }
        }
    }
}
