use std::num::NonZeroU32;
use std::time::Duration;

use kvgrid_core::block::{BlockHash, HashFormat};
use kvgrid_core::event::{EngineHash, KvEvent, StoredBlock, Tier, WorkerKey};
use kvgrid_core::filter::MixKey;
use kvgrid_core::replication::PublisherConfig;
use tokio::task::JoinSet;

use super::*;
use crate::config::{Feeds, SourceRole};
use crate::load::Gateway;
use crate::publish::{HubConfig, PoolShape};
use crate::sources::FeedId;

mod parts;

const FEED: FeedId = FeedId {
    source: 0,
    endpoint: 0,
};

const SHAPE: PoolShape = PoolShape {
    block_size: NonZeroU32::new(16).unwrap(),
    format: HashFormat::Standard,
};

struct Site {
    events: mpsc::Sender<SourceEvent>,
    /// By which what it tells comes.
    feed: FeedId,
    reports: watch::Receiver<Vec<PoolReport>>,
    sequence: u64,
    /// Whether events come as they happen.
    live: bool,
    hub: Hub,
    _task: JoinSet<()>,
}

impl Site {
    fn start() -> Self {
        Self::start_with(Feeds::EngineZmq(Vec::new()), &[Tier::Device])
    }

    fn start_with(feeds: Feeds, tiers: &[Tier]) -> Self {
        Self::start_of(SourceRole::Aggregated, feeds, tiers)
    }

    fn start_of(role: SourceRole, feeds: Feeds, tiers: &[Tier]) -> Self {
        let clock = Clock::start();
        let hub = Hub::new(HubConfig {
            key: Arc::new(MixKey::from_bytes(&[7; 32])),
            incarnation: 1,
            publisher: PublisherConfig::default(),
            gateway: Gateway::default(),
            clock,
        });
        let source = SourceSettings {
            name: "engines".to_owned(),
            model: ModelName::new("tiny").unwrap(),
            shape: Some(SHAPE),
            role,
            tiers: tiers.to_vec(),
            feeds,
        };
        let (events, receiver) = mpsc::channel(4);
        let limits = LimitsTable::default();
        let pools = Pools::new(&[source], &limits, &hub, |_| None, (receiver, clock));
        let reports = pools.reports();
        let mut task = JoinSet::new();
        task.spawn(pools.run());
        Self {
            events,
            feed: FEED,
            reports,
            sequence: 0,
            live: true,
            hub,
            _task: task,
        }
    }

    fn hub_pools(&self) -> usize {
        self.hub.pools()
    }

    /// Blocks of one prompt, each the child of the one before it.
    async fn store(&mut self, publisher: u64, blocks: std::ops::Range<u64>) {
        self.store_in(Tier::Device, publisher, blocks).await;
    }

    async fn store_in(&mut self, tier: Tier, publisher: u64, blocks: std::ops::Range<u64>) {
        let stored = blocks.clone().map(|local| StoredBlock {
            engine: EngineHash(local + 1_000_000_000),
            local: BlockHash(local),
        });
        let parent = blocks
            .start
            .checked_sub(1)
            .map(|n| EngineHash(n + 1_000_000_000));
        let event = KvEvent::Stored {
            parent,
            tier,
            blocks: stored.collect(),
        };
        self.tell(publisher, event).await;
    }

    async fn remove(&mut self, publisher: u64, blocks: std::ops::Range<u64>) {
        let removed = blocks.rev().map(|local| EngineHash(local + 1_000_000_000));
        let event = KvEvent::Removed {
            tier: Tier::Device,
            blocks: removed.collect(),
        };
        self.tell(publisher, event).await;
    }

    async fn tell(&mut self, publisher: u64, event: KvEvent) {
        let rank = 0;
        let batch = SourceEvent::Batch {
            feed: self.feed,
            worker: WorkerKey { publisher, rank },
            sequence: self.sequence,
            live: self.live,
            events: vec![event],
            refused: Refusals::default(),
        };
        self.sequence += 1;
        self.events.send(batch).await.unwrap();
    }

    async fn until(&mut self, done: impl Fn(&PoolReport) -> bool) -> PoolReport {
        let found = self.reports.wait_for(|reports| done(&reports[0]));
        let found = tokio::time::timeout(Duration::from_secs(20), found).await;
        found.expect("in time").unwrap()[0].clone()
    }
}

fn told_blocks(pool: &PoolReport) -> u64 {
    pool.told.map_or(0, |told| told.blocks)
}

#[tokio::test]
async fn what_a_source_tells_is_published_and_withdrawn() {
    let mut site = Site::start();

    site.store(7, 0..10).await;
    let stored = site.until(|pool| told_blocks(pool) == 10).await;
    let (feed, publisher) = (FEED, 7);
    let gone = SourceEvent::PublisherGone { feed, publisher };
    site.events.send(gone).await.unwrap();
    let empty = site.until(|pool| told_blocks(pool) == 0).await;

    assert_eq!((stored.stats.published, stored.batches), (10, 1));
    assert_eq!((empty.stats.published, empty.stats.held), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_unknown_size_grows_and_keeps_its_blocks() {
    let mut site = Site::start();

    for start in (0..40_000).step_by(4000) {
        site.store(7, start..start + 4000).await;
    }
    let grown = site.until(|pool| told_blocks(pool) == 40_000).await;

    assert_eq!(grown.stats.published, 40_000);
}

#[tokio::test]
async fn feeds_states_make_the_pools_completeness() {
    let mut site = Site::start();

    let state = FeedState::Whole;
    site.events
        .send(SourceEvent::Feed { feed: FEED, state })
        .await
        .unwrap();
    let whole = |pool: &PoolReport| {
        let told = pool.told.map(|told| told.completeness);
        told == Some(Completeness::Whole)
    };
    let pool = site.until(whole).await;

    assert_eq!(pool.completeness, Completeness::Whole);
}

#[tokio::test]
async fn an_event_of_an_unknown_source_is_ignored() {
    let mut site = Site::start();
    let feed = FeedId {
        source: 9,
        endpoint: 0,
    };

    let gone = SourceEvent::PublisherGone { feed, publisher: 1 };
    site.events.send(gone).await.unwrap();
    site.store(7, 0..1).await;

    site.until(|pool| pool.batches == 1).await;
}

#[tokio::test]
async fn a_source_of_workers_that_only_decode_is_counted_and_not_told() {
    let feeds = Feeds::EngineZmq(Vec::new());
    let mut site = Site::start_of(SourceRole::Decode, feeds, &[Tier::Device]);

    site.store(7, 0..10).await;
    let counted = site.until(|pool| pool.stats.published == 10).await;

    assert_eq!((counted.told, site.hub_pools()), (None, 0));
}

#[tokio::test]
async fn the_age_of_blocks_at_eviction_is_told_and_no_other() {
    let mut site = Site::start();

    site.store(7, 0..100).await;
    site.tell(7, KvEvent::Cleared).await;
    let cleared = site.until(|pool| pool.batches == 2).await;
    site.store(7, 0..100).await;
    let (feed, publisher) = (FEED, 7);
    let gone = SourceEvent::PublisherGone { feed, publisher };
    site.events.send(gone).await.unwrap();
    let gone = site
        .until(|pool| pool.batches == 3 && told_blocks(pool) == 0)
        .await;
    site.live = false;
    site.store(8, 0..100).await;
    site.remove(8, 50..100).await;
    let replayed = site.until(|pool| told_blocks(pool) == 50).await;
    site.live = true;
    site.store(8, 50..200).await;
    site.until(|pool| told_blocks(pool) == 200).await;
    // What is evicted is at least so old.
    let age = Duration::from_millis(30);
    tokio::time::sleep(age).await;
    site.remove(8, 150..200).await;
    site.remove(8, 100..150).await;
    let evicted = site.until(|pool| told_blocks(pool) == 100).await;

    for pool in [cleared, gone, replayed] {
        assert_eq!(pool.eviction_age, None, "{pool:?}");
    }
    assert!(evicted.eviction_age >= Some(age), "{evicted:?}");
    let listed = site.hub.eviction_ages();
    assert!(listed[0] >= Some(age), "{listed:?}");
}

#[tokio::test]
async fn each_tier_is_a_pool_of_its_own() {
    let mut site = Site::start_with(
        Feeds::EngineZmq(Vec::new()),
        &[Tier::Device, Tier::HostPinned],
    );

    site.store(7, 0..10).await;
    site.store_in(Tier::HostPinned, 7, 0..4).await;
    site.store_in(Tier::Disk, 7, 0..2).await;
    let both = |reports: &Vec<PoolReport>| reports.iter().all(|pool| pool.batches == 3);
    let found = site.reports.wait_for(both);
    let found = tokio::time::timeout(Duration::from_secs(20), found).await;
    let reports = found.expect("in time").unwrap().clone();

    let held = |place: usize| (reports[place].tier, reports[place].stats.published);
    assert_eq!(held(0), (Tier::Device, 10));
    assert_eq!(held(1), (Tier::HostPinned, 4));
    assert_eq!((reports.len(), site.hub_pools()), (2, 2));
}

#[tokio::test]
async fn how_a_pool_is_fed_is_told_and_the_unknown_is_left_out() {
    let mut site = Site::start();
    let (sender, mut facts) = watch::channel(Arc::default());
    let mut telling = JoinSet::new();
    telling.spawn(tell_facts(site.reports.clone(), sender));
    let mut refused = Refusals::default();
    refused.count(kvgrid_core::event::Refusal::BlockSize);

    site.store(7, 0..10).await;
    for event in [
        SourceEvent::Refused {
            feed: FEED,
            refused,
        },
        SourceEvent::Gap { feed: FEED },
        SourceEvent::Repaired { feed: FEED },
    ] {
        site.events.send(event).await.unwrap();
    }
    site.until(|pool| pool.repairs == Some(1)).await;

    let is_told = facts.wait_for(|facts: &crate::publish::Facts| {
        facts
            .first()
            .is_some_and(|(_, facts)| facts.repairs == Some(1))
    });
    let told = tokio::time::timeout(Duration::from_secs(20), is_told).await;
    let told = told.expect("in time").unwrap();
    let (_, facts) = &told[0];
    assert_eq!((facts.accepted, facts.copies), (Some(10), Some(10)));
    assert_eq!(facts.refused, [("block_size".into(), 1)]);
    assert_eq!(facts.refused_blocks, Some(0));
    assert_eq!((facts.orphans, facts.gaps), (Some(0), Some(1)));
    assert!(facts.heard_at.is_some());
}
