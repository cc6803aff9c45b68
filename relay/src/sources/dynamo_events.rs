//! KV events over Dynamo's own event plane.
//!
//! Discovery tells who publishes, each at a ZeroMQ socket of its own or by way of NATS
//! (`plane`); one task follows each publisher for as long as it lives there
//! (`follow`), and others what workers say of their load (`listen`). The plane has no memory: a
//! publisher that was there before the relay is known whole only if it has said nothing yet,
//! and what was lost stays lost. A worker that starts anew is another publisher and heals that.
//!
//! Publishers of other models, and of blocks of another size than the pool's, are not followed.

use std::collections::{BTreeMap, BTreeSet};

use kvgrid_core::ModelName;
use kvgrid_core::event::dynamo::KV_EVENTS;
use kvgrid_runtime::Clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{FeedId, FeedState, ListedPart, SourceEvent};
use crate::discovery::{Publisher, Scope, Sighting, Sightings, WorkerRank};
use crate::publish::PoolShape;

mod follow;
mod listen;
mod nats;
mod parts;
mod plane;
mod position;
#[cfg(test)]
pub(crate) mod tests;
mod usage;

#[cfg(test)]
pub(crate) use follow::scripted;
pub(crate) use nats::{NatsLogin, NatsSettings};
pub(crate) use usage::{PoolUse, Usage};

use follow::{Closed, Follow};
use listen::Listeners;
use nats::Connection;
use parts::{Fit, Workers};
use plane::{Plane, Voice};
use usage::Size;

/// What a source of this kind is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EventSettings {
    /// The source's place in the configuration.
    pub(crate) source: usize,
    /// The model whose blocks it tells of.
    pub(crate) model: ModelName,
    /// What its blocks look like, if the configuration says so.
    pub(crate) shape: Option<PoolShape>,
    /// Whose publishers it follows.
    pub(crate) scope: Scope,
    /// The NATS that they may publish by.
    pub(crate) nats: Option<NatsSettings>,
    /// Most publishers at a time.
    pub(crate) max_publishers: usize,
}

/// The feed that stands for discovery itself while that can't be read.
const DISCOVERY: usize = 0;

/// Ids of dead publishers that are remembered, so that one that comes back is not new.
const REMEMBERED: usize = 65_536;

/// Follows a site's publishers until the pool task is gone.
pub(crate) async fn run(
    settings: EventSettings,
    sightings: Sightings,
    clock: Clock,
    events: mpsc::Sender<SourceEvent>,
    usage: watch::Sender<Usage>,
) {
    let mut tasks = JoinSet::new();
    let hub = settings.nats.clone().map(|nats| {
        let feed = FeedId {
            source: settings.source,
            endpoint: DISCOVERY,
        };
        let refused = (events.clone(), feed);
        let (hub, connection) = Connection::new(nats, &settings.scope, &topics(), refused);
        tasks.spawn(connection.run());
        hub
    });
    let plane = Plane { nats: hub };
    let source = Source {
        parts: Vec::new(),
        discovery: Some(FeedState::Connecting),
        followed: BTreeMap::new(),
        listeners: Listeners::new(usage, plane.clone(), clock),
        plane,
        gone: BTreeSet::new(),
        replaced: BTreeSet::new(),
        next_feed: DISCOVERY + 1,
        looks: 0,
        tasks,
        settings,
        events,
    };
    // The only error is that nobody listens any more.
    let Err(Closed) = source.run(sightings).await;
}

struct Source {
    settings: EventSettings,
    /// Into which pools the workers' blocks belong, as was told last.
    parts: Vec<ListedPart>,
    /// The state of discovery's own feed; `None` while there is nothing wrong with it.
    discovery: Option<FeedState>,
    followed: BTreeMap<u64, Followed>,
    listeners: Listeners,
    /// How publishers are heard.
    plane: Plane,
    /// Publishers that were followed and are so no more; the early ones are forgotten.
    gone: BTreeSet<u64>,
    /// Publishers whose rank speaks by another one now, whatever discovery says.
    replaced: BTreeSet<u64>,
    next_feed: usize,
    /// Counts sightings.
    looks: u64,
    tasks: JoinSet<()>,
    events: mpsc::Sender<SourceEvent>,
}

/// A publisher that has a feed.
struct Followed {
    publisher: Publisher,
    /// For whom it speaks, as far as that is told.
    worker: watch::Sender<Option<WorkerRank>>,
    feed: FeedId,
    fit: Fit,
    /// The sighting in which it came up.
    since: u64,
    stop: CancellationToken,
}

impl Source {
    async fn run(mut self, mut sightings: Sightings) -> Result<std::convert::Infallible, Closed> {
        loop {
            let seen = sightings.borrow_and_update().clone();
            if let Some(seen) = seen {
                self.take(&seen).await?;
            }
            // Ended tasks are collected; all arms may be dropped while they wait.
            loop {
                tokio::select! {
                    changed = sightings.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return Err(Closed),
                    },
                    Some(_) = self.tasks.join_next() => {}
                    () = self.events.closed() => return Err(Closed),
                }
            }
        }
    }

    /// Follows who is there now, and leaves who is not.
    async fn take(&mut self, seen: &Sighting) -> Result<(), Closed> {
        self.looks += u64::from(seen.readable || self.looks > 0);
        self.tell_discovery(seen.readable).await?;
        let workers = Workers::of(seen, self.settings.model.as_str(), self.settings.shape);
        self.list_parts(&workers).await?;
        self.leave_dead(seen, &workers).await?;
        for (id, publisher) in &seen.publishers {
            if publisher.topic == KV_EVENTS && self.is_ours(publisher, seen) {
                self.meet(*id, publisher, &workers).await?;
            }
        }
        self.listen_to_use(seen, &workers);
        Ok(())
    }

    async fn tell_discovery(&mut self, readable: bool) -> Result<(), Closed> {
        let state = match (readable, self.looks) {
            (true, _) => None,
            (false, 0) => Some(FeedState::Connecting),
            (false, _) => Some(FeedState::Partial),
        };
        if self.discovery == state {
            return Ok(());
        }
        self.discovery = state;
        let feed = self.feed(DISCOVERY);
        let event = match state {
            None => SourceEvent::FeedEnded { feed },
            Some(state) => SourceEvent::Feed { feed, state },
        };
        Ok(self.events.send(event).await?)
    }

    /// Whether a publisher speaks of our model. One whose endpoint has not told its model yet
    /// is taken in: its first events are told once only.
    fn is_ours(&self, publisher: &Publisher, seen: &Sighting) -> bool {
        let name = self.settings.model.as_str();
        let mut there = seen
            .models
            .values()
            .filter(|model| model.place.fits(&publisher.place))
            .peekable();
        there.peek().is_none() || there.any(|model| model.card.is_called(name))
    }

    async fn list_parts(&mut self, workers: &Workers<'_>) -> Result<(), Closed> {
        if self.parts == workers.parts() {
            return Ok(());
        }
        let parts = workers.parts().to_vec();
        for part in parts.iter().filter(|part| !self.lists(part)) {
            let (place, told) = (&part.of.place, part.told);
            info!(place, told, shape = ?part.of.shape, "Pool found");
        }
        self.parts.clone_from(&parts);
        let feed = self.feed(DISCOVERY);
        Ok(self.events.send(SourceEvent::Parts { feed, parts }).await?)
    }

    fn lists(&self, part: &ListedPart) -> bool {
        let mut known = self.parts.iter();
        known.any(|known| known.of == part.of && known.told == part.told)
    }

    /// Ends the feeds of publishers that are gone, or that are something else now.
    async fn leave_dead(&mut self, seen: &Sighting, workers: &Workers<'_>) -> Result<(), Closed> {
        let mut left = Vec::new();
        for (id, followed) in &self.followed {
            let found = seen.publishers.get(id);
            let found = found.filter(|publisher| self.is_ours(publisher, seen));
            match found {
                None => left.push(*id),
                Some(now) if now.transport != followed.publisher.transport => left.push(*id),
                Some(now) if self.fit(now, workers).is_other_than(&followed.fit) => left.push(*id),
                // For whom it speaks is often told a moment after that it speaks.
                Some(_) => {}
            }
        }
        self.replaced.retain(|id| seen.publishers.contains_key(id));
        for id in left {
            self.gone.insert(id);
            self.leave(id).await?;
        }
        while self.gone.len() > REMEMBERED {
            self.gone.pop_first();
        }
        Ok(())
    }

    async fn leave(&mut self, id: u64) -> Result<(), Closed> {
        let Some(followed) = self.followed.remove(&id) else {
            return Ok(());
        };
        followed.stop.cancel();
        if !followed.fit.is_followed() {
            let feed = followed.feed;
            self.events.send(SourceEvent::FeedEnded { feed }).await?;
        }
        Ok(())
    }

    fn fit(&self, publisher: &Publisher, workers: &Workers<'_>) -> Fit {
        match self.plane.hears(&publisher.transport) {
            true => workers.fit(publisher),
            false => Fit::Unheard,
        }
    }

    /// Begins to follow a publisher that is not followed yet.
    async fn meet(
        &mut self,
        id: u64,
        publisher: &Publisher,
        workers: &Workers<'_>,
    ) -> Result<(), Closed> {
        if let Some(followed) = self.followed.get(&id) {
            // For whom it speaks is told only now.
            if *followed.worker.borrow() != publisher.worker {
                self.replace(publisher.worker).await?;
            }
            return self.meet_again(id, publisher, workers).await;
        }
        if self.replaced.contains(&id) {
            return Ok(());
        }
        if self.followed.len() >= self.settings.max_publishers {
            warn!(publisher = id, "Too many publishers: not followed");
            return Ok(());
        }
        self.replace(publisher.worker).await?;
        let fit = self.fit(publisher, workers);
        let followed = Followed {
            publisher: publisher.clone(),
            worker: watch::Sender::new(publisher.worker),
            feed: self.feed(self.next_feed),
            fit,
            since: self.looks,
            stop: CancellationToken::new(),
        };
        self.next_feed += 1;
        self.begin(id, &followed).await?;
        self.followed.insert(id, followed);
        Ok(())
    }

    /// Takes note of what has become known of a publisher that is followed.
    async fn meet_again(
        &mut self,
        id: u64,
        publisher: &Publisher,
        workers: &Workers<'_>,
    ) -> Result<(), Closed> {
        let fit = self.fit(publisher, workers);
        let Some(followed) = self.followed.get_mut(&id) else {
            return Ok(());
        };
        followed.worker.send_if_modified(|known| {
            let changed = *known != publisher.worker;
            *known = publisher.worker;
            changed
        });
        if let (Fit::Awaited, Fit::Of(of)) = (&followed.fit, &fit) {
            let (feed, of) = (followed.feed, of.clone());
            followed.fit = fit;
            self.events.send(SourceEvent::Belongs { feed, of }).await?;
        }
        Ok(())
    }

    async fn begin(&mut self, id: u64, followed: &Followed) -> Result<(), Closed> {
        let (publisher, feed) = (&followed.publisher, followed.feed);
        let transport = &publisher.transport;
        if let Fit::Of(of) = &followed.fit {
            let of = of.clone();
            self.events.send(SourceEvent::Belongs { feed, of }).await?;
        }
        let state = match followed.fit {
            Fit::Of(_) | Fit::Awaited => {
                let follow = Follow {
                    feed,
                    voice: Voice {
                        publisher: id,
                        transport: transport.clone(),
                        topic: KV_EVENTS,
                    },
                    plane: self.plane.clone(),
                    worker: followed.worker.subscribe(),
                    late: self.looks == 1 || self.gone.contains(&id),
                };
                let late = follow.late;
                info!(publisher = id, ?transport, late, "Publisher found");
                let (stop, events) = (followed.stop.clone(), self.events.clone());
                self.tasks.spawn(follow.run(stop, events));
                FeedState::Connecting
            }
            Fit::Unfit(reason) => {
                warn!(publisher = id, worker = ?publisher.worker, reason, "Publisher's blocks are of no use: not followed");
                FeedState::Unfit
            }
            Fit::Unheard => {
                warn!(
                    publisher = id,
                    ?transport,
                    "Publisher can't be heard: not followed"
                );
                FeedState::Partial
            }
        };
        Ok(self.events.send(SourceEvent::Feed { feed, state }).await?)
    }

    /// A rank speaks by one publisher only: whoever spoke for it before is gone.
    async fn replace(&mut self, worker: Option<WorkerRank>) -> Result<(), Closed> {
        let Some(worker) = worker else { return Ok(()) };
        let before = self.followed.iter().filter(|(_, followed)| {
            *followed.worker.borrow() == Some(worker) && followed.since < self.looks
        });
        let before: Vec<u64> = before.map(|(id, _)| *id).collect();
        for id in before {
            self.replaced.insert(id);
            self.leave(id).await?;
        }
        Ok(())
    }

    /// Listens to what our model's workers say of their load.
    fn listen_to_use(&mut self, seen: &Sighting, workers: &Workers<'_>) {
        let workers = workers
            .serving()
            .map(|(worker, model)| (worker, Size::of(&model.card)));
        let mut alive = Vec::new();
        for topic in listen::TOPICS {
            let ours = seen.publishers.iter().filter(|(_, publisher)| {
                publisher.topic == topic
                    && self.is_ours(publisher, seen)
                    && self.plane.hears(&publisher.transport)
            });
            let voice = |(id, publisher): (&u64, &Publisher)| Voice {
                publisher: *id,
                transport: publisher.transport.clone(),
                topic,
            };
            alive.extend(ours.map(voice).take(self.settings.max_publishers));
        }
        self.listeners
            .update(workers.collect(), alive, &mut self.tasks);
    }

    const fn feed(&self, endpoint: usize) -> FeedId {
        FeedId {
            source: self.settings.source,
            endpoint,
        }
    }
}

/// All topics that are listened to.
fn topics() -> Vec<&'static str> {
    std::iter::once(KV_EVENTS).chain(listen::TOPICS).collect()
}
