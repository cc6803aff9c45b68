//! Keeps one follower for each relay that an edge knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvgrid_core::RelayId;
use kvgrid_core::membership::{Addresses, Scope};
use kvgrid_runtime::{CloseReason, FoundRelay, PeerConnection};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::dialled::{Newest, Pair};
use super::follow::{self, Follower};
use super::relay_state::RelayState;
use super::roster::{Full, RELAYS, Roster};
use super::{Context, Publish};

/// Events that wait; at the bound those who tell them wait too.
const EVENTS: usize = 256;

/// What the directory is told.
#[derive(Debug)]
pub(super) enum Event {
    /// A seed led to a relay, which a view connection is up to.
    Found(FoundRelay),
    /// A relay has dialled this edge, both connections.
    Dialled { relay: RelayId, pair: Pair },
    /// A connected relay tells whom it believes alive.
    Members {
        teller: RelayId,
        members: Vec<(RelayId, Addresses)>,
    },
    /// A follower is connected to its relay.
    Connected(RelayId),
    /// A follower has lost its relay.
    Lost { relay: RelayId, left: bool },
}

/// Where the directory is told things.
#[derive(Clone, Debug)]
pub(super) struct Directory(mpsc::Sender<Event>);

impl Directory {
    pub(super) async fn tell(&self, event: Event) {
        // It is gone only when the edge stops.
        let _ = self.0.send(event).await;
    }
}

/// What one relay's follower and the grid share.
#[derive(Clone, Debug)]
pub(super) struct Followed {
    /// What the relay has told.
    pub(super) state: watch::Receiver<RelayState>,
    /// Whether its pools are wanted.
    pub(super) wanted: watch::Sender<bool>,
}

/// All relays that are followed; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Relays(Arc<Mutex<BTreeMap<RelayId, Followed>>>);

impl Relays {
    pub(super) fn list(&self) -> Vec<Followed> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<RelayId, Followed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a follower is reached.
struct Handle {
    adopt: mpsc::Sender<PeerConnection>,
    dialled: Newest,
    addresses: watch::Sender<Vec<String>>,
    stop: CancellationToken,
}

/// The directory's own state.
pub(super) struct Registry {
    context: Context,
    scopes: Vec<Scope>,
    relays: Relays,
    roster: Roster,
    followers: BTreeMap<RelayId, Handle>,
    jitter_seed: u64,
    directory: Directory,
    events: mpsc::Receiver<Event>,
}

impl Registry {
    pub(super) fn new(
        context: Context,
        scopes: Vec<Scope>,
        relays: Relays,
        jitter_seed: u64,
    ) -> (Self, Directory) {
        let (sender, events) = mpsc::channel(EVENTS);
        let directory = Directory(sender);
        let registry = Self {
            context,
            scopes,
            relays,
            roster: Roster::default(),
            followers: BTreeMap::new(),
            jitter_seed,
            directory: directory.clone(),
            events,
        };
        (registry, directory)
    }

    /// Takes events until all who could tell them are gone.
    pub(super) async fn run(mut self) {
        let clock = self.context.clock;
        loop {
            // Both arms are cancel safe.
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return,
                },
                () = clock.until(self.roster.poll_timeout()) => {}
            }
            while let Some(relay) = self.roster.poll_forgotten(clock.now()) {
                self.forget(&relay);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.context.clock.now();
        match event {
            Event::Found(FoundRelay {
                relay,
                address,
                connection,
            }) => {
                let known = self.roster.handle_found(relay.clone(), address);
                self.follow_all(known);
                self.hand_over(&relay, connection);
            }
            Event::Dialled { relay, pair } => {
                let known = self.roster.handle_dialled(relay.clone());
                self.follow_all(known);
                match self.followers.get(&relay) {
                    // Even if it is connected: the relay knows best that it is not, as after
                    // a restart that this end has not noticed yet.
                    Some(follower) => follower.dialled.put(pair),
                    None => pair.close(CloseReason::Limit),
                }
            }
            Event::Members { teller, members } => {
                let (new, known) = self.roster.handle_members(teller, members, now);
                self.follow_all(known);
                // Who has just joined is worth a try, whatever the last ones came to.
                for relay in new {
                    if let Some(follower) = self.followers.get(&relay) {
                        follower.addresses.send_modify(|_| {});
                    }
                }
            }
            Event::Connected(relay) => self.roster.handle_connected(&relay, now),
            Event::Lost { relay, left } => self.roster.handle_lost(&relay, left, now),
        }
    }

    /// A follower that is connected already needs no second connection.
    fn hand_over(&self, relay: &RelayId, connection: PeerConnection) {
        let Some(follower) = self.followers.get(relay) else {
            connection.close(CloseReason::Limit);
            return;
        };
        if let Err(refused) = follower.adopt.try_send(connection) {
            refused.into_inner().close(CloseReason::Done);
        }
    }

    /// Sees to it that every relay of the roster has a follower that knows where it is.
    fn follow_all(&mut self, known: Result<(), Full>) {
        if known == Err(Full) {
            warn!(limit = RELAYS, "More relays than an edge follows");
        }
        let relays: Vec<RelayId> = self.roster.relays().cloned().collect();
        for relay in relays {
            let addresses = self.roster.addresses(&relay, &self.scopes);
            if !self.followers.contains_key(&relay) {
                let handle = self.follow(relay.clone());
                self.followers.insert(relay.clone(), handle);
            }
            self.followers[&relay].addresses.send_if_modified(|old| {
                let changed = *old != addresses;
                *old = addresses;
                changed
            });
        }
    }

    fn follow(&mut self, relay: RelayId) -> Handle {
        self.jitter_seed = self.jitter_seed.wrapping_add(1);
        let (state, told) = watch::channel(RelayState::default());
        let (addresses, dial_at) = watch::channel(Vec::new());
        let (adopt, adopted) = mpsc::channel(1);
        let dialled = Newest::default();
        let wanted = watch::Sender::new(false);
        let follower = Follower {
            context: self.context.clone(),
            publish: Publish {
                state,
                changed: Arc::clone(&self.context.changed),
            },
            directory: self.directory.clone(),
            relay: relay.clone(),
            addresses: dial_at,
            adopted,
            dialled: dialled.clone(),
            wanted: wanted.subscribe(),
            jitter_seed: self.jitter_seed,
        };
        self.relays.lock().insert(
            relay,
            Followed {
                state: told,
                wanted,
            },
        );
        let stop = self.context.tasks.token().child_token();
        let ends = stop.clone();
        self.context.tasks.spawn("follow a relay", async move {
            ends.run_until_cancelled(follow::run(follower)).await;
        });
        Handle {
            adopt,
            dialled,
            addresses,
            stop,
        }
    }

    fn forget(&mut self, relay: &RelayId) {
        info!(%relay, "Relay is no member any more");
        if let Some(follower) = self.followers.remove(relay) {
            follower.stop.cancel();
            if let Some(pair) = follower.dialled.take() {
                pair.close(CloseReason::Done);
            }
        }
        self.relays.lock().remove(relay);
        self.context.changed.notify_one();
    }
}
