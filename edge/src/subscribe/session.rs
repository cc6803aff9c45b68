//! One life of the two connections to a relay.
//!
//! One task, one loop: wait for what the relay sends, feed the replicas, send what they ask
//! for, publish what changed. Everything that goes wrong ends the session with its reason; the
//! replicas live on, stale, until the next one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvgrid_core::membership::Addresses;
use kvgrid_core::replication::{Replica, ReplicaError};
use kvgrid_core::view::CardDigest;
use kvgrid_core::{PoolId, RelayId};
use kvgrid_proto::frame::CONTROL_LIMIT;
use kvgrid_proto::v1;
use kvgrid_runtime::frames::{WriteFrameError, write_frame};
use kvgrid_runtime::{CloseReason, PeerConnection};
use quinn::{ConnectionError, SendStream};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};

use super::background::Background;
use super::catalog::{self, CatalogError};
use super::directory::{Directory, Event};
use super::follow::Follower;
use super::inbound::{EVENTS, Inbound, InboundError, read_control, read_streams};
use super::memory::Memory;
use super::relay_state::Path;
use super::roster::RELAYS;
use super::{Context, Publish};

/// How often the path is measured anew when the relay is silent.
const PATH_INTERVAL: Duration = Duration::from_millis(500);

/// How long the relay may take to read what we write; past it the session is over.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a session ended. Replicas are stale from then on; nothing else is lost.
#[derive(Debug, Error)]
pub(super) enum SessionEnd {
    #[error("the edge stops")]
    Stopping,
    #[error("the relay has dialled anew")]
    Replaced,
    #[error("view connection: {0}")]
    View(ConnectionError),
    #[error("request connection: {0}")]
    Request(ConnectionError),
    #[error(transparent)]
    Inbound(#[from] InboundError),
    #[error("catalog: {0}")]
    Catalog(#[from] CatalogError),
    #[error("load: {0}")]
    Load(kvgrid_proto::ConvertError),
    #[error("members: {0}")]
    Members(kvgrid_proto::ConvertError),
    #[error("facts: {0}")]
    Facts(kvgrid_proto::ConvertError),
    #[error("control stream: {0}")]
    Write(#[from] WriteFrameError),
    #[error("the relay reads nothing")]
    WriteTimeout,
}

impl SessionEnd {
    /// Whether the relay has a newer connection of this edge, which this process didn't make.
    pub(super) fn is_by_our_double(&self) -> bool {
        match self {
            Self::View(error) | Self::Request(error) => {
                CloseReason::of(error) == Some(CloseReason::Replaced)
            }
            _ => false,
        }
    }
}

/// A session under way.
pub(super) struct Session<'a> {
    context: &'a Context,
    publish: &'a Publish,
    directory: &'a Directory,
    /// Whether the relay's pools are wanted.
    wanted: &'a mut watch::Receiver<bool>,
    memory: &'a mut Memory,
    view: PeerConnection,
    request: PeerConnection,
    relay: RelayId,
    control: SendStream,
    cards_asked: BTreeSet<CardDigest>,
    /// Members of a list that goes on.
    members: Vec<(RelayId, Addresses)>,
    background: Background,
}

impl<'a> Session<'a> {
    /// Opens the control stream and runs until something ends it.
    pub(super) async fn run(
        follower: &'a mut Follower,
        memory: &'a mut Memory,
        view: PeerConnection,
        request: PeerConnection,
    ) -> SessionEnd {
        let (control, answers) = match view.connection.open_bi().await {
            Ok(streams) => streams,
            Err(error) => return SessionEnd::View(error),
        };
        let (events, inbound) = mpsc::channel(EVENTS);
        let connection = view.connection.clone();
        let (clock, dialled) = (follower.context.clock, follower.dialled.clone());
        let session = Session {
            context: &follower.context,
            publish: &follower.publish,
            directory: &follower.directory,
            wanted: &mut follower.wanted,
            memory: &mut *memory,
            view,
            request,
            relay: follower.relay.clone(),
            control,
            cards_asked: BTreeSet::new(),
            members: Vec::new(),
            background: Background::default(),
        };
        // Whichever ends first is the reason; dropping the others stops their readers.
        let end = tokio::select! {
            error = read_control(answers, events.clone()) => error.into(),
            error = read_streams(connection, events) => error.into(),
            end = session.serve(inbound) => end,
            () = dialled.filled() => SessionEnd::Replaced,
        };
        // Here, since a lost connection is often a reader's end first.
        memory.handle_disconnect(clock.now());
        end
    }

    async fn serve(mut self, mut inbound: mpsc::Receiver<Inbound>) -> SessionEnd {
        match self.serve_until_end(&mut inbound).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn serve_until_end(
        &mut self,
        inbound: &mut mpsc::Receiver<Inbound>,
    ) -> Result<std::convert::Infallible, SessionEnd> {
        let hello = v1::EdgeHello {
            software: env!("CARGO_PKG_VERSION").into(),
        };
        self.write(v1::edge_frame::Frame::Hello(hello)).await?;
        // It may have changed between the sessions.
        self.wanted.mark_changed();
        let mut path_ticks = tokio::time::interval(PATH_INTERVAL);
        path_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut begun = self.context.open.begun();
        if self.context.open.any() {
            begun.mark_changed();
        }
        let stop = self.context.tasks.clone();
        let (view, request) = (
            self.view.connection.clone(),
            self.request.connection.clone(),
        );
        loop {
            // All arms are cancel safe. In order, so that an end is seen under any load.
            tokio::select! {
                biased;
                () = stop.stopping() => return Err(SessionEnd::Stopping),
                error = view.closed() => return Err(SessionEnd::View(error)),
                error = request.closed() => return Err(SessionEnd::Request(error)),
                Ok(()) = self.wanted.changed() => self.follow_pools().await?,
                Ok(()) = begun.changed() => {
                    let told = self.background.begin(self.context.clock.now());
                    self.tell_background(told).await?;
                }
                _ = path_ticks.tick() => {
                    self.publish_path();
                    let open = self.context.open.any();
                    let told = self.background.tick(open, self.context.clock.now());
                    self.tell_background(told).await?;
                }
                () = self.context.clock.until(self.memory.poll_timeout()) => {
                    self.memory.handle_timeout(self.context.clock.now());
                    self.send_requests().await?;
                }
                Some(event) = inbound.recv() => {
                    self.handle(event).await?;
                    self.send_requests().await?;
                }
            }
        }
    }

    /// Begins to follow the relay's pools, or gives them up.
    async fn follow_pools(&mut self) -> Result<(), SessionEnd> {
        let wanted = *self.wanted.borrow_and_update();
        let given_up = self.memory.set_wanted(wanted, self.context.clock.now());
        for pool in given_up {
            let unsubscribe = v1::Unsubscribe { pool_id: pool.0 };
            self.write(v1::edge_frame::Frame::Unsubscribe(unsubscribe))
                .await?;
        }
        self.publish_memory();
        self.send_requests().await
    }

    async fn tell_background(&mut self, on: Option<bool>) -> Result<(), SessionEnd> {
        match on {
            Some(on) => {
                let background = v1::Background { on };
                self.write(v1::edge_frame::Frame::Background(background))
                    .await
            }
            None => Ok(()),
        }
    }

    async fn handle(&mut self, event: Inbound) -> Result<(), SessionEnd> {
        match event {
            Inbound::Control(frame) => self.handle_control(frame).await?,
            Inbound::Pool(pool, subscription, frame) => {
                let now = self.context.clock.now();
                self.feed(pool, |replica| {
                    replica.handle_frame(subscription, frame, now)
                });
            }
            Inbound::PoolEnd(pool, subscription) => {
                let now = self.context.clock.now();
                self.feed(pool, |replica| {
                    replica.handle_stream_end(subscription, now);
                    Ok(())
                });
            }
            Inbound::Chunk(pool, subscription, chunk) => {
                let now = self.context.clock.now();
                self.feed(pool, |replica| {
                    replica.handle_chunk(subscription, chunk, now)
                });
            }
            Inbound::Card(digest, bytes) => {
                let state = self.context.cards.offer(digest.0, bytes.into());
                debug!(relay = self.view.peer.name(), %digest, ?state, "Card received");
            }
        }
        Ok(())
    }

    async fn handle_control(&mut self, frame: v1::relay_frame::Frame) -> Result<(), SessionEnd> {
        match frame {
            v1::relay_frame::Frame::Hello(hello) => {
                let relay = self.view.peer.name();
                info!(relay, software = hello.software, "Relay connected");
            }
            v1::relay_frame::Frame::Catalog(catalog) => self.handle_catalog(&catalog)?,
            v1::relay_frame::Frame::Load(load) => {
                let now = self.context.clock.now();
                let sample = kvgrid_proto::load_from_wire(&load, now).map_err(SessionEnd::Load)?;
                let path = self.path();
                self.publish.update(|state| {
                    state.sample = Some(sample);
                    state.path = path;
                });
            }
            v1::relay_frame::Frame::Facts(facts) => {
                let now = self.context.clock.now();
                let facts =
                    kvgrid_proto::facts_from_wire(&facts, now).map_err(SessionEnd::Facts)?;
                let facts = facts
                    .into_iter()
                    .map(|(pool, facts)| (pool, Arc::new(facts)));
                let facts = facts.collect();
                self.publish.update(|state| state.facts = facts);
            }
            v1::relay_frame::Frame::Leaving(leaving) => {
                let relay = self.view.peer.name();
                info!(relay, reason = leaving.reason, "Relay is leaving");
                self.publish.update(|state| state.draining = true);
            }
            v1::relay_frame::Frame::Members(members) => {
                let told = kvgrid_proto::members_from_wire(&members);
                self.members.extend(told.map_err(SessionEnd::Members)?);
                // Past the bound the rest is of no use, and is not kept.
                self.members.truncate(RELAYS);
                if !members.more {
                    let teller = self.relay.clone();
                    let members = std::mem::take(&mut self.members);
                    self.directory
                        .tell(Event::Members { teller, members })
                        .await;
                }
            }
        }
        Ok(())
    }

    fn handle_catalog(&mut self, wire: &v1::Catalog) -> Result<(), SessionEnd> {
        let catalog = catalog::read(wire)?;
        let now = self.context.clock.now();
        self.memory
            .handle_catalog(catalog, &self.context.replica, now);
        // What was withdrawn meanwhile may not have been sent.
        let listed: BTreeSet<_> = self.memory.cards().collect();
        self.cards_asked.retain(|digest| listed.contains(digest));
        self.publish_memory();
        Ok(())
    }

    /// A replica that refuses a message asks again by itself; the others go on meanwhile.
    fn feed(&mut self, pool: PoolId, input: impl FnOnce(&mut Replica) -> Result<(), ReplicaError>) {
        if let Err(error) = self.memory.feed(pool, input) {
            let relay = self.view.peer.name();
            warn!(relay, pool = pool.0, %error, "Replica refused a message");
        }
        self.publish_memory();
    }

    /// Sends what the replicas and the models ask for.
    async fn send_requests(&mut self) -> Result<(), SessionEnd> {
        let requests = self.memory.poll_requests(self.context.clock.now());
        for (pool, request) in requests {
            self.write(kvgrid_proto::request_to_wire(pool, request))
                .await?;
        }
        let cards: Vec<_> = self.memory.cards().collect();
        for digest in cards {
            let unknown = self.context.cards.state(&digest.0).is_none();
            if unknown && self.cards_asked.insert(digest) {
                let digest = Bytes::copy_from_slice(&digest.0);
                let request = v1::CardRequest { digest };
                self.write(v1::edge_frame::Frame::CardRequest(request))
                    .await?;
            }
        }
        Ok(())
    }

    async fn write(&mut self, frame: v1::edge_frame::Frame) -> Result<(), SessionEnd> {
        let frame = v1::EdgeFrame { frame: Some(frame) };
        let written = write_frame(&mut self.control, &frame, CONTROL_LIMIT);
        match tokio::time::timeout(WRITE_TIMEOUT, written).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(SessionEnd::WriteTimeout),
        }
    }

    fn publish_memory(&self) {
        let pools = self.memory.pools();
        self.publish.update(|state| {
            state.told = true;
            state.models = self.memory.models().to_vec();
            state.pools = pools;
        });
    }

    fn publish_path(&self) {
        let path = self.path();
        self.publish.update(|state| state.path = path);
    }

    /// The path as the request connection has it: that is the one requests take. The least
    /// round trip, because the smoothed one counts this machine's own delays in.
    fn path(&self) -> Path {
        let stats = self.request.connection.stats().path;
        Path {
            rtt: stats.min_rtt.min(stats.rtt),
            window: Some(stats.cwnd),
        }
    }
}
