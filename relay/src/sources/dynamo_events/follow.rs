//! Follows one publisher of KV events, from when discovery shows it to when it no longer does.
//!
//! What is heard is applied whatever is known beside it; the feed's state says how much that
//! is worth. A life is whole if its first message was heard, or, until that comes, if the
//! publisher came up after the relay. A hole drops all blocks, since removals may be in it.

use std::time::Duration;

use kvgrid_core::event::dynamo::{KV_EVENTS, KvBatch, RankEvent, kv_events};
use kvgrid_core::event::{KvEvent, Refusal, Refusals, WorkerKey};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::plane::{Ear, Message, Plane, Sound, Voice};
use super::position::{Position, Step};
use crate::discovery::WorkerRank;
use crate::sources::{FeedId, FeedState, SourceEvent};

#[cfg(test)]
pub(crate) mod scripted;

/// When a subscription is surely in place; what was published before it may have been missed.
const SETTLED: Duration = Duration::from_millis(500);

/// Most ranks that one publisher may speak for, where discovery doesn't say for which one.
const RANKS: u32 = 4096;

/// The pool task has ended.
pub(super) struct Closed;

impl<T> From<mpsc::error::SendError<T>> for Closed {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

/// Whom to follow.
pub(super) struct Follow {
    pub(super) feed: FeedId,
    pub(super) voice: Voice,
    /// How to hear it.
    pub(super) plane: Plane,
    /// For whom it speaks, where discovery says so; often a moment after that it speaks.
    pub(super) worker: watch::Receiver<Option<WorkerRank>>,
    /// Whether it may have published before the relay could hear it.
    pub(super) late: bool,
}

impl Follow {
    /// Follows until `stop`, and then tells that it is gone with all it had.
    pub(super) async fn run(self, stop: CancellationToken, events: mpsc::Sender<SourceEvent>) {
        let (feed, publisher) = (self.feed, self.voice.publisher);
        let mut follower = Follower::new(self, events.clone());
        // What is cut off is a message that was not told: it is gone with the publisher.
        if stop.run_until_cancelled(follower.run()).await.is_some() {
            return;
        }
        info!(publisher, "Publisher is gone");
        // These fail only if nobody listens any more.
        let _ = events
            .send(SourceEvent::PublisherGone { feed, publisher })
            .await;
        let _ = events.send(SourceEvent::FeedEnded { feed }).await;
    }
}

struct Follower {
    follow: Follow,
    position: Position,
    /// How much of its life is known, while it can be heard.
    known: FeedState,
    /// What was told last.
    state: FeedState,
    events: mpsc::Sender<SourceEvent>,
}

impl Follower {
    fn new(follow: Follow, events: mpsc::Sender<SourceEvent>) -> Self {
        Self {
            known: match follow.late {
                true => FeedState::Partial,
                false => FeedState::Whole,
            },
            follow,
            position: Position::default(),
            state: FeedState::Connecting,
            events,
        }
    }

    /// Ends only when nobody listens any more.
    async fn run(&mut self) -> Closed {
        loop {
            let ear = self.follow.plane.listen(&self.follow.voice).await;
            debug!(voice = ?self.follow.voice, "Publisher connected");
            if self.hear(ear).await.is_err() {
                return Closed;
            }
            // Discovery says whether it is dead; until then nobody knows what is missed.
            if self.set_state(FeedState::Connecting).await.is_err() {
                return Closed;
            }
        }
    }

    /// Follows a connection to its end.
    async fn hear(&mut self, mut ear: Ear) -> Result<(), Closed> {
        let settled = Instant::now() + SETTLED;
        let mut unsettled = true;
        loop {
            // Both arms may be dropped while they wait.
            tokio::select! {
                heard = ear.hear() => match heard {
                    Sound::Message(message) => {
                        self.take(&message).await?;
                        unsettled = false;
                    }
                    Sound::Noise => debug!(publisher = self.follow.voice.publisher, "Message not understood"),
                    Sound::Disconnected => return Ok(()),
                },
                () = sleep_until(settled), if unsettled => {
                    unsettled = false;
                    self.set_state(self.known).await?;
                }
            }
        }
    }

    async fn take(&mut self, message: &Message) -> Result<(), Closed> {
        let mut refused = Refusals::default();
        let envelope = message.envelope();
        if let Some(envelope) = envelope
            && (envelope.publisher != self.follow.voice.publisher || envelope.topic != KV_EVENTS)
        {
            // Somebody else has got the port of a publisher that is dead.
            refused.count(Refusal::Worker);
            let feed = self.follow.feed;
            let event = SourceEvent::Refused { feed, refused };
            return Ok(self.events.send(event).await?);
        }
        let batch = envelope.and_then(|envelope| kv_events(envelope.payload).ok());
        let batch = batch.unwrap_or_else(|| {
            self.position.forget_ranks();
            refused.count(Refusal::Malformed);
            KvBatch {
                refused,
                unsound: true,
                ..KvBatch::default()
            }
        });
        self.apply(message.sequence, batch).await
    }

    async fn apply(&mut self, sequence: u64, mut batch: KvBatch) -> Result<(), Closed> {
        self.refuse_others(&mut batch);
        let new = self.position.is_new();
        match self.position.advance(sequence, &mut batch.events) {
            Step::First => self.known = FeedState::Whole,
            Step::Late => self.known = FeedState::Partial,
            Step::Next => {}
            Step::Gap => self.lose("messages are missing").await?,
        }
        if batch.unsound {
            self.lose("a message was not understood").await?;
        }
        if self.clears_all(&batch) {
            self.known = FeedState::Whole;
        }
        if new {
            debug!(publisher = self.follow.voice.publisher, sequence, known = ?self.known, "First message heard");
        }
        self.set_state(self.known).await?;
        // One worker key a run of events: nearly always one run.
        let mut events = batch.events.into_iter().peekable();
        let mut refused = batch.refused;
        loop {
            let rank = events.peek().map_or(self.rank(), |event| event.rank);
            let mut run = Vec::new();
            while let Some(event) = events.next_if(|event| event.rank == rank) {
                run.extend(event.event);
            }
            let refused = std::mem::take(&mut refused);
            if events.peek().is_none() {
                return self.tell(sequence, (run, refused), rank).await;
            }
            // It is not applied before its last run is.
            self.tell(sequence.saturating_sub(1), (run, refused), rank)
                .await?;
        }
    }

    fn worker(&self) -> Option<WorkerRank> {
        *self.follow.worker.borrow()
    }

    fn rank(&self) -> u32 {
        self.worker().map_or(0, |worker| worker.rank)
    }

    /// Sets aside the events of ranks that the publisher doesn't speak for.
    fn refuse_others(&mut self, batch: &mut KvBatch) {
        let first = batch.events.first().map(|event| event.worker);
        let told = self.worker();
        let worker = told.map(|worker| worker.worker).or(first);
        let rank = told.map(|worker| worker.rank);
        let KvBatch {
            events, refused, ..
        } = batch;
        events.retain(|event| {
            let ours = Some(event.worker) == worker
                && rank.map_or(event.rank < RANKS, |rank| event.rank == rank);
            if !ours {
                refused.count(Refusal::Worker);
            }
            ours
        });
    }

    /// Whether the rank, the only one there is, holds nothing but what this batch stores.
    fn clears_all(&self, batch: &KvBatch) -> bool {
        let cleared = |event: &RankEvent| event.event == Some(KvEvent::Cleared);
        self.worker().is_some() && !batch.unsound && batch.events.iter().any(cleared)
    }

    /// Something may have been removed unheard: what the publisher had can't be believed.
    async fn lose(&mut self, reason: &'static str) -> Result<(), Closed> {
        let (feed, publisher) = (self.follow.feed, self.follow.voice.publisher);
        warn!(publisher, reason, "Lost track of publisher: blocks dropped");
        self.known = FeedState::Partial;
        self.events.send(SourceEvent::Gap { feed }).await?;
        let gone = SourceEvent::PublisherGone { feed, publisher };
        Ok(self.events.send(gone).await?)
    }

    async fn tell(
        &self,
        sequence: u64,
        (events, refused): (Vec<KvEvent>, Refusals),
        rank: u32,
    ) -> Result<(), Closed> {
        let publisher = self.follow.voice.publisher;
        let batch = SourceEvent::Batch {
            feed: self.follow.feed,
            worker: WorkerKey { publisher, rank },
            sequence,
            // The plane tells nothing again.
            live: true,
            events,
            refused,
        };
        Ok(self.events.send(batch).await?)
    }

    async fn set_state(&mut self, state: FeedState) -> Result<(), Closed> {
        if self.state != state {
            self.state = state;
            let feed = self.follow.feed;
            self.events.send(SourceEvent::Feed { feed, state }).await?;
        }
        Ok(())
    }
}
