use std::num::NonZeroU32;

use kvgrid_core::ModelName;
use kvgrid_core::block::{ChainHash, HashFormat};
use kvgrid_core::event::Tier;
use kvgrid_core::filter::MixKey;
use kvgrid_core::replication::PublisherConfig;
use kvgrid_runtime::Clock;

use super::*;
use crate::load::Gateway;
use crate::publish::{Hub, HubConfig};
use crate::sources::FeedId;

const POOL: FeedId = FeedId {
    source: 0,
    endpoint: 1,
};
const MINUTE: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn format(buckets: u64) -> Format {
    Format::new(7, buckets).unwrap()
}

struct Site {
    hub: Hub,
    pools: Mirrored,
}

impl Site {
    fn new() -> Self {
        let hub = Hub::new(HubConfig {
            key: Arc::new(MixKey::from_bytes(&[7; 32])),
            incarnation: 1,
            publisher: PublisherConfig::default(),
            gateway: Gateway::default(),
            clock: Clock::start(),
        });
        let owner = Owner {
            source: "dynamo-relay".into(),
            model: ModelName::new("tiny").unwrap(),
            tier: Tier::Device,
            hub: hub.clone(),
        };
        Self {
            hub,
            pools: Mirrored::new(owner, Some(100), MINUTE, at(0)),
        }
    }

    /// Takes an event, works it off and closes the batch.
    fn take(&mut self, event: SourceEvent, seconds: u64) -> PoolReport {
        self.pools.handle(event, at(seconds));
        while self.pools.work(at(seconds)) {}
        self.pools.settle(at(seconds));
        // What is told first is published with the batch that closes later.
        self.pools.tell_due(at(seconds));
        self.pools.tell_due(at(seconds + 1));
        self.pools.report(at(seconds + 1))
    }

    fn find(&mut self, buckets: u64) -> PoolReport {
        let of = TableInfo {
            place: "prod/backend/generate".into(),
            shape: PoolShape {
                block_size: NonZeroU32::new(16).unwrap(),
                format: HashFormat::Standard,
            },
            format: format(buckets),
        };
        let (feed, of) = (POOL, Arc::new(of));
        self.take(SourceEvent::Table { feed, of }, 0)
    }

    fn state(&mut self, endpoint: usize, state: FeedState, seconds: u64) -> PoolReport {
        let feed = FeedId { endpoint, ..POOL };
        self.take(SourceEvent::Feed { feed, state }, seconds)
    }

    fn change(&mut self, publisher: u64, sequence: u64, change: FilterChange) -> PoolReport {
        let filter = SourceEvent::Filter {
            feed: POOL,
            publisher,
            sequence,
            change,
        };
        self.take(filter, 1)
    }
}

/// A table that holds these hashes, each as often as it is there.
fn words(buckets: u64, hashes: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut words = vec![0_u64; usize::try_from(buckets).unwrap()];
    for hash in hashes {
        let name = format(buckets).name(ChainHash(hash));
        let word = &mut words[usize::try_from(name.0 >> 16).unwrap()];
        let slot = (0..4).find(|slot| *word >> (slot * 16) & 0xffff == 0);
        *word |= (name.0 & 0xffff) << (slot.expect("a test's table has room") * 16);
    }
    words
}

fn blocks(report: &PoolReport) -> u64 {
    report.told.map_or(0, |told| told.blocks)
}

#[tokio::test]
async fn a_filter_is_told_by_what_has_changed_of_it() {
    let mut site = Site::new();
    site.find(1024);

    let first = site.change(1, 0, FilterChange::Snapshot(words(1024, 0..20)));
    let image = (0, words(1024, 0..20)[0] | 0xabcd << 48);
    let second = site.change(1, 1, FilterChange::Delta(vec![image]));
    let again = site.change(2, 0, FilterChange::Snapshot(words(1024, 5..20)));

    let epoch = |report: &PoolReport| report.told.unwrap().epoch;
    assert_eq!(
        (blocks(&first), blocks(&second), blocks(&again)),
        (20, 21, 15)
    );
    assert_eq!(
        epoch(&first),
        epoch(&again),
        "another life is the same pool"
    );
    assert_eq!((again.blocks, again.batches), (20 + 1 + 6, 3));
    assert_eq!(again.stats.published, 15);
}

#[tokio::test]
async fn a_class_is_told_as_often_as_the_filter_has_it() {
    let mut site = Site::new();
    site.find(1024);

    let three = site.change(1, 0, FilterChange::Snapshot(words(1024, [5, 5, 5])));
    let two = site.change(1, 0, FilterChange::Snapshot(words(1024, [5, 5])));

    assert_eq!((blocks(&three), blocks(&two)), (3, 2));
}

#[tokio::test]
async fn a_filter_with_more_than_was_expected_makes_its_pool_grow() {
    let mut site = Site::new();
    site.find(1 << 18);

    let full = |buckets| {
        let mut words = vec![0x0004_0003_0002_0001; buckets];
        words.resize(1 << 18, 0);
        FilterChange::Snapshot(words)
    };

    let all = site.change(1, 0, full(15_000));
    let less = site.change(1, 0, full(14_750));

    assert_eq!((blocks(&all), blocks(&less)), (60_000, 59_000));
}

#[tokio::test]
async fn silence_leaves_all_blocks_and_is_called_incomplete_in_the_end() {
    let mut site = Site::new();
    site.state(0, FeedState::Whole, 0);
    site.find(1024);
    site.state(1, FeedState::Connecting, 0);
    let early = site.change(1, 0, FilterChange::Snapshot(words(1024, 0..20)));
    let whole = site.state(1, FeedState::Whole, 1);
    let lost = site.state(1, FeedState::Partial, 2);
    site.pools.tell_due(at(70));
    let late = site.pools.report(at(70));

    let told = |report: &PoolReport| (report.completeness, report.told.unwrap().completeness);
    use Completeness::{Incomplete, Partial, Whole};
    assert_eq!(told(&early), (Partial, Partial));
    assert_eq!(told(&whole), (Whole, Whole));
    assert_eq!(told(&lost), (Partial, Partial));
    assert_eq!(late.completeness, Incomplete);
    assert_eq!(blocks(&late), 20);
    assert_eq!(site.hub.pools(), 1);
}

#[tokio::test]
async fn another_format_takes_over_when_its_content_is_there() {
    let mut site = Site::new();
    site.find(1024);
    site.change(1, 0, FilterChange::Snapshot(words(1024, 0..20)));

    let found = site.find(2048);
    let taken = site.change(2, 0, FilterChange::Snapshot(words(2048, 0..30)));

    assert_eq!((blocks(&found), blocks(&taken)), (20, 30));
    assert_eq!(site.hub.pools(), 1, "the other is withdrawn");
}

#[tokio::test]
async fn a_pool_that_has_ended_is_withdrawn_with_what_comes_after() {
    let mut site = Site::new();
    site.find(1024);
    site.change(1, 0, FilterChange::Snapshot(words(1024, 0..20)));

    site.take(SourceEvent::FeedEnded { feed: POOL }, 2);
    let after = site.change(1, 1, FilterChange::Delta(vec![(0, 1)]));

    assert_eq!(after.told, None);
    assert_eq!(site.hub.pools(), 0);
}
