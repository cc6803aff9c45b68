//! Puts what relays have told together into one view.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kvgrid_core::load::{LoadSample, LoadTracker, SiteLoad};
use kvgrid_core::replication::{Completeness, ReplicaState};
use kvgrid_core::view::{
    CardDigest, GridView, Knowledge, Lead, ModelView, PoolView, RelayView, SiteView, Standing,
};
use kvgrid_core::{Instant, ModelId, RelayId, SiteId};
use kvgrid_runtime::Clock;
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::directory::{Followed, Relays};
use super::relay_state::{RelayIdentity, RelayState};

/// Pause between two views: what changes meanwhile is in the next one. A filter's new blocks
/// need no new view, so this delays none of them.
const PAUSE: Duration = Duration::from_millis(5);

/// Whether this edge can tokenise by a card.
pub(super) type CardUsable = dyn Fn(&CardDigest) -> bool + Send + Sync;

/// A site's load, and how far each relay's samples are in it.
#[derive(Default)]
struct SiteLoads {
    tracker: LoadTracker,
    taken: BTreeMap<RelayId, Instant>,
}

impl SiteLoads {
    fn update(&mut self, members: &[Member], now: Instant) {
        for Member {
            identity, state, ..
        } in members
        {
            let relay = &identity.relay;
            match &state.sample {
                Some(sample) if state.connected => self.take(relay, sample, now),
                _ => {
                    self.taken.remove(relay);
                    self.tracker.handle_relay_gone(relay);
                }
            }
        }
    }

    fn take(&mut self, relay: &RelayId, sample: &LoadSample, now: Instant) {
        if self.taken.insert(relay.clone(), sample.at) == Some(sample.at) {
            return;
        }
        if let Err(error) = self.tracker.handle_sample(relay, sample.clone(), now) {
            warn!(%relay, %error, "Load sample refused");
        }
    }
}

/// One site's load, and which of its relays it is followed by.
#[derive(Default)]
struct Site {
    loads: SiteLoads,
    lead: Lead,
}

/// A relay as it stands now, and how to tell whether its pools are wanted.
struct Member {
    identity: RelayIdentity,
    state: RelayState,
    wanted: watch::Sender<bool>,
}

/// Assembles views of what the relays' tasks publish.
pub(super) struct Grid {
    relays: Relays,
    sites: BTreeMap<SiteId, Site>,
    clock: Clock,
    changed: Arc<Notify>,
    usable: Arc<CardUsable>,
    view: Arc<ArcSwap<GridView>>,
}

impl Grid {
    pub(super) fn new(
        relays: Relays,
        clock: Clock,
        changed: Arc<Notify>,
        usable: Arc<CardUsable>,
        view: Arc<ArcSwap<GridView>>,
    ) -> Self {
        Self {
            relays,
            sites: BTreeMap::new(),
            clock,
            changed,
            usable,
            view,
        }
    }

    /// Waits for changes and publishes a view of each burst of them.
    pub(super) async fn run(mut self) {
        loop {
            let due = self
                .sites
                .values()
                .filter_map(|site| site.lead.poll_timeout());
            let due = due.min();
            // Both arms are cancel safe.
            tokio::select! {
                () = self.changed.notified() => {}
                () = self.clock.until(due) => {}
            }
            let view = self.assemble();
            self.view.store(Arc::new(view));
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn assemble(&mut self) -> GridView {
        let now = self.clock.now();
        let mut sites: BTreeMap<SiteId, Vec<Member>> = BTreeMap::new();
        for Followed { state, wanted } in self.relays.list() {
            let state = state.borrow().clone();
            if let Some(identity) = state.identity.clone() {
                let site = sites.entry(identity.site.clone()).or_default();
                site.push(Member {
                    identity,
                    state,
                    wanted,
                });
            }
        }
        self.sites.retain(|site, _| sites.contains_key(site));
        let views = sites.into_iter().map(|(id, members)| {
            let site = self.sites.entry(id.clone()).or_default();
            site.loads.update(&members, now);
            choose(&mut site.lead, &members, now);
            let load = site.loads.tracker.snapshot();
            site_view(id, &members, &site.lead, load, &*self.usable)
        });
        GridView::new(views.collect())
    }
}

/// Chooses whose pools are followed, and tells each relay's follower.
fn choose(lead: &mut Lead, members: &[Member], now: Instant) {
    let standings: Vec<Standing> = members.iter().map(standing).collect();
    lead.update(&standings, now);
    for member in members {
        let follows = lead.follows(&member.identity.relay);
        member.wanted.send_if_modified(|wanted| {
            let changed = *wanted != follows;
            *wanted = follows;
            changed
        });
    }
}

fn standing(member: &Member) -> Standing {
    let state = &member.state;
    let live = |pool: &PoolView| matches!(pool.replica.state, ReplicaState::Live);
    Standing {
        relay: member.identity.relay.clone(),
        available: state.connected && !state.draining,
        rtt: state.path.rtt,
        knows: knowledge(state),
        live: state.connected && state.told && state.pools.iter().all(live),
    }
}

/// How much is known by a relay: as much as of the pool of which the least is known.
fn knowledge(state: &RelayState) -> Knowledge {
    if !state.told {
        return Knowledge::Nothing;
    }
    let of_pool = |pool: &PoolView| match (pool.replica.state, pool.replica.completeness) {
        (ReplicaState::Empty | ReplicaState::Syncing, _) => Knowledge::Nothing,
        (_, Completeness::Partial) => Knowledge::Partial,
        (_, Completeness::None | Completeness::Incomplete) => Knowledge::Incomplete,
        (_, Completeness::Whole) => Knowledge::Whole,
    };
    let least = state.pools.iter().map(of_pool).min();
    least.unwrap_or(Knowledge::Whole)
}

fn site_view(
    site: SiteId,
    members: &[Member],
    lead: &Lead,
    load: SiteLoad,
    usable: &CardUsable,
) -> SiteView {
    let shown = members
        .iter()
        .find(|member| Some(&member.identity.relay) == lead.shown());
    let (region, labels) = match shown.or(members.first()) {
        Some(Member { identity, .. }) => (identity.region.clone(), identity.labels.clone()),
        None => (None, kvgrid_core::label::Labels::default()),
    };
    SiteView {
        site,
        region,
        labels,
        alive: members.iter().any(|member| member.state.connected),
        relays: members.iter().map(relay_view).collect(),
        models: models(members, shown, usable),
        known_by: shown.map(|shown| shown.identity.relay.clone()),
        pools: shown.map_or_else(Vec::new, |shown| pools(&shown.state)),
        load,
    }
}

/// A relay's pools, with what it says of how they are fed.
fn pools(state: &RelayState) -> Vec<PoolView> {
    let with_facts = |pool: &PoolView| PoolView {
        facts: state.facts.get(&pool.id).cloned(),
        ..pool.clone()
    };
    state.pools.iter().map(with_facts).collect()
}

/// The models of all connected relays; while there are none, those that were known last.
fn models(members: &[Member], shown: Option<&Member>, usable: &CardUsable) -> Vec<ModelView> {
    let connected = members.iter().filter(|member| member.state.connected);
    let mut telling: Vec<&Member> = connected.collect();
    if telling.is_empty() {
        telling.extend(shown);
    }
    // Where they differ, the word of the one that is shown counts.
    let shown = shown.map(|shown| &shown.identity.relay);
    telling.sort_by_key(|member| Some(&member.identity.relay) != shown);
    let mut models: BTreeMap<ModelId, ModelView> = BTreeMap::new();
    for model in telling.iter().flat_map(|member| &member.state.models) {
        let known = models.entry(model.id).or_insert_with(|| model.clone());
        known.ready |= model.ready;
        if known.card.is_none() {
            known.card.clone_from(&model.card);
        }
        // Another frontend may have found more of its names by now.
        for alias in &model.aliases {
            if !known.aliases.contains(alias) {
                known.aliases.push(alias.clone());
            }
        }
    }
    for card in models.values_mut().filter_map(|model| model.card.as_mut()) {
        card.usable = usable(&card.digest);
    }
    models.into_values().collect()
}

fn relay_view(member: &Member) -> RelayView {
    let Member {
        identity, state, ..
    } = member;
    let served = state.models.iter().filter(|model| model.ready);
    RelayView {
        id: identity.relay.clone(),
        connected: state.connected,
        draining: state.draining,
        serves: served.map(|model| model.id).collect(),
        rtt: state.path.rtt,
        path_rate: None,
        window: state.path.window,
    }
}
