//! How full the peer's pools are, and whether it finds the model served.
//!
//! Neither is heard of any more when its stream is silent: it is unknown then, and not as it
//! was before.

use std::collections::BTreeSet;
use std::time::Duration;

use kvgrid_runtime::Clock;
use tokio::sync::{mpsc, watch};
use tracing::debug;

use super::peer::{End, Peer, check, next};
use super::v1::{KvPoolLoadUpdate, ServingReadinessState, ServingReadinessUpdate};
use super::watching::pool_key;
use super::{Closed, RelaySettings};
use crate::retry::Retry;
use crate::sources::dynamo_events::{PoolUse, Usage};
use crate::sources::{FeedId, SourceEvent};

/// Load comes each second.
const LOAD_SILENCE: Duration = Duration::from_secs(5);
/// Readiness is repeated every ten seconds.
const READINESS_SILENCE: Duration = Duration::from_secs(35);

/// Tells the use of these pools, for ever.
pub(super) async fn follow_load(
    mut peer: Peer,
    ours: watch::Receiver<BTreeSet<Vec<u8>>>,
    luck: (Clock, u64),
    usage: watch::Sender<Usage>,
) {
    let mut retry = Retry::new(luck);
    loop {
        let end = load(&mut peer, &ours, &mut retry, &usage).await;
        debug!(%end, "Load of Dynamo's relay ended");
        usage.send_replace(Usage::default());
        tokio::time::sleep(retry.next_delay()).await;
    }
}

async fn load(
    peer: &mut Peer,
    ours: &watch::Receiver<BTreeSet<Vec<u8>>>,
    retry: &mut Retry,
    usage: &watch::Sender<Usage>,
) -> End {
    let mut stream = match peer.load().await {
        Ok(stream) => stream,
        Err(end) => return end,
    };
    loop {
        let update = match next(&mut stream, LOAD_SILENCE).await {
            Ok(update) => update,
            Err(end) => return end,
        };
        let checked = check(
            update.contract_marker,
            update.protocol_version,
            update.relay,
        );
        if let Err(end) = checked {
            return end;
        }
        retry.note_up();
        let now = use_of(&update, &ours.borrow());
        usage.send_if_modified(|known| {
            let other = *known != now;
            *known = now;
            other
        });
    }
}

/// A pool counts when all its ranks were observed: a part of them would look like an idle one.
pub(super) fn use_of(update: &KvPoolLoadUpdate, ours: &BTreeSet<Vec<u8>>) -> Usage {
    let pools = update.pools.iter().filter(|pool| {
        let id = pool.producer.as_ref().and_then(|it| it.pool_id.as_ref());
        let complete =
            pool.kv_observed_ranks > 0 && pool.kv_observed_ranks == pool.kv_expected_ranks;
        complete && pool.total_kv_blocks > 0 && ours.contains(&pool_key(id))
    });
    Usage::of_pools(pools.map(|pool| PoolUse {
        used: pool.kv_used_blocks,
        blocks: pool.total_kv_blocks,
        ranks: pool.kv_expected_ranks,
    }))
}

/// Tells whether the peer finds the model served, until nobody listens.
pub(super) async fn follow_readiness(
    (mut peer, settings): (Peer, RelaySettings),
    luck: (Clock, u64),
    events: mpsc::Sender<SourceEvent>,
) {
    let mut retry = Retry::new(luck);
    let mut told = None;
    while let Ok(end) = readiness(&mut peer, &settings, &mut retry, &events, &mut told).await {
        debug!(%end, "Readiness of Dynamo's relay ended");
        if tell(&events, &settings, &mut told, None).await.is_err() {
            return;
        }
        tokio::time::sleep(retry.next_delay()).await;
    }
}

async fn readiness(
    peer: &mut Peer,
    settings: &RelaySettings,
    retry: &mut Retry,
    events: &mpsc::Sender<SourceEvent>,
    told: &mut Option<bool>,
) -> Result<End, Closed> {
    let mut stream = match peer.readiness().await {
        Ok(stream) => stream,
        Err(end) => return Ok(end),
    };
    loop {
        let update = match next(&mut stream, READINESS_SILENCE).await {
            Ok(update) => update,
            Err(end) => return Ok(end),
        };
        let checked = check(
            update.contract_marker,
            update.protocol_version,
            update.relay,
        );
        if let Err(end) = checked {
            return Ok(end);
        }
        retry.note_up();
        tell(events, settings, told, is_ready(&update, settings)).await?;
    }
}

/// Whether the model is served in the namespace that is meant; `None` where the peer says
/// nothing of it, or that it doesn't know.
pub(super) fn is_ready(update: &ServingReadinessUpdate, settings: &RelaySettings) -> Option<bool> {
    let wanted = settings.peer.namespace.as_deref();
    let ours = update.entries.iter().filter(|entry| {
        entry.canonical_model_id == settings.model.as_str()
            && wanted.is_none_or(|wanted| wanted == entry.namespace)
    });
    let mut ready = None;
    for entry in ours {
        match ServingReadinessState::try_from(entry.state) {
            Ok(ServingReadinessState::Ready) => return Some(true),
            Ok(ServingReadinessState::Unavailable) => ready = Some(false),
            Ok(ServingReadinessState::Unknown) | Err(_) => {}
        }
    }
    ready
}

async fn tell(
    events: &mpsc::Sender<SourceEvent>,
    settings: &RelaySettings,
    told: &mut Option<bool>,
    ready: Option<bool>,
) -> Result<(), Closed> {
    if *told != ready {
        *told = ready;
        let feed = FeedId {
            source: settings.source,
            endpoint: 0,
        };
        events.send(SourceEvent::Served { feed, ready }).await?;
    }
    Ok(())
}
