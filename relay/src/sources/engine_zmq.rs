//! Raw engine events over ZeroMQ, as vLLM, SGLang and TensorRT-LLM publish them.
//!
//! A feed follows one publisher (one rank): a SUB socket for what happens and, if the engine
//! has one, its replay port for what happened. It begins with a replay from the first message,
//! repairs gaps by replay, and asks now and then whether it is behind without knowing.
//!
//! A life of a publisher ends when it restarts, when it stays disconnected for
//! [`FeedConfig::gone_after`], or when a gap can't be repaired: removals that nobody saw are
//! worse than a cold view. All its blocks go then, and what comes next is another publisher.

use std::time::Duration;

use kvgrid_core::event::WorkerKey;
use kvgrid_core::event::engine::{Decoder, DecoderConfig, Refusal, Refusals};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::zmq::{Heard, Numbered, ReplayPort, SocketError, Subscription};
use super::{FeedId, FeedState, SourceEvent};

mod memory;
mod position;
#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;

use memory::{Memory, Recall};
use position::{Live, Position, Replayed};

/// When a subscription is surely in place; what was published before it may have been missed.
const FIRST_CHECK: Duration = Duration::from_millis(500);

/// How often a quiet feed asks whether it is behind.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Checks without an answer after which the connection is taken for dead.
const FAILED_CHECKS: u32 = 3;

/// Replays that bring nothing new before a gap is given up.
const REPAIR_ATTEMPTS: u32 = 3;

/// Whether a message comes as it happens, or from the replay port.
const LIVE: bool = true;
const TOLD_AGAIN: bool = false;

/// One publisher to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeedConfig {
    /// Address of its PUB socket, `tcp://host:port`.
    pub(crate) events: String,
    /// Address of its replay socket, if it has one.
    pub(crate) replay: Option<String>,
    /// The prefix of topics to subscribe to.
    pub(crate) topic: String,
    /// The rank of messages that name none.
    pub(crate) rank: u32,
    /// How long it may be disconnected before its blocks go.
    pub(crate) gone_after: Duration,
    /// What its blocks look like.
    pub(crate) decoder: DecoderConfig,
}

/// Follows one publisher until the pool task is gone. May be dropped at any time.
pub(crate) async fn run(id: FeedId, config: FeedConfig, events: mpsc::Sender<SourceEvent>) {
    let memory = config.replay.clone().map(ReplayPort);
    // The only error is that nobody listens any more.
    let Err(Closed) = Feed::new(id, config, memory, events).run().await;
}

/// The pool task has ended.
struct Closed;

impl<T> From<mpsc::error::SendError<T>> for Closed {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

/// Why a replay ended early.
enum CatchUp {
    /// Everything the publisher has was seen.
    Done,
    /// The publisher's replay has a hole.
    Hole,
    /// The publisher's replay failed.
    Failed(SocketError),
    /// It is another life than ours.
    OtherLife,
}

struct Feed<M> {
    id: FeedId,
    config: FeedConfig,
    /// Where the publisher's past can be asked for, if it keeps it.
    memory: Option<M>,
    decoder: Decoder,
    position: Position,
    /// The life that has blocks.
    life: Option<u64>,
    /// Whether the life began without a replay, which may still tell its beginning.
    late: bool,
    state: FeedState,
    /// Whether the publisher was ever reached.
    met: bool,
    events: mpsc::Sender<SourceEvent>,
}

impl<M: Memory> Feed<M> {
    fn new(
        id: FeedId,
        config: FeedConfig,
        memory: Option<M>,
        events: mpsc::Sender<SourceEvent>,
    ) -> Self {
        Self {
            id,
            decoder: Decoder::new(config.decoder),
            config,
            memory,
            position: Position::default(),
            life: None,
            late: false,
            state: FeedState::Connecting,
            met: false,
            events,
        }
    }

    async fn run(mut self) -> Result<std::convert::Infallible, Closed> {
        loop {
            let subscription = self.connect().await?;
            self.follow(subscription).await?;
            info!(endpoint = self.config.events, "Publisher disconnected");
        }
    }

    /// Connects, however long it takes; on the way the publisher may be given up.
    async fn connect(&mut self) -> Result<Subscription, Closed> {
        let (endpoint, topic) = (self.config.events.clone(), self.config.topic.clone());
        let mut open = std::pin::pin!(Subscription::open(&endpoint, &topic));
        tokio::select! {
            subscription = &mut open => return Ok(subscription),
            () = sleep(self.config.gone_after) => {}
        }
        // Of one that was never there nobody knows that it holds nothing: the address may be wrong.
        if self.met {
            self.end_life(FeedState::Gone).await?;
        } else {
            warn!(
                endpoint = self.config.events,
                "Publisher was never reached: what it has cached is not known"
            );
        }
        Ok(open.await)
    }

    /// Follows a connection to its end.
    async fn follow(&mut self, mut subscription: Subscription) -> Result<(), Closed> {
        info!(endpoint = self.config.events, "Publisher connected");
        self.met = true;
        self.connected().await?;
        let mut check_at = Instant::now() + FIRST_CHECK;
        let mut failed_checks = 0;
        loop {
            // Both arms may be dropped while they wait.
            tokio::select! {
                heard = subscription.hear() => match heard {
                    Heard::Message(message) => {
                        self.take_live(message).await?;
                        failed_checks = 0;
                    }
                    Heard::Noise => debug!(endpoint = self.config.events, "Message not understood"),
                    Heard::Disconnected => return Ok(()),
                },
                () = sleep_until(check_at) => {
                    check_at = Instant::now() + CHECK_INTERVAL;
                    match self.catch_up().await? {
                        true => failed_checks = 0,
                        false => failed_checks += 1,
                    }
                    if failed_checks >= FAILED_CHECKS {
                        warn!(endpoint = self.config.events, "Publisher answers no more");
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn connected(&mut self) -> Result<(), Closed> {
        self.position.connected();
        if self.life.is_none() {
            self.set_state(FeedState::Connecting).await?;
        }
        self.begin_or_catch_up().await?;
        Ok(())
    }

    async fn take_live(&mut self, message: Numbered) -> Result<(), Closed> {
        match self.position.live(message.sequence) {
            Live::Apply => return self.apply(message, LIVE).await,
            // Whoever can't be asked is believed: it was away for less than `gone_after`.
            Live::Unproven if self.memory.is_none() => return self.apply(message, LIVE).await,
            Live::Known => return Ok(()),
            Live::OtherLife => {
                info!(endpoint = self.config.events, "Publisher restarted");
                self.end_life(FeedState::Connecting).await?;
            }
            Live::First | Live::Unproven | Live::Gap => {}
        }
        self.catch_up().await?;
        self.take_after_repair(message).await
    }

    /// Asks for what has not come; of a life that goes on it is told if there was something.
    async fn catch_up(&mut self) -> Result<bool, Closed> {
        let (life, next) = (self.life, self.position.next());
        let answered = self.begin_or_catch_up().await?;
        if self.life.is_some() && self.life == life && next < self.position.next() {
            let feed = self.id;
            self.events.send(SourceEvent::Repaired { feed }).await?;
        }
        Ok(answered)
    }

    /// Applies a live message that did not fit, now that a replay has done what it could.
    async fn take_after_repair(&mut self, message: Numbered) -> Result<(), Closed> {
        let mut repaired = self.position.has_all_before(message.sequence);
        if !repaired && self.life.is_some() {
            warn!(
                endpoint = self.config.events,
                next = self.position.next(),
                sequence = message.sequence,
                "Gap not repaired: blocks dropped"
            );
            self.events.send(SourceEvent::Gap { feed: self.id }).await?;
            self.end_life(FeedState::Connecting).await?;
            // What the publisher still has is better than nothing.
            self.begin_or_catch_up().await?;
            repaired = self.position.has_all_before(message.sequence);
        }
        match self.position.next() {
            Some(next) if next > message.sequence => Ok(()),
            _ if repaired => self.apply(message, LIVE).await,
            _ => {
                self.end_life(FeedState::Connecting).await?;
                self.late = true;
                self.apply(message, LIVE).await
            }
        }
    }

    /// Replays what is missing, from the beginning of a life if need be. `false`: the
    /// publisher did not answer. Without a replay port there is nothing to do.
    async fn begin_or_catch_up(&mut self) -> Result<bool, Closed> {
        if self.memory.is_none() {
            return Ok(true);
        }
        let mut attempts = REPAIR_ATTEMPTS;
        while attempts > 0 {
            let before = self.position.next();
            match self.replay().await? {
                CatchUp::Done => {
                    self.set_state_of_new_life().await?;
                    return Ok(true);
                }
                CatchUp::Hole if self.position.next() > before => {}
                CatchUp::Hole => attempts -= 1,
                CatchUp::OtherLife => {
                    info!(endpoint = self.config.events, "Publisher restarted");
                    self.end_life(FeedState::Connecting).await?;
                    attempts -= 1;
                }
                CatchUp::Failed(error) => {
                    warn!(endpoint = self.config.replay, %error, "Replay failed");
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn replay(&mut self) -> Result<CatchUp, Closed> {
        let from = if self.late {
            0
        } else {
            self.position.replay_from()
        };
        let Some(memory) = &self.memory else {
            return Ok(CatchUp::Done);
        };
        let mut replay = match memory.recall(from).await {
            Ok(replay) => replay,
            Err(error) => return Ok(CatchUp::Failed(error)),
        };
        let mut first = true;
        loop {
            let message = match replay.next().await {
                Ok(Some(message)) => message,
                Ok(None) if self.position.replay_ended(first) => return Ok(CatchUp::Done),
                Ok(None) => return Ok(CatchUp::OtherLife),
                Err(error) => return Ok(CatchUp::Failed(error)),
            };
            if std::mem::take(&mut self.late) {
                self.end_life(FeedState::Connecting).await?;
            }
            match self
                .position
                .replayed(first, message.sequence, &message.payload)
            {
                Replayed::Apply => self.apply(message, TOLD_AGAIN).await?,
                Replayed::Known => {}
                Replayed::Gap => return Ok(CatchUp::Hole),
                Replayed::OtherLife => return Ok(CatchUp::OtherLife),
            }
            first = false;
        }
    }

    /// An empty replay is the whole of a life that has just begun.
    async fn set_state_of_new_life(&mut self) -> Result<(), Closed> {
        match self.life {
            None if self.position.next() == Some(0) => self.set_state(FeedState::Whole).await,
            _ => Ok(()),
        }
    }

    async fn apply(&mut self, message: Numbered, live: bool) -> Result<(), Closed> {
        let decoded = self.decoder.decode(self.config.rank, &message.payload);
        let (rank, events, refused) = match decoded {
            Ok(batch) => {
                if batch.unsound {
                    self.lose_track("Event not understood: blocks dropped")
                        .await?;
                }
                (batch.rank, batch.events, batch.refused)
            }
            Err(error) => {
                debug!(endpoint = self.config.events, %error, "Message not understood");
                self.lose_track("Message not understood: blocks dropped")
                    .await?;
                let mut refused = Refusals::default();
                refused.count(Refusal::Malformed);
                (None, Vec::new(), refused)
            }
        };
        let publisher = self.begin_life(message.sequence).await?;
        self.position.applied(message.sequence, &message.payload);
        let rank = rank.unwrap_or(self.config.rank);
        let batch = SourceEvent::Batch {
            feed: self.id,
            worker: WorkerKey { publisher, rank },
            sequence: message.sequence,
            live,
            events,
            refused,
        };
        Ok(self.events.send(batch).await?)
    }

    /// The publisher of this life, a new one if there is none; its first message decides
    /// whether the life is seen whole.
    async fn begin_life(&mut self, sequence: u64) -> Result<u64, Closed> {
        if let Some(publisher) = self.life {
            return Ok(publisher);
        }
        let publisher = rand::random();
        self.life = Some(publisher);
        let whole = sequence == 0 && self.state != FeedState::Partial;
        let state = if whole {
            FeedState::Whole
        } else {
            FeedState::Partial
        };
        self.set_state(state).await?;
        Ok(publisher)
    }

    /// Something may have been removed without us: what the life had can't be believed.
    async fn lose_track(&mut self, reason: &'static str) -> Result<(), Closed> {
        warn!(
            endpoint = self.config.events,
            reason, "Lost track of publisher"
        );
        if let Some(publisher) = self.life.take() {
            let feed = self.id;
            let gone = SourceEvent::PublisherGone { feed, publisher };
            self.events.send(gone).await?;
        }
        self.set_state(FeedState::Partial).await
    }

    /// Drops all that the life had; the next message begins another.
    async fn end_life(&mut self, state: FeedState) -> Result<(), Closed> {
        self.position.restart();
        self.late = false;
        self.decoder = Decoder::new(self.config.decoder);
        if let Some(publisher) = self.life.take() {
            let feed = self.id;
            let gone = SourceEvent::PublisherGone { feed, publisher };
            self.events.send(gone).await?;
        }
        self.set_state(state).await
    }

    async fn set_state(&mut self, state: FeedState) -> Result<(), Closed> {
        if self.state != state {
            self.state = state;
            let feed = self.id;
            self.events.send(SourceEvent::Feed { feed, state }).await?;
        }
        Ok(())
    }
}
