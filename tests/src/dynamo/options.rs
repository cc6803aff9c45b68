//! What kinds of sites there are.

use std::num::NonZeroU32;

/// By which events a relay knows what a site has cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// The engine's own, raw.
    EngineZmq,
    /// Dynamo's event plane; then the engine publishes none itself, and the relay has its card
    /// from Dynamo's discovery.
    DynamoEvents,
    /// The same as by its event plane, with discovery in etcd and events by NATS.
    DynamoNats,
    /// The filters of Dynamo's own relay; the card comes from discovery in files.
    DynamoRelay,
}

impl KvSource {
    /// Whether the engine itself publishes.
    pub const fn is_engine(self) -> bool {
        matches!(self, Self::EngineZmq)
    }

    /// Whether a relay that comes late can be told all of it.
    pub const fn is_told_again(self) -> bool {
        matches!(self, Self::EngineZmq | Self::DynamoRelay)
    }
}

/// Which Dynamo a site runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// 1.6.1.
    Current,
    /// 1.5.1.
    Older,
}

/// What differs between sites.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    /// The site's name and its Dynamo namespace.
    pub name: String,
    /// Tokens in a block.
    pub block_size: NonZeroU32,
    /// Blocks in the cache.
    pub blocks: usize,
    /// How many times faster than the mocker's model of an engine.
    pub speedup: u32,
    /// By which events a relay follows it.
    pub source: KvSource,
    /// How many frontends it has, each with a relay beside it: one or two.
    pub relays: usize,
    /// Which Dynamo it runs.
    pub release: Release,
    /// How many workers it has, each a process.
    pub workers: usize,
    /// How many data-parallel ranks each of them has.
    pub ranks: usize,
    /// Blocks that each rank has in host memory; relays tell of that tier as well if there are
    /// any.
    pub host_blocks: usize,
}

impl SiteOptions {
    /// A site of 2,048 blocks of 16 tokens, ten times as fast as the mocker's model.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            block_size: const { NonZeroU32::new(16).expect("16 is not zero") },
            blocks: 2048,
            speedup: 10,
            source: KvSource::EngineZmq,
            relays: 1,
            release: Release::Current,
            workers: 1,
            ranks: 1,
            host_blocks: 0,
        }
    }
}
