//! A feed without sockets, led step by step through what a connection may bring.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;

use super::*;

/// More events than one step can bring, so that no step ever waits.
const EVENTS: usize = 1 << 14;

/// What a publisher still knows of its past, and whether it answers.
#[derive(Debug)]
pub(crate) struct Past {
    /// Messages with their sequences.
    pub(crate) messages: VecDeque<(u64, Bytes)>,
    /// Messages after which an answer breaks off; `None` if it doesn't.
    pub(crate) breaks_after: Option<usize>,
}

/// A past that several may look at.
pub(crate) type SharedPast = Arc<Mutex<Past>>;

/// An answer from such a past.
pub(crate) struct Listed {
    left: VecDeque<(u64, Bytes)>,
    until_break: Option<usize>,
}

impl Memory for SharedPast {
    type Recall = Listed;

    async fn recall(&self, from: u64) -> Result<Listed, SocketError> {
        let past = self.lock().unwrap();
        let found = past
            .messages
            .iter()
            .filter(|(sequence, _)| *sequence >= from);
        Ok(Listed {
            left: found.cloned().collect(),
            until_break: past.breaks_after,
        })
    }
}

impl Recall for Listed {
    async fn next(&mut self) -> Result<Option<Numbered>, SocketError> {
        if let Some(left) = &mut self.until_break {
            *left = left.checked_sub(1).ok_or(SocketError::Silent)?;
        }
        let next = self.left.pop_front();
        Ok(next.map(|(sequence, payload)| Numbered { sequence, payload }))
    }
}

/// A feed whose connection is the test.
pub(crate) struct ScriptedFeed {
    feed: Feed<SharedPast>,
    told: mpsc::Receiver<SourceEvent>,
}

impl ScriptedFeed {
    /// A feed of a publisher of this rank, that is connected to nobody yet.
    pub(crate) fn new(
        id: FeedId,
        rank: u32,
        decoder: DecoderConfig,
        past: Option<SharedPast>,
    ) -> Self {
        let config = FeedConfig {
            events: String::new(),
            replay: None,
            topic: String::new(),
            rank,
            gone_after: Duration::ZERO,
            decoder,
        };
        let (events, told) = mpsc::channel(EVENTS);
        Self {
            feed: Feed::new(id, config, past, events),
            told,
        }
    }

    /// A connection is made.
    pub(crate) fn connected(&mut self) -> Vec<SourceEvent> {
        self.feed
            .connected()
            .now_or_never()
            .expect("nothing waits")
            .ok();
        self.told()
    }

    /// The publisher was away for so long that it counts as gone.
    pub(crate) fn gone(&mut self) -> Vec<SourceEvent> {
        let end = self.feed.end_life(FeedState::Gone);
        end.now_or_never().expect("nothing waits").ok();
        self.told()
    }

    /// A live message comes.
    pub(crate) fn hears(&mut self, sequence: u64, payload: Bytes) -> Vec<SourceEvent> {
        let message = Numbered { sequence, payload };
        self.feed
            .take_live(message)
            .now_or_never()
            .expect("nothing waits")
            .ok();
        self.told()
    }

    /// It was quiet for a while.
    pub(crate) fn checks(&mut self) -> Vec<SourceEvent> {
        self.feed
            .begin_or_catch_up()
            .now_or_never()
            .expect("nothing waits")
            .ok();
        self.told()
    }

    fn told(&mut self) -> Vec<SourceEvent> {
        std::iter::from_fn(|| self.told.try_recv().ok()).collect()
    }
}
