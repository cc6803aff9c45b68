//! Sites as lanes of the index.

use std::collections::VecDeque;
use std::error::Error;

use dynamo_kv_router::identity::{
    CacheSemanticsId, DcId, IdentitySource, IndexerDomainId, PoolId, RoutingScopeId,
};
use dynamo_kv_router::indexer::cuckoo::{
    CkfConfig, ConsumerInstanceId, DcCkfDelta, DcCkfPublicationBatch, DcCkfSnapshot, DcCkfState, GlobalCkfIndexer,
    GlobalCkfLaneIngestor, GlobalCkfManifest, LaneLease, PrefixSearchConfig, ProducerIdentity,
};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
};

use crate::prompts::Prompts;

/// Blocks that are told at once.
const BATCH: u64 = 1_000;
/// Blocks that come and go beside those of prompts.
const OTHERS: u64 = 200_000;
const CONSUMER: ConsumerInstanceId = ConsumerInstanceId::new(1);

/// The index, and what each of its lanes is fed by.
pub struct Lanes {
    index: GlobalCkfIndexer,
    lanes: Vec<(GlobalCkfLaneIngestor, ProducerIdentity, LaneLease)>,
}

/// Memory a block takes.
pub struct Bytes {
    /// In the index, for each site's block.
    pub filter: f64,
    /// In the exact state of one site.
    pub exact: f64,
}

/// The exact state of a site.
pub struct State {
    state: DcCkfState,
    next: u64,
    /// Other blocks by name, if they are to come and go.
    others: Option<VecDeque<u64>>,
    sequence: u64,
}

impl Lanes {
    /// All sites as full as they are to be; their exact states are dropped.
    pub fn full(prompts: &Prompts) -> Result<(Self, Bytes), Box<dyn Error>> {
        let mut lanes = Self::empty(prompts, prompts.blocks)?;
        let mut exact = 0.0;
        for site in 0..prompts.sites {
            let before = resident_bytes()?;
            let mut state = State::new(prompts, site, prompts.blocks, false)?;
            exact = (resident_bytes()? - before) / prompts.blocks as f64;
            lanes.install(site, &mut state)?;
        }
        let config = CkfConfig::new(usize::try_from(prompts.blocks)?);
        let words = config.bucket_count()? * 16 * 8;
        let blocks = prompts.blocks * prompts.sites as u64;
        let filter = words as f64 / blocks as f64;
        Ok((lanes, Bytes { filter, exact }))
    }

    /// Smaller sites, whose exact states live on so that blocks can come and go.
    pub fn alive(prompts: &Prompts) -> Result<(Self, Vec<State>), Box<dyn Error>> {
        let blocks = prompts.held() + OTHERS;
        let mut lanes = Self::empty(prompts, blocks)?;
        let mut states = Vec::new();
        for site in 0..prompts.sites {
            let mut state = State::new(prompts, site, blocks, true)?;
            lanes.install(site, &mut state)?;
            states.push(state);
        }
        Ok((lanes, states))
    }

    pub const fn index(&self) -> &GlobalCkfIndexer {
        &self.index
    }

    fn empty(prompts: &Prompts, blocks: u64) -> Result<Self, Box<dyn Error>> {
        let config = CkfConfig::new(usize::try_from(blocks)?);
        let format = DcCkfState::new(config)?.format();
        let explicit = IdentitySource::Explicit;
        let domain = IndexerDomainId::new(
            CacheSemanticsId::new([1; 16], explicit),
            RoutingScopeId::new([2; 16], explicit),
        );
        let pool = |site: usize| PoolId::new(domain, DcId::new(site as u64 + 1));
        let mut pools = [None; 16];
        for (site, lane) in pools.iter_mut().take(prompts.sites).enumerate() {
            *lane = Some(pool(site));
        }
        let manifest = GlobalCkfManifest::new(CONSUMER, domain, format, pools)?;
        let index = GlobalCkfIndexer::new(manifest, PrefixSearchConfig::default())?;
        let mut lanes = Vec::new();
        for site in 0..prompts.sites {
            let identity = ProducerIdentity::new(pool(site), 1, 1, format);
            let lease = LaneLease::new(CONSUMER, u8::try_from(site)?, 1);
            let mut lane = index.claim_lane(site)?;
            lane.assign(identity, lease)?;
            lanes.push((lane, identity, lease));
        }
        Ok(Self { index, lanes })
    }

    fn install(&mut self, site: usize, state: &mut State) -> Result<(), Box<dyn Error>> {
        let (_, buckets) = state.state.barrier_snapshot()?;
        let (lane, identity, lease) = &mut self.lanes[site];
        lane.install_snapshot(&DcCkfSnapshot::new(*identity, *lease, 0, buckets));
        if self.index.ready_lanes() & 1 << site == 0 {
            return Err(format!("lane {site} isn't ready").into());
        }
        Ok(())
    }

    /// Replaces some blocks of each site; how many.
    pub fn churn(&mut self, states: &mut [State]) -> u64 {
        for ((lane, identity, lease), state) in self.lanes.iter_mut().zip(&mut *states) {
            let batches = [state.remove_oldest(BATCH / 10), state.add(BATCH / 10)];
            for batch in batches.into_iter().flatten() {
                let (base, sequence) = (state.sequence, state.sequence + 1);
                state.sequence = sequence;
                let images = batch.images().to_vec();
                let delta = DcCkfDelta::new(*identity, *lease, base, sequence, images);
                lane.apply_delta(&delta);
            }
        }
        BATCH / 10 * states.len() as u64
    }
}

impl State {
    /// A site's share of the prompts, and other blocks up to so many.
    fn new(
        prompts: &Prompts,
        site: usize,
        blocks: u64,
        comes_and_goes: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let mut state = Self {
            state: DcCkfState::new(CkfConfig::new(usize::try_from(blocks)?))?,
            next: (site as u64 + 1) << 40,
            others: comes_and_goes.then(VecDeque::new),
            sequence: 0,
        };
        let mut told = 0;
        for prompt in prompts.groups.iter().flat_map(|group| &group.prompts) {
            let depth = prompt.depths[site];
            told += depth;
            state.store(&prompt.blocks[..usize::try_from(depth)?]);
        }
        while told < blocks {
            let count = BATCH.min(blocks - told);
            state.add(count);
            told += count;
        }
        Ok(state)
    }

    fn add(&mut self, count: u64) -> Option<DcCkfPublicationBatch> {
        let first = self.next;
        let blocks: Vec<_> = (first..first + count)
            .map(|number| LocalBlockHash(scattered(number)))
            .collect();
        if let Some(others) = &mut self.others {
            others.extend(first..first + count);
        }
        self.store(&blocks)
    }

    /// Tells a chain of blocks, each by a name of its own.
    fn store(&mut self, blocks: &[LocalBlockHash]) -> Option<DcCkfPublicationBatch> {
        let named = blocks.iter().map(|tokens_hash| {
            self.next += 1;
            KvCacheStoredBlockData {
                block_hash: ExternalSequenceBlockHash(self.next - 1),
                tokens_hash: *tokens_hash,
                mm_extra_info: None,
            }
        });
        let stored = KvCacheStoreData {
            parent_hash: None,
            start_position: None,
            blocks: named.collect(),
        };
        self.tell(KvCacheEventData::Stored(stored))
    }

    fn remove_oldest(&mut self, count: u64) -> Option<DcCkfPublicationBatch> {
        let names = self.others.as_mut()?.drain(..usize::try_from(count).unwrap_or(0));
        let removed = KvCacheRemoveData {
            block_hashes: names.map(ExternalSequenceBlockHash).collect(),
        };
        self.tell(KvCacheEventData::Removed(removed))
    }

    fn tell(&mut self, data: KvCacheEventData) -> Option<DcCkfPublicationBatch> {
        let event = KvCacheEvent {
            event_id: 0,
            data,
            dp_rank: 0,
        };
        let outcome = self.state.apply_event(RouterEvent::new(1, event));
        outcome.into_publication()
    }
}

/// A number like no other, for each number.
const fn scattered(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Bytes of this process that are in memory.
fn resident_bytes() -> Result<f64, Box<dyn Error>> {
    let smaps = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let rss = smaps.lines().find(|line| line.starts_with("Rss:"));
    let kib = rss.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.map_or(Ok(0.0), str::parse::<f64>)? * 1024.0)
}
