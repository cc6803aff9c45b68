//! An inference site: one engine with slots, a queue and a prefix cache.
//!
//! ```text
//!   handle_request -> waiting -> prefilling -> decoding -> done
//!                       |  FIFO: a slot, a prefill and room for the whole answer are free
//!                       +-- cancel, from any state
//! ```
//!
//! - A request's cached prefix is fixed when its prefill begins. The last prompt token is
//!   always computed, so a fully cached prompt of `n` tokens has `(n - 1) / block_size`
//!   cached blocks.
//! - A prompt's blocks are in the cache, and announced, when its prefill ends; blocks that
//!   the answer fills follow one by one. Room for all of them is reserved at the start, so
//!   nothing is ever preempted. The last token of an answer is never fed back and takes no
//!   room.
//! - Events name blocks as real engines do: by names of their own, which have nothing to do
//!   with the content hashes that kvgrid computes, and which a restart (a new seed) changes.
//! - An answer depends on its prompt alone, so every site gives the same one.
//!
//! Call [`handle_timeout`](Site::handle_timeout) when [`poll_timeout`](Site::poll_timeout)
//! says so, and drain [`poll_output`](Site::poll_output) after every other call. Work that
//! follows from a timeout begins when it was due, however late the call comes.

use core::num::NonZeroU32;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kvgrid_core::Instant;
use kvgrid_core::block::{ChainHash, HashFormat, HashSeed, block_hashes, chain_hashes};
use kvgrid_core::event::EngineHash;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::cache::BlockCache;
use crate::request::{Output, Refusal, Request, RequestId, SiteLoad, Usage};
use crate::timing::Timing;

mod job;

use job::{Job, StoredRun, digest, mix};

/// What a site is like.
#[derive(Clone, Debug)]
pub struct SiteConfig {
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// Blocks that fit into the engine's memory.
    pub capacity_blocks: usize,
    /// Requests that run at the same time.
    pub slots: usize,
    /// How many of them may be in their prefill.
    pub prefills: usize,
    /// Requests that may wait; more are refused.
    pub queue: usize,
    /// The engine's speed.
    pub timing: Timing,
    /// Token ids that answers are made of; empty means the ids 0 to 999.
    pub vocabulary: Arc<[u32]>,
    /// Where the engine's names for blocks come from.
    pub seed: u64,
}

/// An inference site.
#[derive(Debug)]
pub struct Site {
    config: SiteConfig,
    cache: BlockCache,
    name_key: u64,
    requests: u64,
    waiting: VecDeque<(RequestId, Request)>,
    waiting_tokens: usize,
    running: BTreeMap<RequestId, Job>,
    prefilling: usize,
    timers: BTreeSet<(Instant, RequestId)>,
    outputs: VecDeque<Output>,
}

impl Site {
    /// A site that is idle and cold.
    pub fn new(config: SiteConfig) -> Self {
        Self {
            cache: BlockCache::new(config.capacity_blocks),
            name_key: SmallRng::seed_from_u64(config.seed).random(),
            config,
            requests: 0,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            running: BTreeMap::new(),
            prefilling: 0,
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes a request, or says why not.
    pub fn handle_request(
        &mut self,
        now: Instant,
        mut request: Request,
    ) -> Result<RequestId, Refusal> {
        self.handle_timeout(now);
        request.max_tokens = request.max_tokens.max(1);
        self.check(&request)?;
        let id = RequestId(self.requests);
        self.requests += 1;
        self.waiting_tokens += request.tokens.len();
        self.waiting.push_back((id, request));
        self.admit(now);
        Ok(id)
    }

    /// Ends a request that nobody waits for any more; one that is done is ignored.
    pub fn cancel(&mut self, now: Instant, id: RequestId) {
        self.handle_timeout(now);
        if let Some(job) = self.running.remove(&id) {
            self.timers.remove(&(job.due, id));
            self.end(&job);
        } else if let Some(place) = self.waiting.iter().position(|(other, _)| *other == id)
            && let Some((_, request)) = self.waiting.remove(place)
        {
            self.waiting_tokens -= request.tokens.len();
        }
        self.admit(now);
    }

    /// When something happens next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Does all that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((due, id)) = self.timers.first().copied()
            && due <= now
        {
            self.timers.remove(&(due, id));
            self.step(due, id);
        }
    }

    /// What the site did, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// How busy the site is.
    pub fn load(&self) -> SiteLoad {
        SiteLoad {
            running: self.running.len(),
            waiting: self.waiting.len(),
            waiting_tokens: self.waiting_tokens,
            used_blocks: self.cache.in_use(),
            cached_blocks: self.cache.len(),
            capacity_blocks: self.cache.capacity(),
        }
    }

    /// How many leading tokens of a prompt need not be computed, if it came now.
    pub fn cached_tokens(&self, tokens: &[u32], namespace: Option<&str>) -> usize {
        let chain = self.chain(tokens, namespace);
        self.cached_blocks(&chain, tokens.len()) * self.block_size()
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        if request.tokens.is_empty() {
            return Err(Refusal::Empty);
        }
        let needed = self.blocks_for(request);
        if needed > self.cache.capacity() {
            return Err(Refusal::TooLong {
                needed,
                capacity: self.cache.capacity(),
            });
        }
        // A request that can start at once never waits, so even a queue of none takes it.
        let can_start = self.waiting.is_empty() && self.running.len() < self.config.slots;
        if !can_start && self.waiting.len() >= self.config.queue {
            return Err(Refusal::Busy {
                waiting: self.waiting.len(),
            });
        }
        Ok(())
    }

    fn block_size(&self) -> usize {
        usize::try_from(self.config.block_size.get()).unwrap_or(usize::MAX)
    }

    fn blocks_for(&self, request: &Request) -> usize {
        let answer = usize::try_from(request.max_tokens).unwrap_or(usize::MAX);
        let tokens = request.tokens.len().saturating_add(answer - 1);
        tokens.div_ceil(self.block_size())
    }

    fn chain(&self, tokens: &[u32], namespace: Option<&str>) -> Vec<ChainHash> {
        let seed = HashSeed::new(None, namespace);
        chain_hashes(tokens, self.config.block_size, HashFormat::Standard, seed)
    }

    fn cached_blocks(&self, chain: &[ChainHash], tokens: usize) -> usize {
        let most = tokens.saturating_sub(1) / self.block_size();
        self.cache.depth(chain).min(most)
    }

    /// Starts waiting requests, first come first served, while there is room.
    fn admit(&mut self, now: Instant) {
        while self.running.len() < self.config.slots && self.prefilling < self.config.prefills {
            let Some((id, request)) = self.waiting.pop_front() else {
                break;
            };
            if let Err(request) = self.start(now, id, request) {
                self.waiting.push_front((id, request));
                break;
            }
        }
    }

    fn start(&mut self, now: Instant, id: RequestId, request: Request) -> Result<(), Request> {
        let mut chain = self.chain(&request.tokens, request.namespace.as_deref());
        let cached = self.cached_blocks(&chain, request.tokens.len());
        chain.truncate(cached);
        let tip = chain.last().copied();
        if let Some(tip) = tip {
            self.cache.pin(tip);
        }
        let reserved = self.blocks_for(&request) - cached;
        let Some(evicted) = self.cache.reserve(reserved) else {
            if let Some(tip) = tip {
                self.cache.unpin(tip);
            }
            return Err(request);
        };
        self.announce_removed(&evicted);
        self.waiting_tokens -= request.tokens.len();
        let cached_tokens = cached * self.block_size();
        let due = now
            + self
                .config
                .timing
                .prefill(request.tokens.len() - cached_tokens);
        let job = Job {
            rng: SmallRng::seed_from_u64(digest(&request.tokens)),
            prompt_tokens: request.tokens.len(),
            cached_tokens,
            max_tokens: request.max_tokens,
            answered: 0,
            namespace: request.namespace,
            tokens: request.tokens,
            chain,
            reserved,
            due,
        };
        self.prefilling += 1;
        self.timers.insert((due, id));
        self.running.insert(id, job);
        Ok(())
    }

    /// A job's prefill has ended, or its next token is there.
    fn step(&mut self, due: Instant, id: RequestId) {
        let Some(mut job) = self.running.remove(&id) else {
            return;
        };
        let ends_prefill = job.answered == 0;
        if ends_prefill {
            self.prefilling -= 1;
        }
        self.store(&mut job);
        let token = job.next_token(&self.config.vocabulary);
        job.tokens.push(token);
        self.outputs.push_back(Output::Token {
            request: id,
            number: job.answered,
            token,
        });
        job.answered += 1;
        if job.answered == job.max_tokens {
            self.finish(id, &job);
            self.admit(due);
        } else {
            job.due = due + self.config.timing.decode();
            self.timers.insert((job.due, id));
            self.running.insert(id, job);
            if ends_prefill {
                self.admit(due);
            }
        }
    }

    /// Stores and announces the job's full blocks that are not in the cache as its own.
    fn store(&mut self, job: &mut Job) {
        let block_size = self.block_size();
        let first = job.chain.len();
        let seed = HashSeed::new(None, job.namespace.as_deref());
        let fresh = &job.tokens[first * block_size..];
        let hashes = block_hashes(fresh, self.config.block_size, HashFormat::Standard, seed);
        let mut run: Option<StoredRun> = None;
        for (index, hash) in hashes.into_iter().enumerate() {
            let tip = job.chain.last().copied();
            let block = tip.map_or_else(|| ChainHash::root(hash), |tip| tip.child(hash));
            job.reserved -= 1;
            job.chain.push(block);
            if self.cache.advance(tip, block) {
                let tokens = &fresh[index * block_size..(index + 1) * block_size];
                run.get_or_insert_with(|| StoredRun::after(tip))
                    .push(block, tokens);
            } else {
                // Another request stored the same block meanwhile: it is announced already.
                self.announce_stored(run.take(), job);
            }
        }
        self.announce_stored(run, job);
    }

    fn finish(&mut self, id: RequestId, job: &Job) {
        self.end(job);
        self.outputs.push_back(Output::Done {
            request: id,
            usage: Usage {
                prompt_tokens: job.prompt_tokens,
                cached_tokens: job.cached_tokens,
                output_tokens: job.answered,
            },
        });
    }

    /// Gives back what a job held that runs no more.
    fn end(&mut self, job: &Job) {
        if job.answered == 0 {
            self.prefilling -= 1;
        }
        self.cache.release(job.reserved);
        if let Some(tip) = job.chain.last() {
            self.cache.unpin(*tip);
        }
    }

    fn name(&self, block: ChainHash) -> EngineHash {
        EngineHash(mix(block.0 ^ self.name_key))
    }

    fn announce_stored(&mut self, run: Option<StoredRun>, job: &Job) {
        let Some(run) = run else { return };
        let stored = Output::Stored {
            parent: run.parent.map(|parent| self.name(parent)),
            blocks: run.blocks.iter().map(|block| self.name(*block)).collect(),
            tokens: run.tokens,
            namespace: job.namespace.clone(),
        };
        self.outputs.push_back(stored);
    }

    fn announce_removed(&mut self, evicted: &[ChainHash]) {
        if !evicted.is_empty() {
            let blocks = evicted.iter().map(|block| self.name(*block)).collect();
            self.outputs.push_back(Output::Removed { blocks });
        }
    }
}

#[cfg(test)]
mod tests;
