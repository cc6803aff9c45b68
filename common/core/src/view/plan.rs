//! What a decision needs of each site, laid out for it when the view is made.
//!
//! A decision that walks through a view waits for memory at every site: a site's relays, models,
//! pools, loads and names stand in places of their own. So for each name that clients may ask for
//! there is a list of the sites that serve it, with what is weighed next to each other, and only
//! what depends on the request, the policy or the time is left to be computed.
//!
//! **Invariant:** a plan says nothing that its view doesn't say; decisions by either are the same.

use core::num::NonZeroU32;
use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::block::HashFormat;
use crate::ckf::Naming;
use crate::event::Tier;
use crate::id::{ModelId, PoolId, RelayId, name_hash};
use crate::replication::{ReplicaFilter, ReplicaState};

use super::{CardDigest, ModelView, PoolView, RelayView, SiteView};

pub(crate) use load::{Backlog, Load};
pub(crate) use names::Names;

mod load;
mod names;

/// The plans of all models, by the id of each name that they are asked for by.
#[derive(Clone, Debug, Default)]
pub(super) struct Plans {
    models: BTreeMap<ModelId, Plan>,
    /// Those of all relays, by site, and within it in the site's order.
    pub(super) lanes: Vec<Lane>,
    pub(super) names: Arc<Names>,
}

/// The sites that serve one model, and all of what their seats refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// By site.
    pub(crate) seats: Vec<Seat>,
    /// By seat, and within it in the site's order.
    pub(crate) pools: Vec<Pool>,
    /// Cards that differ: sites with one of them see one prompt.
    pub(crate) cards: Vec<Option<CardDigest>>,
    /// Ways of naming a prompt's blocks that differ.
    pub(crate) readings: Vec<Reading>,
}

/// A site that lists the model.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// Which of the view's sites.
    pub(crate) site: usize,
    /// What it calls the model.
    pub(crate) model: ModelId,
    /// Whether one of its relays is connected.
    pub(crate) alive: bool,
    /// Whether it serves the model now.
    pub(crate) ready: bool,
    /// Which of the plan's cards it has.
    pub(crate) card: usize,
    /// Longest sequence, where known.
    pub(crate) limit: Option<NonZeroU32>,
    /// Its only relay, if that can be used as far as the view says.
    pub(crate) only: Option<Path>,
    /// How busy it is with the model.
    pub(crate) load: Load,
    /// In which reading it is remembered what was sent there; `None` without a card.
    pub(crate) sent: Option<usize>,
    pools: Range<u32>,
    lanes: Range<u32>,
}

/// How a body gets to a relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// Round trip.
    pub(crate) rtt_ms: f64,
    /// Bytes that it carries in a millisecond, once measured; finite and above 0.
    pub(crate) bytes_per_ms: Option<f64>,
    /// Bytes that may be in flight at once, at least 1; `None` if not known.
    pub(crate) window: Option<f64>,
}

/// A pool of a seat's that has been received.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    /// Which of the plan's readings finds a prompt there.
    pub(crate) reading: usize,
    pub(crate) tier: Tier,
    pub(crate) closed: bool,
    pub(crate) eviction_age: Option<Duration>,
    pub(crate) state: ReplicaState,
    pub(crate) filter: ReplicaFilter,
}

/// What a relay's last load sample includes of this edge's requests.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) relay: RelayId,
    /// Finds it among the lanes of all relays.
    pub(crate) hash: u64,
    /// The highest number.
    pub(crate) echo: u64,
}

/// What the names of a prompt's blocks depend on at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Which of the plan's cards makes the tokens.
    pub(crate) card: usize,
    /// How blocks are made and named of them.
    pub(crate) kind: Kind,
}

/// What a pool's names of blocks depend on, beside the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) block_size: NonZeroU32,
    pub(crate) format: HashFormat,
    pub(crate) naming: Naming,
}

impl Kind {
    /// How a pool names its blocks.
    pub(crate) const fn of(pool: &PoolView) -> Self {
        Self {
            block_size: pool.block_size,
            format: pool.format,
            naming: pool.naming,
        }
    }

    /// Blocks by the hashes of what they hold.
    pub(crate) const fn hashed(block_size: NonZeroU32, format: HashFormat) -> Self {
        Self {
            block_size,
            format,
            naming: Naming::Chain,
        }
    }
}

impl Path {
    /// The way to a relay.
    pub(crate) fn to(relay: &RelayView) -> Self {
        let rate = relay
            .path_rate
            .filter(|rate| rate.is_finite() && *rate > 0.0);
        Self {
            rtt_ms: relay.rtt.as_secs_f64() * 1000.0,
            bytes_per_ms: rate.map(|bytes_per_s| bytes_per_s / 1000.0),
            window: relay.window.map(|window| (window as f64).max(1.0)),
        }
    }
}

impl Plans {
    /// Lays out sites that are in their order.
    pub(super) fn new(sites: &[SiteView]) -> Self {
        let mut models: BTreeMap<ModelId, Plan> = BTreeMap::new();
        let mut all = Vec::new();
        for (place, site) in sites.iter().enumerate() {
            let start = all.len();
            all.extend(lanes(site));
            let lanes = since(start, all.len());
            for (asked, model) in asked_for(site) {
                let plan = models.entry(asked).or_default();
                plan.add((place, site), model, lanes.clone());
            }
        }
        Self {
            models,
            lanes: all,
            names: Arc::new(Names::of(sites)),
        }
    }

    /// That of a model, by any of its names' ids; `None` if no site lists it.
    pub(super) fn get(&self, asked: ModelId) -> Option<&Plan> {
        self.models.get(&asked)
    }
}

/// Each id that a site's models are asked for by, with what it stands for there: one that
/// is both a name and another's alias is the first.
fn asked_for(site: &SiteView) -> Vec<(ModelId, &ModelView)> {
    let names = site.models.iter().map(|model| (model.id, model));
    let aliases = site.models.iter().flat_map(|model| {
        let ids = model.aliases.iter().map(|alias| alias.id());
        ids.map(move |id| (id, model))
    });
    let mut asked: Vec<_> = names.chain(aliases).collect();
    asked.sort_by_key(|(id, _)| *id);
    asked.dedup_by_key(|(id, _)| *id);
    asked
}

impl Plan {
    fn add(&mut self, (place, site): (usize, &SiteView), model: &ModelView, lanes: Range<u32>) {
        let info = model.card.as_ref();
        let card = intern(&mut self.cards, info.map(|info| info.digest));
        let pools = self.pools.len();
        let mut first = None;
        for pool in site.pools.iter().filter(|pool| pool.model == model.id) {
            first = first.or(Some(Kind::hashed(pool.block_size, pool.format)));
            // It is named even if nothing is found in it yet.
            let kind = Kind::of(pool);
            let reading = intern(&mut self.readings, Reading { card, kind });
            self.pools.extend(Pool::of(pool, reading));
        }
        let sent = info.map(|info| {
            let kind = first.unwrap_or(Kind::hashed(info.block_size, info.format));
            intern(&mut self.readings, Reading { card, kind })
        });
        self.seats.push(Seat {
            site: place,
            model: model.id,
            alive: site.alive,
            ready: model.ready,
            card,
            limit: info.and_then(|info| info.context_length),
            only: only(site, model.id),
            load: Load::of(site.load.model(model.id)),
            sent,
            pools: since(pools, self.pools.len()),
            lanes,
        });
    }
}

impl Seat {
    /// Its pools among all of the plan.
    pub(crate) const fn pools(&self) -> Range<usize> {
        self.pools.start as usize..self.pools.end as usize
    }

    /// Its relays' lanes among all of the view.
    pub(crate) const fn lanes(&self) -> Range<usize> {
        self.lanes.start as usize..self.lanes.end as usize
    }
}

impl Pool {
    fn of(pool: &PoolView, reading: usize) -> Option<Self> {
        Some(Self {
            id: pool.id,
            reading,
            tier: pool.tier,
            closed: pool.closed,
            eviction_age: pool.eviction_age,
            state: pool.replica.state,
            filter: pool.replica.filter.clone()?,
        })
    }
}

/// What a site's relays include of this edge's requests, whatever the model.
fn lanes(site: &SiteView) -> impl Iterator<Item = Lane> {
    site.relays.iter().map(|relay| Lane {
        relay: relay.id.clone(),
        hash: name_hash(relay.id.as_str()),
        echo: site.load.echo(&relay.id),
    })
}

/// The way to a site's relay, if it has one and that serves the model.
fn only(site: &SiteView, model: ModelId) -> Option<Path> {
    let [relay] = site.relays.as_slice() else {
        return None;
    };
    let usable = relay.connected && !relay.draining && relay.serves.contains(&model);
    usable.then(|| Path::to(relay))
}

/// Where a value is among those that differ, which it is added to.
fn intern<T: PartialEq>(all: &mut Vec<T>, value: T) -> usize {
    let known = all.iter().position(|known| *known == value);
    known.unwrap_or_else(|| {
        all.push(value);
        all.len() - 1
    })
}

/// Places in 32 bits, of which there are more than a view has pools or relays.
fn since(start: usize, end: usize) -> Range<u32> {
    let place = |place| u32::try_from(place).unwrap_or(u32::MAX);
    place(start)..place(end)
}
