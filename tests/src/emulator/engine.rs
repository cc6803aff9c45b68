//! The driver of an emulated engine: one task around the site model.
//!
//! Requests and cancellations come in by a bounded channel (a full one makes clients wait).
//! Tokens go out by one channel per request, with room for the whole answer, so a slow
//! client never holds the engine up. Events go to the publisher in the order of the model's
//! outputs, one message for each time the task wakes up.

use std::collections::BTreeMap;

use kvgrid_runtime::Clock;
use kvgrid_sim::{Output, Refusal, Request, RequestId, Site, SiteConfig, SiteLoad, Usage};
use tokio::sync::{mpsc, oneshot, watch};

use super::events::EngineEvent;
use super::publisher::Publisher;

/// Requests that may wait for the engine's task itself; it takes microseconds for each.
const COMMANDS: usize = 1_024;

/// A piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The next token.
    Token(u32),
    /// There are no more.
    Done(Usage),
}

enum Command {
    Request {
        request: Request,
        accepted: oneshot::Sender<Result<Answer, Refusal>>,
    },
    Cancel(RequestId),
}

/// What a client gets of an accepted request; dropping it before the end cancels.
#[derive(Debug)]
pub(super) struct Answer {
    id: RequestId,
    pieces: mpsc::Receiver<Piece>,
    commands: mpsc::Sender<Command>,
    done: bool,
}

impl Answer {
    /// The next piece; `None` when the engine is gone.
    pub(super) fn poll_next(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Piece>> {
        let piece = std::task::ready!(self.pieces.poll_recv(context));
        self.done |= matches!(piece, Some(Piece::Done(_)));
        std::task::Poll::Ready(piece)
    }

    /// Waits for the next piece.
    pub(super) async fn next(&mut self) -> Option<Piece> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.done {
            // If the channel is full the engine finds out at the next token.
            let _ = self.commands.try_send(Command::Cancel(self.id));
        }
    }
}

/// The way to an emulated engine.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    commands: mpsc::Sender<Command>,
    load: watch::Receiver<EngineStats>,
}

/// How busy an engine is, and what it has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EngineStats {
    pub(super) load: SiteLoad,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) answers: u64,
    pub(super) published: u64,
}

impl Engine {
    /// An engine and the task that drives it; the task ends with the last `Engine`.
    pub(super) fn new(
        config: SiteConfig,
        publisher: Option<Publisher>,
    ) -> (Self, impl Future<Output = ()>) {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let site = Site::new(config);
        let (stats, load) = watch::channel(EngineStats {
            load: site.load(),
            ..EngineStats::default()
        });
        let driver = Driver {
            site,
            clock: Clock::start(),
            commands: commands.downgrade(),
            answers: BTreeMap::new(),
            publisher,
            stats,
        };
        (Self { commands, load }, driver.run(receiver))
    }

    /// Hands a request in. `None` when the engine is gone.
    pub(super) async fn request(&self, request: Request) -> Option<Result<Answer, Refusal>> {
        let (accepted, outcome) = oneshot::channel();
        let command = Command::Request { request, accepted };
        self.commands.send(command).await.ok()?;
        outcome.await.ok()
    }

    /// How busy the engine is.
    pub(super) fn stats(&self) -> EngineStats {
        *self.load.borrow()
    }
}

struct Driver {
    site: Site,
    clock: Clock,
    commands: mpsc::WeakSender<Command>,
    answers: BTreeMap<RequestId, mpsc::Sender<Piece>>,
    publisher: Option<Publisher>,
    stats: watch::Sender<EngineStats>,
}

impl Driver {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            let timeout = self.site.poll_timeout();
            // Commands first: under load each wake-up takes all that wait. Both arms only
            // wait, so dropping either loses nothing.
            tokio::select! {
                biased;
                command = commands.recv() => {
                    let Some(command) = command else { break };
                    self.handle_command(command);
                    while let Ok(command) = commands.try_recv() {
                        self.handle_command(command);
                    }
                }
                () = self.clock.until(timeout) => {}
            }
            self.site.handle_timeout(self.clock.now());
            self.drain().await;
        }
    }

    fn handle_command(&mut self, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Request { request, accepted } => self.handle_request(now, request, accepted),
            Command::Cancel(id) => {
                self.answers.remove(&id);
                self.site.cancel(now, id);
            }
        }
    }

    fn handle_request(
        &mut self,
        now: kvgrid_core::Instant,
        request: Request,
        accepted: oneshot::Sender<Result<Answer, Refusal>>,
    ) {
        let Some(commands) = self.commands.upgrade() else {
            return;
        };
        let pieces = usize::try_from(request.max_tokens).unwrap_or(usize::MAX);
        let outcome = self.site.handle_request(now, request).map(|id| {
            // The model refuses an answer that does not fit into the cache, so this is
            // bounded; room is only allocated for pieces that wait.
            let (sender, receiver) = mpsc::channel(pieces.saturating_add(1));
            self.answers.insert(id, sender);
            Answer {
                id,
                pieces: receiver,
                commands,
                done: false,
            }
        });
        // A client that has gone drops the answer, which cancels it.
        let _ = accepted.send(outcome);
    }

    /// Hands on what the model did. Whoever has an answer can rely on its blocks being
    /// published, and on the numbers including it.
    async fn drain(&mut self) {
        let mut events = Vec::new();
        let mut pieces = Vec::new();
        let mut stats = *self.stats.borrow();
        while let Some(output) = self.site.poll_output() {
            match output {
                Output::Stored {
                    parent,
                    blocks,
                    tokens,
                    namespace,
                } => events.push(EngineEvent::Stored {
                    parent,
                    blocks,
                    tokens,
                    namespace,
                }),
                Output::Removed { blocks } => events.push(EngineEvent::Removed { blocks }),
                Output::Token { request, token, .. } => pieces.push((request, Piece::Token(token))),
                Output::Done { request, usage } => {
                    stats.count(usage);
                    pieces.push((request, Piece::Done(usage)));
                }
            }
        }
        if let Some(publisher) = self.publisher.as_mut().filter(|_| !events.is_empty()) {
            publisher.publish(&events).await;
            stats.published += 1;
        }
        stats.load = self.site.load();
        self.stats.send_replace(stats);
        for (request, piece) in pieces {
            self.send(request, piece);
        }
    }

    fn send(&mut self, request: RequestId, piece: Piece) {
        let Some(sender) = self.answers.get(&request) else {
            return;
        };
        let gone = sender.try_send(piece).is_err();
        if gone {
            self.site.cancel(self.clock.now(), request);
        }
        if gone || matches!(piece, Piece::Done(_)) {
            self.answers.remove(&request);
        }
    }
}

impl EngineStats {
    fn count(&mut self, usage: Usage) {
        self.answers += 1;
        self.prompt_tokens += usage.prompt_tokens as u64;
        self.cached_tokens += usage.cached_tokens as u64;
        self.output_tokens += u64::from(usage.output_tokens);
    }
}
