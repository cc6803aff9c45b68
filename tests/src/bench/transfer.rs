//! A pool and its replica at an edge, with nothing between them.

use std::sync::Arc;

use anyhow::Context as _;
use kvgrid_core::Instant;
use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::{Form, Geometry, MixKey};
use kvgrid_core::replication::{
    Chunk, Completeness, Epoch, Publisher, PublisherConfig, Replacement, Replica, ReplicaConfig,
    Request, Subscription, SubscriptionId,
};

/// The grid's key.
pub(super) fn key() -> Arc<MixKey> {
    Arc::new(MixKey::from_bytes(&[1; 32]))
}

/// A number like no other, for each number.
pub(super) const fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// What a figure of a form is called: those of filters by their plain names.
pub(super) fn name_of(form: Form, metric: &str) -> String {
    match form {
        Form::Filter => metric.to_owned(),
        Form::Exact => format!("exact_{metric}"),
    }
}

/// A pool of so many blocks in a form, other ones for each pool, in one of its relay's lives.
pub(super) fn publisher(form: Form, blocks: u64, pool: u64, life: u64) -> Publisher {
    let key = key();
    let geometry = Geometry::for_capacity(blocks, key.id()).with_form(form);
    let first = scattered(pool);
    let live = (0..blocks).map(move |block| ChainHash(scattered(first.wrapping_add(block))));
    let table = Replacement::build(key, geometry, live);
    let mut publisher = Publisher::new(PublisherConfig::default(), table, Epoch::new(life, 0));
    publisher.set_completeness(Completeness::Whole, Instant::ZERO);
    publisher.close();
    publisher
}

/// A replica and how its publisher knows it.
pub(super) struct Follower {
    pub(super) replica: Replica,
    id: SubscriptionId,
    subscription: Subscription,
}

impl Follower {
    /// One that is to be sent everything.
    pub(super) fn new(publisher: &Publisher) -> anyhow::Result<Self> {
        let mut replica = Replica::new(ReplicaConfig {
            form: publisher.geometry().form(),
            ..ReplicaConfig::with_keys(vec![key()])
        });
        replica.handle_connect(Instant::ZERO);
        Self::subscribed(replica, publisher)
    }

    /// The same, following another life of the publisher.
    pub(super) fn moved_to(self, publisher: &Publisher) -> anyhow::Result<Self> {
        let mut replica = self.replica;
        replica.handle_disconnect(Instant::ZERO);
        replica.handle_connect(Instant::ZERO);
        Self::subscribed(replica, publisher)
    }

    fn subscribed(mut replica: Replica, publisher: &Publisher) -> anyhow::Result<Self> {
        let request = replica.poll_request(Instant::ZERO);
        let Some(Request::Subscribe {
            subscription,
            resume,
            ..
        }) = request
        else {
            anyhow::bail!("the replica asks for {request:?}");
        };
        Ok(Self {
            replica,
            id: subscription,
            subscription: publisher.subscribe(resume),
        })
    }

    /// Takes all frames that are due.
    pub(super) fn take_frames(&mut self, publisher: &Publisher) -> anyhow::Result<()> {
        while let Some(frame) = publisher.poll_frame(&mut self.subscription) {
            self.replica.handle_frame(self.id, frame, Instant::ZERO)?;
        }
        Ok(())
    }

    /// The next chunk that it is to be sent.
    pub(super) fn poll_chunk(&mut self, publisher: &mut Publisher) -> Option<Chunk> {
        publisher.poll_chunk(&mut self.subscription)
    }

    /// Takes a chunk.
    pub(super) fn take_chunk(&mut self, chunk: Chunk) -> anyhow::Result<()> {
        let taken = self.replica.handle_chunk(self.id, chunk, Instant::ZERO);
        taken.context("a chunk was refused")
    }

    /// Takes everything.
    pub(super) fn take_all(&mut self, publisher: &mut Publisher) -> anyhow::Result<()> {
        self.take_frames(publisher)?;
        while let Some(chunk) = self.poll_chunk(publisher) {
            self.take_chunk(chunk)?;
        }
        self.take_frames(publisher)
    }
}
