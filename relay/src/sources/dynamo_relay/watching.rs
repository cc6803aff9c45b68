//! Watches the peer's list of pools, and has each pool that is ours followed.
//!
//! A pool is known here by its endpoint, so that a new life of the peer finds it again. It
//! ends when the life that has listed it lists it no more. A life that has not listed it yet
//! may be about to find it, for workers are discovered one by one; it has [`SETTLE`] for that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvgrid_core::Instant;
use kvgrid_core::event::{Refusal, Refusals};
use kvgrid_runtime::Clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tracing::{info, warn};

use super::catalog::{self, Entry, Listed};
use super::follow::Follow;
use super::peer::{End, Peer, check, ended};
use super::v1::{KvPoolCatalogUpdate, KvPoolId, RelayIdentity};
use super::{Closed, RelaySettings};
use crate::retry::Retry;
use crate::sources::{FeedId, FeedState, SourceEvent};

/// The feed that stands for the list itself.
const CATALOG: usize = 0;
/// How long a new life of the peer may take to list a pool again. Discovery needs ten seconds
/// to find out that a worker is dead, and less to find one that lives.
const SETTLE: Duration = Duration::from_secs(20);
/// Most pools that are followed at a time; the peer serves no more streams.
const POOLS: usize = 64;
/// Most entries of one list.
const ENTRIES: usize = 4096;
/// Complaints that are remembered, so that each is logged once.
const COMPLAINTS: usize = 1024;

/// Follows a peer's pools.
pub(super) struct Watching {
    settings: RelaySettings,
    peer: Peer,
    clock: Clock,
    luck: u64,
    retry: Retry,
    events: mpsc::Sender<SourceEvent>,
    /// The ids of the followed pools.
    ours: watch::Sender<BTreeSet<Vec<u8>>>,
    state: FeedState,
    followed: BTreeMap<String, Followed>,
    next_feed: usize,
    tasks: JoinSet<()>,
    complaints: BTreeSet<String>,
}

struct Followed {
    listed: watch::Sender<Listed>,
    /// Since when a new life of the peer has not listed it.
    missing_since: Option<Instant>,
    stop: CancellationToken,
}

impl Watching {
    pub(super) fn new(
        settings: RelaySettings,
        peer: Peer,
        (clock, luck): (Clock, u64),
        events: mpsc::Sender<SourceEvent>,
        ours: watch::Sender<BTreeSet<Vec<u8>>>,
    ) -> Self {
        Self {
            settings,
            peer,
            clock,
            luck,
            retry: Retry::new((clock, luck)),
            events,
            ours,
            state: FeedState::Connecting,
            followed: BTreeMap::new(),
            next_feed: CATALOG + 1,
            tasks: JoinSet::new(),
            complaints: BTreeSet::new(),
        }
    }

    /// Ends only when nobody listens any more.
    pub(super) async fn run(mut self) {
        let Err(Closed) = self.run_until_closed().await;
    }

    async fn run_until_closed(&mut self) -> Result<std::convert::Infallible, Closed> {
        loop {
            let end = self.session().await?;
            let delay = self.retry.next_delay();
            let url = self.settings.peer.url.clone();
            self.complain(format!("list: {}", end.reason), || {
                warn!(%end, %url, "Dynamo's relay does not tell its pools");
            });
            if let Some(refusal) = end.refusal {
                self.refuse(refusal).await?;
            }
            let (feed, reason) = (self.feed(CATALOG), end.reason);
            self.events
                .send(SourceEvent::Ended { feed, reason })
                .await?;
            if self.state == FeedState::Whole {
                self.set_state(FeedState::Partial).await?;
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Watches until the stream ends, and says why.
    async fn session(&mut self) -> Result<End, Closed> {
        let mut peer = self.peer.clone();
        let opened = async {
            let relay = peer.info().await?;
            Ok::<_, End>((relay, peer.catalog().await?))
        };
        let (relay, mut stream) = match opened.await {
            Ok(opened) => opened,
            Err(end) => return Ok(end),
        };
        info!(incarnation = relay.relay_incarnation, url = %self.settings.peer.url, "Dynamo's relay found");
        self.complaints.retain(|text| !text.starts_with("list:"));
        loop {
            let update = match self.next(&mut stream).await? {
                None => continue,
                Some(Err(end)) => return Ok(end),
                Some(Ok(update)) => update,
            };
            if let Err(end) = self.take(update).await? {
                return Ok(end);
            }
            self.retry.note_up();
        }
    }

    /// The next list; nothing if pools were given up instead.
    async fn next(
        &mut self,
        stream: &mut Streaming<KvPoolCatalogUpdate>,
    ) -> Result<Option<Result<KvPoolCatalogUpdate, End>>, Closed> {
        let missing = self.followed.values().filter_map(|it| it.missing_since);
        let settled = missing.min().map(|since| since + SETTLE);
        // All arms may be dropped while they wait. A dead connection ends the stream: the list
        // has no heartbeats of its own, for it rarely changes.
        tokio::select! {
            update = stream.message() => Ok(Some(ended(update))),
            () = self.clock.until(settled) => {
                self.give_up_missing(self.clock.now());
                Ok(None)
            }
            Some(_) = self.tasks.join_next() => Ok(None),
            () = self.events.closed() => Err(Closed),
        }
    }

    async fn take(&mut self, update: KvPoolCatalogUpdate) -> Result<Result<(), End>, Closed> {
        let checked = check(
            update.contract_marker,
            update.protocol_version,
            update.relay,
        );
        let relay = match checked {
            Ok(relay) => relay,
            Err(end) => return Ok(Err(end)),
        };
        let Some(pools) = catalog::pools(update) else {
            let refused = End::refused(Refusal::Malformed, &"a list without pools is none");
            return Ok(Err(refused));
        };
        let mut seen = BTreeSet::new();
        for (number, pool) in pools.iter().enumerate() {
            let place = catalog::place(pool);
            match catalog::read(pool, &relay, &self.settings) {
                _ if number >= ENTRIES => self.refuse(Refusal::Limit).await?,
                Entry::Ours(listed) => self.meet(*listed, &mut seen).await?,
                Entry::Others => {
                    self.complain(format!("other {place}"), || {
                        info!(place, "Pool of Dynamo's relay is not ours: not followed");
                    });
                }
                Entry::Unfit(unfit) => {
                    self.complain(format!("unfit {place} {unfit}"), || {
                        warn!(place, %unfit, "Pool of Dynamo's relay is not followed");
                    });
                    self.refuse(unfit.refusal()).await?;
                }
            }
        }
        self.leave_unlisted(&seen, &relay);
        self.tell_ours();
        self.set_state(FeedState::Whole).await?;
        Ok(Ok(()))
    }

    /// Follows a pool, or the new life of one that is followed.
    async fn meet(&mut self, listed: Listed, seen: &mut BTreeSet<String>) -> Result<(), Closed> {
        if !seen.insert(listed.place.clone()) {
            let place = &listed.place;
            self.complain(format!("twice {place}"), || {
                warn!(place, "Endpoint has two pools: the second is not followed");
            });
            return self.refuse(Refusal::Unsupported).await;
        }
        if let Some(followed) = self.followed.get_mut(&listed.place) {
            followed.missing_since = None;
            followed.listed.send_if_modified(|known| {
                let other = *known != listed;
                *known = listed;
                other
            });
            return Ok(());
        }
        if self.followed.len() >= POOLS {
            let place = &listed.place;
            self.complain(format!("many {place}"), || {
                warn!(place, "Too many pools: not followed");
            });
            return self.refuse(Refusal::Limit).await;
        }
        let (place, feed) = (listed.place.clone(), self.feed(self.next_feed));
        self.next_feed += 1;
        info!(place, shape = ?listed.shape, format = ?listed.format, "Pool found");
        let (sender, receiver) = watch::channel(listed);
        let follow = Follow {
            feed,
            peer: self.peer.clone(),
            listed: receiver,
            retry: Retry::new((self.clock, self.luck.wrapping_add(feed.endpoint as u64))),
            events: self.events.clone(),
        };
        let stop = CancellationToken::new();
        self.tasks.spawn(follow.run(stop.clone()));
        let followed = Followed {
            listed: sender,
            missing_since: None,
            stop,
        };
        self.followed.insert(place, followed);
        Ok(())
    }

    fn leave_unlisted(&mut self, seen: &BTreeSet<String>, relay: &RelayIdentity) {
        let now = self.clock.now();
        self.followed.retain(|place, followed| {
            if seen.contains(place) {
                return true;
            }
            let listed_before = followed.listed.borrow().relay == *relay;
            if listed_before {
                info!(place, "Pool is gone");
                followed.stop.cancel();
            } else {
                followed.missing_since.get_or_insert(now);
            }
            !listed_before
        });
    }

    fn give_up_missing(&mut self, now: Instant) {
        self.followed.retain(|place, followed| {
            let missing = followed.missing_since;
            let gone = missing.is_some_and(|since| now.saturating_since(since) >= SETTLE);
            if gone {
                info!(place, "Pool is gone: Dynamo's relay has not found it again");
                followed.stop.cancel();
            }
            !gone
        });
        self.tell_ours();
    }

    fn tell_ours(&self) {
        let id = |followed: &Followed| pool_key(followed.listed.borrow().producer.pool_id.as_ref());
        let ours: BTreeSet<_> = self.followed.values().map(id).collect();
        self.ours.send_if_modified(|known| {
            let other = *known != ours;
            *known = ours;
            other
        });
    }

    async fn refuse(&self, refusal: Refusal) -> Result<(), Closed> {
        let mut refused = Refusals::default();
        refused.count(refusal);
        let feed = self.feed(CATALOG);
        Ok(self
            .events
            .send(SourceEvent::Refused { feed, refused })
            .await?)
    }

    async fn set_state(&mut self, state: FeedState) -> Result<(), Closed> {
        if self.state != state {
            self.state = state;
            let feed = self.feed(CATALOG);
            self.events.send(SourceEvent::Feed { feed, state }).await?;
        }
        Ok(())
    }

    /// Says a thing once.
    fn complain(&mut self, text: String, say: impl FnOnce()) {
        if self.complaints.len() >= COMPLAINTS {
            self.complaints.clear();
        }
        if self.complaints.insert(text) {
            say();
        }
    }

    const fn feed(&self, endpoint: usize) -> FeedId {
        FeedId {
            source: self.settings.source,
            endpoint,
        }
    }
}

/// A pool's id as one value that can be compared and sorted.
pub(super) fn pool_key(id: Option<&KvPoolId>) -> Vec<u8> {
    id.map(prost::Message::encode_to_vec).unwrap_or_default()
}
