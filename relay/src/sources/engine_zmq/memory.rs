//! What a publisher remembers of its own life: the past that a feed can ask for again.
//!
//! Engines answer at a replay socket. Tests answer from a list, so that a feed can be led
//! through thousands of lives without a socket.

use super::super::zmq::{Numbered, Replay, ReplayPort, SocketError};

/// A publisher's past.
pub(super) trait Memory: Send + Sync {
    /// An answer under way.
    type Recall: Recall + Send;

    /// Asks for all messages from a sequence on that are still there.
    fn recall(&self, from: u64) -> impl Future<Output = Result<Self::Recall, SocketError>> + Send;
}

/// Past messages, one after the other.
pub(super) trait Recall {
    /// The next message; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Numbered>, SocketError>> + Send;
}

impl Memory for ReplayPort {
    type Recall = Replay;

    async fn recall(&self, from: u64) -> Result<Replay, SocketError> {
        Replay::open(&self.0, from).await
    }
}

impl Recall for Replay {
    async fn next(&mut self) -> Result<Option<Numbered>, SocketError> {
        // The socket's own.
        Self::next(self).await
    }
}
