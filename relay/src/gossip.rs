//! Relays tell each other who is alive.
//!
//! One task drives the core's [`Membership`]: it hands in datagrams and time, and sends what
//! comes out as datagrams over a connection to each relay. Who is a member goes into the hub,
//! which tells edges. Losing packets is part of the protocol, so nothing here waits: a queue
//! that is full drops.

mod generation;
mod links;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use kvgrid_core::RelayId;
use kvgrid_core::backoff::BackoffConfig;
use kvgrid_core::membership::{
    Addresses, Member, Membership, MembershipConfig, MembershipCounters, MembershipEvent, Scope,
};
use kvgrid_runtime::{Clock, FoundRelay, Node, PeerConnection, Protocol, Seed, Tasks, seek};
use quinn::Connection;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, info, warn};

pub(crate) use generation::{GenerationError, GenerationFile};

use links::Links;

/// Events that wait; datagrams beyond it are dropped, as on any network.
const EVENTS: usize = 1024;

/// Relays that are alive, this one among them, by name.
pub(crate) type Members = Arc<Vec<(RelayId, Addresses)>>;

/// What gossip needs to know.
pub(crate) struct GossipConfig {
    /// Who this relay is, and where others reach it.
    pub(crate) relay: RelayId,
    pub(crate) addresses: Addresses,
    /// Addresses of relays to begin with, `host:port`.
    pub(crate) seeds: Vec<String>,
    /// Networks that this relay reaches, the best first.
    pub(crate) scopes: Vec<Scope>,
    /// Where the generation is kept.
    pub(crate) generation: GenerationFile,
    /// Where it tells who is alive.
    pub(crate) members: watch::Sender<Members>,
    /// Seeds all of its luck.
    pub(crate) luck: u64,
}

/// What happens to gossip.
#[derive(Debug)]
pub(crate) enum Event {
    /// A datagram came.
    Datagram(RelayId, Bytes),
    /// A connection is up, dialled by us or by the peer.
    Up {
        connection: PeerConnection,
        dialled: bool,
    },
    /// A connection has ended, named by its id.
    Down(RelayId, usize),
    /// A relay that was wanted was not reached.
    Unreached(RelayId),
    /// A seed led to a relay.
    Found(RelayId, SocketAddr),
    /// Says goodbye to all, and that this was said.
    Leave(oneshot::Sender<()>),
}

/// How others reach the gossip's task.
#[derive(Clone, Debug)]
pub(crate) struct Gossip {
    events: mpsc::Sender<Event>,
    members: watch::Receiver<Members>,
    counters: watch::Receiver<MembershipCounters>,
}

impl Gossip {
    /// Takes a connection that another relay has dialled.
    pub(crate) async fn accept(&self, connection: PeerConnection) {
        let dialled = false;
        // The task is gone only when the relay stops.
        let _ = self
            .events
            .send(Event::Up {
                connection,
                dialled,
            })
            .await;
    }

    /// Tells the others that this relay is going; comes back once that is on its way.
    pub(crate) async fn leave(&self) {
        let (said, heard) = oneshot::channel();
        // The task is gone only when the relay stops.
        if self.events.send(Event::Leave(said)).await.is_ok() {
            let _ = heard.await;
        }
    }

    /// Who is alive.
    pub(crate) fn members(&self) -> watch::Receiver<Members> {
        self.members.clone()
    }

    /// What was refused or lost so far.
    pub(crate) fn counters(&self) -> MembershipCounters {
        *self.counters.borrow()
    }
}

/// Starts to gossip.
pub(crate) fn start(config: GossipConfig, node: &Node, clock: Clock, tasks: &Tasks) -> Gossip {
    let (events, inbox) = mpsc::channel(EVENTS);
    let told_members = config.members.subscribe();
    let (counters, told_counters) = watch::channel(MembershipCounters::default());
    let own = Member {
        relay: config.relay.clone(),
        generation: config.generation.number(),
        addresses: config.addresses,
    };
    let known_of = config.scopes.first().cloned();
    let links = Links::new(
        config.relay,
        config.scopes,
        node.clone(),
        events.clone(),
        tasks.clone(),
    );
    let state = State {
        membership: Membership::new(own, MembershipConfig::default(), config.luck),
        links,
        generation: config.generation,
        known_of,
        members: config.members,
        counters,
        clock,
    };
    for (address, luck) in config.seeds.into_iter().zip(config.luck..) {
        let seed = Seed {
            address,
            protocol: Protocol::Gossip,
            backoff: BackoffConfig::default(),
            luck,
        };
        let events = events.clone();
        let up = |_: &RelayId, connection: &Connection| connection.close_reason().is_none();
        let seeking = seek(node.clone(), seed, up, move |found| {
            tell(events.clone(), found)
        });
        let stop = tasks.token().clone();
        tasks.spawn_vital("seek relays", async move {
            stop.run_until_cancelled(seeking).await;
        });
    }
    tasks.spawn_vital("gossip", state.run(inbox, tasks.clone()));
    Gossip {
        events,
        members: told_members,
        counters: told_counters,
    }
}

/// Tells the gossip's task of a relay that a seed led to.
async fn tell(events: mpsc::Sender<Event>, found: FoundRelay) {
    let up = Event::Up {
        connection: found.connection,
        dialled: true,
    };
    // The task is gone only when the relay stops.
    let _ = events.send(up).await;
    let _ = events.send(Event::Found(found.relay, found.address)).await;
}

struct State {
    membership: Membership,
    links: Links,
    generation: GenerationFile,
    /// The network in which seeds are known.
    known_of: Option<Scope>,
    members: watch::Sender<Members>,
    counters: watch::Sender<MembershipCounters>,
    clock: Clock,
}

impl State {
    async fn run(mut self, mut inbox: mpsc::Receiver<Event>, tasks: Tasks) {
        self.tell_members();
        loop {
            let due = self.membership.poll_timeout();
            // All arms are cancel safe. What has come counts before what is late.
            tokio::select! {
                biased;
                () = tasks.stopping() => break,
                Some(event) = inbox.recv() => self.handle(event),
                () = self.clock.until(due) => {
                    self.membership.handle_timeout(self.clock.now());
                }
            }
            self.drain();
        }
        self.membership.leave(self.clock.now());
        self.send_all();
    }

    fn handle(&mut self, event: Event) {
        let now = self.clock.now();
        match event {
            Event::Datagram(from, bytes) => {
                if let Err(error) = self.membership.handle_datagram(&from, &bytes, now) {
                    debug!(%from, %error, "Gossip refused");
                }
            }
            Event::Leave(said) => {
                self.membership.leave(now);
                let _ = said.send(());
            }
            Event::Up {
                connection,
                dialled,
            } => self.links.handle_up(&connection, dialled),
            Event::Down(relay, id) => self.links.handle_down(&relay, id),
            Event::Unreached(relay) => self.links.handle_unreached(&relay),
            Event::Found(relay, address) => {
                self.links.handle_found(&relay, address);
                let scope = self.known_of.as_ref().map(Scope::as_str);
                let address = address.to_string();
                let entry = scope.map(|scope| (scope, address.as_str()));
                let addresses = Addresses::new(entry).unwrap_or_default();
                self.membership.handle_peer(relay, addresses, now);
            }
        }
    }

    fn drain(&mut self) {
        self.send_all();
        let mut changed = false;
        while let Some(event) = self.membership.poll_event() {
            changed = true;
            match event {
                MembershipEvent::Up(member) => {
                    info!(relay = %member.relay, generation = member.generation, "Relay joined");
                    if self.membership.own().addresses.is_empty() {
                        // It can't dial us, and has to ask whether we are alive.
                        self.links.meet(&member);
                    }
                }
                MembershipEvent::Down(member) => {
                    info!(relay = %member.relay, "Relay left or died");
                    self.links.forget(&member.relay);
                }
                MembershipEvent::Updated(member) => {
                    debug!(relay = %member.relay, generation = member.generation, "Relay changed");
                }
                MembershipEvent::OwnGeneration(number) => {
                    info!(generation = number, "Taken for dead, and back");
                    if let Err(error) = self.generation.keep(number) {
                        warn!(%error, "Generation not kept");
                    }
                }
            }
        }
        if changed {
            self.tell_members();
        }
        self.counters.send_replace(self.membership.counters());
    }

    fn send_all(&mut self) {
        while let Some(transmit) = self.membership.poll_transmit() {
            self.links.send(&transmit.to, transmit.payload);
        }
    }

    fn tell_members(&self) {
        let own = std::iter::once(self.membership.own());
        let all = own.chain(self.membership.members());
        let all = all.map(|member| (member.relay.clone(), member.addresses.clone()));
        self.members.send_replace(Arc::new(all.collect()));
    }
}

#[cfg(test)]
mod tests;
