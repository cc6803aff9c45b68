//! A source that finds out into which pools its workers' blocks belong.

use super::*;
use crate::discovery::CohortId;
use crate::sources::{ListedPart, PartInfo};

fn of(component: &str, cohort: u64, block_size: u32) -> Arc<PartInfo> {
    Arc::new(PartInfo {
        place: format!("prod/{component}/generate"),
        cohort: Some(CohortId(cohort)),
        shape: PoolShape {
            block_size: block_size.try_into().unwrap(),
            ..SHAPE
        },
    })
}

const fn feed(endpoint: usize) -> FeedId {
    FeedId {
        source: 0,
        endpoint,
    }
}

impl Site {
    fn finding() -> Self {
        let discovery = crate::discovery::tests::Store::new().settings();
        Self::start_with(Feeds::of_discovery(discovery), &[Tier::Device])
    }

    async fn send(&self, event: SourceEvent) {
        self.events.send(event).await.unwrap();
    }

    async fn list(&self, parts: &[(&Arc<PartInfo>, bool)]) {
        let listed = |(of, told): &(&Arc<PartInfo>, bool)| ListedPart {
            of: Arc::clone(of),
            capacity_blocks: Some(1000),
            told: *told,
        };
        let parts = parts.iter().map(listed).collect();
        let feed = feed(0);
        self.send(SourceEvent::Parts { feed, parts }).await;
    }

    async fn belongs(&self, endpoint: usize, of: &Arc<PartInfo>) {
        let (feed, of) = (feed(endpoint), Arc::clone(of));
        self.send(SourceEvent::Belongs { feed, of }).await;
    }

    /// Blocks of one prompt, of the publisher that has the feed of its own number.
    async fn store_by(&mut self, publisher: u64, blocks: std::ops::Range<u64>) {
        self.feed = feed(usize::try_from(publisher).unwrap());
        self.store(publisher, blocks).await;
    }

    async fn end(&self, endpoint: usize) {
        let (feed, publisher) = (feed(endpoint), endpoint as u64);
        self.send(SourceEvent::PublisherGone { feed, publisher })
            .await;
        self.send(SourceEvent::FeedEnded { feed }).await;
    }
}

#[tokio::test]
async fn what_is_told_before_its_pool_is_known_counts() {
    let mut site = Site::finding();
    site.store_by(1, 0..4).await;
    site.store_by(1, 4..10).await;
    let part = of("backend", 1, 16);

    site.list(&[(&part, true)]).await;
    let empty = site.until(|pool| pool.told.is_some()).await;
    site.belongs(1, &part).await;
    let known = site.until(|pool| told_blocks(pool) == 10).await;

    assert_eq!(told_blocks(&empty), 0);
    assert_eq!(known.batches, 2);
}

#[tokio::test]
async fn a_cohort_that_takes_over_is_known_at_once_and_takes_the_place() {
    let mut site = Site::finding();
    let (old, new) = (of("backend", 1, 16), of("backend", 2, 16));
    site.list(&[(&old, true), (&new, false)]).await;
    site.belongs(1, &old).await;
    site.belongs(2, &new).await;
    site.store_by(1, 0..10).await;
    site.store_by(2, 0..3).await;
    let both = |pool: &PoolReport| pool.batches == 2 && told_blocks(pool) == 10;
    let before = site.until(both).await;

    site.list(&[(&new, true)]).await;
    let other = |pool: &PoolReport| pool.pools != before.pools && told_blocks(pool) == 3;
    let after = site.until(other).await;
    site.end(1).await;
    let alone = site.until(|pool| pool.stats.published == 3).await;

    assert_eq!((site.hub_pools(), after.pools.len()), (1, 1));
    assert_eq!((told_blocks(&alone), alone.batches), (3, 2));
}

#[tokio::test]
async fn a_pool_stays_while_its_workers_are_all_away() {
    let mut site = Site::finding();
    let part = of("backend", 1, 16);
    site.list(&[(&part, true)]).await;
    site.belongs(1, &part).await;
    site.store_by(1, 0..10).await;
    let before = site.until(|pool| told_blocks(pool) == 10).await;

    site.list(&[]).await;
    site.end(1).await;
    let away = site.until(|pool| told_blocks(pool) == 0).await;
    site.list(&[(&part, true)]).await;
    site.belongs(2, &part).await;
    site.store_by(2, 0..5).await;
    let back = site.until(|pool| told_blocks(pool) == 5).await;

    assert_eq!(away.pools, before.pools);
    assert_eq!(back.pools, before.pools);
    let epoch = |pool: &PoolReport| pool.told.map(|told| told.epoch);
    assert_eq!(epoch(&back), epoch(&before), "it is the same life");
}

#[tokio::test]
async fn each_endpoint_is_a_pool_of_its_own() {
    let mut site = Site::finding();
    let (one, two) = (of("backend", 1, 16), of("spare", 1, 16));
    site.list(&[(&one, true), (&two, true)]).await;
    site.belongs(1, &one).await;
    site.belongs(2, &two).await;

    site.store_by(1, 0..10).await;
    site.store_by(2, 0..20).await;
    let both = site.until(|pool| told_blocks(pool) == 30).await;
    site.list(&[(&one, true)]).await;
    site.end(2).await;
    let one = site.until(|pool| told_blocks(pool) == 10).await;

    assert_eq!((both.pools.len(), one.pools.len()), (2, 1));
    assert_eq!(one.pools[0], both.pools[0]);
    assert_eq!((site.hub_pools(), one.batches), (1, 2));
}

#[tokio::test]
async fn what_nobody_knows_the_pool_of_is_kept_up_to_a_bound() {
    let mut site = Site::finding();
    let part = of("backend", 1, 16);
    site.list(&[(&part, true)]).await;
    let state = FeedState::Whole;
    let feed = feed(1);
    site.send(SourceEvent::Feed { feed, state }).await;

    for block in 0..1030 {
        site.store_by(1, block..block + 1).await;
    }
    site.belongs(1, &part).await;
    let known = site.until(|pool| pool.batches > 0).await;

    let partial = known.feeds.iter().find(|it| it.0 == FeedState::Partial);
    assert_eq!(partial, Some(&(FeedState::Partial, 1)));
    assert_eq!((known.batches, known.gaps), (6, 1));
    assert_eq!(told_blocks(&known), 0, "what was before them is not known");
}
