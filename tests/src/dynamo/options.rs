//! What kinds of sites there are.

use std::num::NonZeroU32;

/// By which events a relay knows what a site has cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KvSource {
    /// The engine's own, raw.
    EngineZmq,
    /// Dynamo's event plane; then the engine publishes none itself, and the relay has its card
    /// from Dynamo's discovery.
    DynamoEvents,
    /// The same as by its event plane, with discovery in etcd and events by NATS.
    DynamoNats,
    /// The same as by its event plane, with discovery in Kubernetes.
    DynamoKubernetes,
    /// The filters of Dynamo's own relay; the card comes from discovery in files.
    DynamoRelay,
}

impl KvSource {
    pub(super) const ALL: [Self; 5] = [
        Self::EngineZmq,
        Self::DynamoEvents,
        Self::DynamoNats,
        Self::DynamoKubernetes,
        Self::DynamoRelay,
    ];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::EngineZmq => "engine-zmq",
            Self::DynamoEvents => "dynamo-events",
            Self::DynamoNats => "dynamo-events-nats",
            Self::DynamoKubernetes => "dynamo-events-kubernetes",
            Self::DynamoRelay => "dynamo-relay",
        }
    }

    /// How the documentation calls it.
    pub(super) const fn shown(self) -> &'static str {
        match self {
            Self::EngineZmq => "`engine-zmq`",
            Self::DynamoEvents => "`dynamo-events` over ZMQ, files",
            Self::DynamoNats => "`dynamo-events` over NATS, etcd",
            Self::DynamoKubernetes => "`dynamo-events` over ZMQ, Kubernetes",
            Self::DynamoRelay => "`dynamo-relay`",
        }
    }

    /// How the names of tests end that go by it, where they say so.
    pub(super) const fn suffix(self) -> Option<&'static str> {
        match self {
            Self::EngineZmq => None,
            Self::DynamoEvents => Some("_by_dynamos_events"),
            Self::DynamoNats => Some("_by_nats_and_etcd"),
            Self::DynamoKubernetes => Some("_by_kubernetes"),
            Self::DynamoRelay => Some("_by_dynamos_relay"),
        }
    }

    /// What of a site's past a relay learns.
    pub(super) const fn recovered(self) -> &'static str {
        if self.is_told_again() {
            "all"
        } else {
            "what happens from then on"
        }
    }

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 1.6.1.
    Current,
    /// 1.5.1.
    Older,
}

impl Release {
    pub(super) const ALL: [Self; 2] = [Self::Current, Self::Older];

    pub(super) const fn version(self) -> &'static str {
        match self {
            Self::Current => "1.6.1",
            Self::Older => "1.5.1",
        }
    }
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
    /// Requests that each rank computes at once, if not as many as the mocker does by itself.
    pub max_requests: Option<u32>,
    /// The model's chat template, if not the usual one.
    pub chat_template: Option<&'static str>,
    /// How many more workers it has, which compute the prompts of those that then only decode.
    pub prefill_workers: usize,
    /// Other names of its model; only where its processes register themselves in files.
    pub aliases: Vec<&'static str>,
    /// Workers that are unlike these, started apart.
    pub others: Vec<OtherWorker>,
}

/// A worker of the same model that differs from its site's usual ones in this.
#[derive(Clone, Debug)]
pub struct OtherWorker {
    /// The component that it belongs to; the usual one is `backend`.
    pub component: &'static str,
    /// Tokens in a block.
    pub block_size: NonZeroU32,
    /// The model's chat template, if not the usual one.
    pub chat_template: Option<&'static str>,
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
            max_requests: None,
            chat_template: None,
            prefill_workers: 0,
            aliases: Vec::new(),
            others: Vec::new(),
        }
    }

    /// How many workers publish what they store: in the mocker those that compute prompts.
    pub(super) const fn publishing(&self) -> usize {
        match self.prefill_workers {
            0 => self.workers,
            prefill => prefill,
        }
    }
}
