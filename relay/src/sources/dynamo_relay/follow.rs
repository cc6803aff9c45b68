//! Follows the filter of one pool, through all its lives, until the pool is gone.
//!
//! A subscription is for one life of the filter, exactly. It begins with a snapshot; whatever
//! ends it, the next one does again, so nothing that was missed stays missing.

use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::ckf::{Kind, Progress, Stream, StreamError, Update};
use kvgrid_core::event::{Refusal, Refusals};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Closed;
use super::catalog::Listed;
use super::peer::{End, Peer, check, next};
use super::v1::{FilterUpdate, FilterUpdateKind};
use crate::retry::Retry;
use crate::sources::{FeedId, FeedState, FilterChange, SourceEvent, TableInfo};

/// A publisher says every ten seconds that it is alive; three of them missing are an end.
const SILENCE: Duration = Duration::from_secs(35);

/// A pool, and where it is told what it holds.
pub(super) struct Follow {
    pub(super) feed: FeedId,
    pub(super) peer: Peer,
    /// The pool as it was listed last.
    pub(super) listed: watch::Receiver<Listed>,
    pub(super) retry: Retry,
    pub(super) events: mpsc::Sender<SourceEvent>,
}

impl Follow {
    /// Follows until `stop`, and then tells that the pool is gone.
    pub(super) async fn run(self, stop: CancellationToken) {
        let (feed, events) = (self.feed, self.events.clone());
        let mut follower = Follower {
            follow: self,
            state: FeedState::Connecting,
        };
        // What is cut off is a message that was not told: it is gone with the pool.
        if stop.run_until_cancelled(follower.run()).await.is_none() {
            // It fails only if nobody listens any more.
            let _ = events.send(SourceEvent::FeedEnded { feed }).await;
        }
    }
}

struct Follower {
    follow: Follow,
    /// What was told last.
    state: FeedState,
}

impl Follower {
    /// Ends only when nobody listens any more.
    async fn run(&mut self) -> Closed {
        let Err(closed) = self.run_until_closed().await;
        closed
    }

    async fn run_until_closed(&mut self) -> Result<std::convert::Infallible, Closed> {
        let feed = self.follow.feed;
        self.tell(SourceEvent::Feed {
            feed,
            state: self.state,
        })
        .await?;
        loop {
            let listed = self.follow.listed.borrow_and_update().clone();
            let of = Arc::new(TableInfo {
                place: listed.place.clone(),
                shape: listed.shape,
                format: listed.format,
            });
            self.tell(SourceEvent::Table { feed, of }).await?;
            let end = self.subscription(&listed).await?;
            self.end(&listed, &end).await?;
            let delay = self.follow.retry.next_delay();
            // Another life needs no wait. Both arms may be dropped while they wait.
            tokio::select! {
                changed = self.follow.listed.changed() => if changed.is_err() {
                    // The pool was given up, which the token is about to say.
                    std::future::pending::<()>().await;
                },
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    async fn end(&mut self, listed: &Listed, end: &End) -> Result<(), Closed> {
        let (place, feed, reason) = (&listed.place, self.follow.feed, end.reason);
        info!(place, %end, "Filter's stream ended");
        if let Some(refusal) = end.refusal {
            warn!(place, %end, "Refused what Dynamo's relay tells of a filter");
            let mut refused = Refusals::default();
            refused.count(refusal);
            self.tell(SourceEvent::Refused { feed, refused }).await?;
        }
        if reason == GAP {
            self.tell(SourceEvent::Gap { feed }).await?;
        }
        self.tell(SourceEvent::Ended { feed, reason }).await?;
        if self.state == FeedState::Whole {
            self.set_state(FeedState::Partial).await?;
        }
        Ok(())
    }

    /// Follows one subscription to its end, and says why it has ended.
    async fn subscription(&mut self, listed: &Listed) -> Result<End, Closed> {
        let opened = self.follow.peer.pool(listed.producer.clone()).await;
        let mut updates = match opened {
            Ok(updates) => updates,
            Err(end) => return Ok(end),
        };
        let mut stream = Stream::new(listed.format, listed.centre);
        loop {
            // Both arms may be dropped while they wait.
            let update = tokio::select! {
                update = next(&mut updates, SILENCE) => update,
                changed = self.follow.listed.changed() => match changed {
                    Ok(()) => Err(End::other("relisted", &"another life is listed")),
                    Err(_) => std::future::pending().await,
                },
            };
            let progress = update.and_then(|update| take(&mut stream, listed, &update));
            let (change, sequence) = match progress {
                Err(end) => return Ok(end),
                Ok(Progress::Nothing) => continue,
                Ok(Progress::Snapshot { words, sequence }) => {
                    self.follow.retry.note_up();
                    info!(place = listed.place, sequence, "Filter's snapshot taken");
                    (FilterChange::Snapshot(words), sequence)
                }
                Ok(Progress::Delta { images, sequence }) => (FilterChange::Delta(images), sequence),
            };
            let event = SourceEvent::Filter {
                feed: self.follow.feed,
                publisher: publisher(listed),
                sequence,
                change,
            };
            self.tell(event).await?;
            self.set_state(FeedState::Whole).await?;
        }
    }

    async fn set_state(&mut self, state: FeedState) -> Result<(), Closed> {
        if self.state != state {
            self.state = state;
            let feed = self.follow.feed;
            self.tell(SourceEvent::Feed { feed, state }).await?;
        }
        Ok(())
    }

    async fn tell(&self, event: SourceEvent) -> Result<(), Closed> {
        Ok(self.follow.events.send(event).await?)
    }
}

/// Why a stream has ended in which something is missing.
const GAP: &str = "gap";

/// Checks a message against what was subscribed to, and takes it.
fn take(stream: &mut Stream, listed: &Listed, update: &FilterUpdate) -> Result<Progress, End> {
    let relay = check(
        update.contract_marker,
        update.protocol_version,
        update.relay,
    )?;
    if relay != listed.relay || update.producer.as_ref() != Some(&listed.producer) {
        let detail = "it is of another life than was subscribed to";
        return Err(End::refused(Refusal::Producer, &detail));
    }
    let kind = match FilterUpdateKind::try_from(update.kind) {
        Ok(FilterUpdateKind::SnapshotChunk) => Kind::Chunk,
        Ok(FilterUpdateKind::Delta) => Kind::Delta,
        Ok(FilterUpdateKind::Heartbeat) => Kind::Heartbeat,
        Ok(FilterUpdateKind::Unspecified) | Err(_) => {
            let detail = format!("kind {} is not known", update.kind);
            return Err(End::refused(Refusal::UnknownType, &detail));
        }
    };
    let taken = stream.handle(Update {
        kind,
        base: update.base_sequence,
        sequence: update.sequence,
        payload: &update.payload,
    });
    taken.map_err(|error| match error {
        StreamError::Gap { .. } => End::other(GAP, &error),
        StreamError::Frame(_) | StreamError::Envelope | StreamError::Chunk { .. } => {
            End::refused(Refusal::Malformed, &error)
        }
    })
}

/// One number for the life of a filter. Its sequences begin anew with each layout.
fn publisher(listed: &Listed) -> u64 {
    let producer = &listed.producer;
    producer
        .producer_incarnation
        .wrapping_add(producer.layout_generation)
}
