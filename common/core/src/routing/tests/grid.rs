//! Builds views for tests: sites told in a line.

use core::num::NonZeroU32;
use core::time::Duration;
use std::sync::Arc;

use crate::block::{HashFormat, HashSeed, chain_hashes};
use crate::ckf::{Format, Naming};
use crate::event::Tier;
use crate::filter::{Geometry, MixKey, Writer};
use crate::id::{ModelName, PoolId, Region, RelayId, SiteId};
use crate::label::Labels;
use crate::load::{
    EngineSum, ForeignLoad, GatewayLoad, GatewaySum, ModelLoad, RelayEcho, SiteLoad,
};
use crate::replication::{ReplicaFilter, ReplicaState, ReplicaView};
use crate::time::Instant;
use crate::view::{CardDigest, CardInfo, ModelView, PoolView, RelayView, SiteView};

/// The model of all tests.
pub(crate) const MODEL: &str = "m";
/// Tokens of a block.
pub(crate) const BLOCK: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// The card of all sites that don't say otherwise.
pub(crate) const CARD: CardDigest = CardDigest([1; 32]);
/// When all decisions are made.
pub(crate) const NOW: Instant = Instant::from_micros(3_600_000_000);

/// So many milliseconds.
pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The prompt that warm sites know a prefix of.
pub(crate) fn tokens(count: u32) -> Arc<[u32]> {
    (0..count).collect()
}

fn before(age: Duration) -> Instant {
    let age = u64::try_from(age.as_micros()).unwrap();
    Instant::from_micros(NOW.as_micros() - age)
}

/// A site: served, idle and cold, until told otherwise.
#[derive(Clone)]
pub(crate) struct Site {
    view: SiteView,
    engines: EngineSum,
    gateway: GatewayLoad,
    reported: Duration,
    echo: u64,
    silent: bool,
}

impl Site {
    pub(crate) fn new(name: &str, rtt_ms: u64) -> Self {
        let view = SiteView {
            site: SiteId::new(name).unwrap(),
            region: None,
            labels: Labels::new(),
            alive: true,
            relays: vec![relay(name, 1, rtt_ms)],
            models: vec![model(MODEL)],
            known_by: None,
            pools: Vec::new(),
            load: SiteLoad::default(),
        };
        let engines = EngineSum {
            ranks: Some(1),
            at: NOW,
            running: 0,
            waiting: Some(0),
            waiting_tokens: None,
            max_requests: None,
            kv_use: Some(0.5),
            kv_cached: None,
            kv_tokens: None,
            begun_tokens: 0,
            foreign: ForeignLoad {
                waiting: Some(0),
                ..ForeignLoad::default()
            },
        };
        Self {
            view,
            engines,
            gateway: GatewayLoad::default(),
            reported: Duration::ZERO,
            echo: 0,
            silent: false,
        }
        .warm(0)
    }

    pub(crate) fn build(self) -> SiteView {
        let at = before(self.reported);
        let model = ModelName::new(MODEL).unwrap().id();
        let mut view = self.view;
        if !self.silent {
            let load = ModelLoad {
                model,
                engines: Some(EngineSum { at, ..self.engines }),
                gateway: Some(GatewaySum {
                    load: self.gateway,
                    at,
                }),
            };
            let echo = |relay: &RelayView| RelayEcho {
                relay: relay.id.clone(),
                at,
                echo: self.echo,
            };
            view.load = SiteLoad {
                relays: view.relays.iter().map(echo).collect(),
                models: vec![load],
            };
        }
        view
    }

    /// Holds the first `depth` blocks of [`tokens`] in GPU memory.
    pub(crate) fn warm(mut self, depth: u32) -> Self {
        self.view.pools.retain(|pool| pool.tier != Tier::Device);
        self.view.pools.push(pool(1, Tier::Device, depth));
        self
    }

    /// Nothing tells what it has cached.
    pub(crate) fn eventless(mut self) -> Self {
        self.view.pools.clear();
        self
    }

    /// The same, known by the filter of Dynamo's own relay, but for these blocks.
    pub(crate) fn warm_by_classes(mut self, depth: u32, holes: &[u32]) -> Self {
        let naming = Naming::Ckf(Format::new(11, 1 << 16).unwrap());
        self.view.pools = vec![PoolView {
            naming,
            closed: false,
            replica: replica(naming, depth, holes),
            ..pool(1, Tier::Device, 0)
        }];
        self
    }

    /// Its pools name their blocks in a way that nobody here knows.
    pub(crate) fn of_unknown_names(mut self) -> Self {
        for pool in &mut self.view.pools {
            pool.naming = Naming::Unknown;
        }
        self
    }

    pub(crate) fn warm_on_disk(mut self, depth: u32) -> Self {
        self.view.pools.push(pool(2, Tier::Disk, depth));
        self
    }

    /// Its replicas have been stale for so many seconds.
    pub(crate) fn stale(mut self, seconds: u64) -> Self {
        for pool in &mut self.view.pools {
            let since = before(Duration::from_secs(seconds));
            pool.replica.state = ReplicaState::Stale { since };
        }
        self
    }

    /// It evicts what was not used for so many seconds.
    pub(crate) fn evicting_at(mut self, seconds: u64) -> Self {
        for pool in &mut self.view.pools {
            pool.eviction_age = Some(Duration::from_secs(seconds));
        }
        self
    }

    pub(crate) fn queued(mut self, tokens: u64) -> Self {
        self.gateway.queued_tokens = tokens;
        self
    }

    pub(crate) fn arrivals(mut self, per_second: f32) -> Self {
        self.gateway.arrivals_per_s = per_second;
        self
    }

    pub(crate) fn foreign_waiting(mut self, requests: u32) -> Self {
        self.engines.foreign.waiting = Some(requests);
        self.engines.foreign.requests = requests;
        self
    }

    /// Its engines compute so many requests at once.
    pub(crate) fn places(mut self, requests: u32) -> Self {
        self.engines.max_requests = Some(requests);
        self
    }

    /// So many requests have come by its relays and have not ended.
    pub(crate) fn in_flight(mut self, requests: u32) -> Self {
        self.gateway.in_flight = requests;
        self
    }

    /// Its requests keep their places so long.
    pub(crate) fn serving(mut self, millis: f32) -> Self {
        self.gateway.serving_ms = Some(millis);
        self
    }

    /// Its engines don't say how many requests wait.
    pub(crate) fn without_queue(mut self) -> Self {
        self.engines.waiting = None;
        self.engines.foreign.waiting = None;
        self
    }

    pub(crate) fn kv_use(mut self, share: f32) -> Self {
        self.engines.kv_use = Some(share);
        self
    }

    /// Its load was last reported so long ago.
    pub(crate) fn reported(mut self, millis: u64) -> Self {
        self.reported = ms(millis);
        self
    }

    pub(crate) fn echo(mut self, echo: u64) -> Self {
        self.echo = echo;
        self
    }

    /// Its load was never reported.
    pub(crate) fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    pub(crate) fn dead(mut self) -> Self {
        self.view.alive = false;
        self
    }

    pub(crate) fn disconnected(mut self) -> Self {
        self.view.relays[0].connected = false;
        self
    }

    pub(crate) fn draining(mut self) -> Self {
        self.view.relays[0].draining = true;
        self
    }

    pub(crate) fn relays(mut self, count: usize) -> Self {
        let name = self.view.site.as_str().to_owned();
        let first = self.view.relays[0].clone();
        self.view.relays = (1..=count)
            .map(|index| RelayView {
                rtt: first.rtt,
                ..relay(&name, index, 0)
            })
            .collect();
        self
    }

    /// One of the relays has a frontend that does not serve the model.
    pub(crate) fn unserved(mut self, relay: usize) -> Self {
        self.view.relays[relay].serves.clear();
        self
    }

    pub(crate) fn serves(mut self, name: &str) -> Self {
        self.view.models = vec![model(name)];
        for relay in &mut self.view.relays {
            relay.serves = vec![self.view.models[0].id];
        }
        self
    }

    pub(crate) fn not_ready(mut self) -> Self {
        self.view.models[0].ready = false;
        self
    }

    pub(crate) fn context(mut self, tokens: u32) -> Self {
        if let Some(card) = &mut self.view.models[0].card {
            card.context_length = NonZeroU32::new(tokens);
        }
        self
    }

    pub(crate) fn card(mut self, digest: CardDigest) -> Self {
        if let Some(card) = &mut self.view.models[0].card {
            card.digest = digest;
        }
        self
    }

    pub(crate) fn without_card(mut self) -> Self {
        self.view.models[0].card = None;
        self
    }

    pub(crate) fn region(mut self, name: &str) -> Self {
        self.view.region = Some(Region::new(name).unwrap());
        self
    }

    pub(crate) fn labels(mut self, labels: Labels) -> Self {
        self.view.labels = labels;
        self
    }
}

fn relay(site: &str, index: usize, rtt_ms: u64) -> RelayView {
    RelayView {
        id: RelayId::new(&format!("{site}-{index}")).unwrap(),
        connected: true,
        draining: false,
        serves: vec![ModelName::new(MODEL).unwrap().id()],
        rtt: ms(rtt_ms),
        path_rate: None,
        window: None,
    }
}

fn model(name: &str) -> ModelView {
    let name = ModelName::new(name).unwrap();
    ModelView {
        aliases: Vec::new(),
        apart: Vec::new(),
        id: name.id(),
        name,
        ready: true,
        card: Some(CardInfo {
            digest: CARD,
            block_size: BLOCK,
            format: HashFormat::Standard,
            capacity_blocks: None,
            context_length: None,
            usable: true,
        }),
    }
}

fn pool(id: u64, tier: Tier, depth: u32) -> PoolView {
    PoolView {
        id: PoolId(id),
        model: ModelName::new(MODEL).unwrap().id(),
        source: "engines".into(),
        block_size: BLOCK,
        format: HashFormat::Standard,
        naming: Naming::Chain,
        tier,
        closed: true,
        eviction_age: None,
        replica: replica(Naming::Chain, depth, &[]),
        facts: None,
    }
}

/// A live replica of a pool that holds the first `depth` blocks of [`tokens`] under these
/// names, but for some.
fn replica(naming: Naming, depth: u32, holes: &[u32]) -> ReplicaView {
    let seed = HashSeed::new(None, None);
    let key = Arc::new(MixKey::from_bytes(&[7; 32]));
    let mut writer = Writer::new(Geometry::for_capacity(1000, key.id()));
    let chain = chain_hashes(&tokens(depth * 16), BLOCK, HashFormat::Standard, seed);
    for (block, chain) in (0..).zip(naming.names(&chain)) {
        if holes.contains(&block) {
            continue;
        }
        let class = writer.geometry().class(&key, chain);
        writer.insert(class).unwrap();
    }
    let filter = ReplicaFilter {
        reader: writer.reader(),
        key,
    };
    ReplicaView {
        state: ReplicaState::Live,
        filter: Some(filter),
        ..ReplicaView::default()
    }
}
