//! Puts what relays have told together into one view.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kvgrid_core::load::{LoadSample, LoadTracker, SiteLoad};
use kvgrid_core::replication::ReplicaState;
use kvgrid_core::view::{CardDigest, GridView, ModelView, PoolView, RelayView, SiteView};
use kvgrid_core::{Instant, RelayId, SiteId};
use kvgrid_runtime::Clock;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

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
    fn update(&mut self, relays: &[(RelayIdentity, RelayState)], now: Instant) {
        for (identity, state) in relays {
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

/// Assembles views of what the relays' tasks publish.
pub(super) struct Grid {
    relays: Vec<watch::Receiver<RelayState>>,
    loads: BTreeMap<SiteId, SiteLoads>,
    clock: Clock,
    changed: Arc<Notify>,
    usable: Arc<CardUsable>,
    view: Arc<ArcSwap<GridView>>,
}

impl Grid {
    pub(super) fn new(
        relays: Vec<watch::Receiver<RelayState>>,
        clock: Clock,
        changed: Arc<Notify>,
        usable: Arc<CardUsable>,
        view: Arc<ArcSwap<GridView>>,
    ) -> Self {
        Self {
            relays,
            loads: BTreeMap::new(),
            clock,
            changed,
            usable,
            view,
        }
    }

    /// Waits for changes and publishes a view of each burst of them.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        while stop
            .run_until_cancelled(self.changed.notified())
            .await
            .is_some()
        {
            let view = self.assemble();
            self.view.store(Arc::new(view));
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn assemble(&mut self) -> GridView {
        let now = self.clock.now();
        let mut sites: BTreeMap<SiteId, Vec<(RelayIdentity, RelayState)>> = BTreeMap::new();
        for relay in &mut self.relays {
            let state = relay.borrow_and_update().clone();
            if let Some(identity) = state.identity.clone() {
                let site = sites.entry(identity.site.clone()).or_default();
                site.push((identity, state));
            }
        }
        let views = sites.into_iter().map(|(site, mut relays)| {
            relays.sort_by(|(a, _), (b, _)| a.relay.cmp(&b.relay));
            let load = self.loads.entry(site.clone()).or_default();
            load.update(&relays, now);
            site_view(site, &relays, load.tracker.snapshot(), &*self.usable)
        });
        GridView::new(views.collect())
    }
}

fn site_view(
    site: SiteId,
    relays: &[(RelayIdentity, RelayState)],
    load: SiteLoad,
    usable: &CardUsable,
) -> SiteView {
    let voice = voice_of(relays);
    let (region, labels) = match voice {
        Some((identity, _)) => (identity.region.clone(), identity.labels.clone()),
        None => (None, kvgrid_core::label::Labels::default()),
    };
    let state = voice.map(|(_, state)| state);
    SiteView {
        site,
        region,
        labels,
        alive: relays.iter().any(|(_, state)| state.connected),
        relays: relays.iter().map(relay_view).collect(),
        models: state.map_or_else(Vec::new, |state| models(&state.models, usable)),
        pools: state.map_or_else(Vec::new, |state| state.pools.clone()),
        load,
    }
}

/// The relay whose word is taken for the site: connected before not, then with most live pools,
/// then nearest; the first of equals.
fn voice_of(relays: &[(RelayIdentity, RelayState)]) -> Option<&(RelayIdentity, RelayState)> {
    relays.iter().min_by_key(|(_, state)| {
        let live = state.pools.iter().filter(|pool| is_live(pool)).count();
        (!state.connected, usize::MAX - live, state.path.rtt)
    })
}

fn is_live(pool: &PoolView) -> bool {
    matches!(pool.replica.state, ReplicaState::Live)
}

fn models(models: &[ModelView], usable: &CardUsable) -> Vec<ModelView> {
    let mut models = models.to_vec();
    for card in models.iter_mut().filter_map(|model| model.card.as_mut()) {
        card.usable = usable(&card.digest);
    }
    models
}

fn relay_view((identity, state): &(RelayIdentity, RelayState)) -> RelayView {
    RelayView {
        id: RelayId::clone(&identity.relay),
        connected: state.connected,
        draining: state.draining,
        rtt: state.path.rtt,
        path_rate: None,
        window: state.path.window,
    }
}
