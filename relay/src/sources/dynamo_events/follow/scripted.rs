//! A follower without sockets, led step by step through what a connection may bring.

use bytes::Bytes;
use futures_util::FutureExt;

use super::*;
use crate::discovery::Transport;

/// More events than one step can bring, so that no step ever waits.
const EVENTS: usize = 1 << 14;

/// A follower whose connection is the test.
pub(crate) struct ScriptedFollower {
    follower: Follower,
    told: mpsc::Receiver<SourceEvent>,
}

impl ScriptedFollower {
    /// A follower of this publisher, which discovery says to speak for `worker`.
    pub(crate) fn new(
        feed: FeedId,
        publisher: u64,
        worker: Option<(u64, u32)>,
        late: bool,
    ) -> Self {
        let worker = worker.map(|(worker, rank)| WorkerRank { worker, rank });
        let (_, worker) = watch::channel(worker);
        let follow = Follow {
            feed,
            voice: Voice {
                publisher,
                transport: Transport::Zmq(String::new()),
                topic: KV_EVENTS,
            },
            plane: Plane { nats: None },
            worker,
            late,
        };
        let (events, told) = mpsc::channel(EVENTS);
        Self {
            follower: Follower::new(follow, events),
            told,
        }
    }

    /// A message comes, with a frame around it or without.
    pub(crate) fn hears(&mut self, sequence: u64, bytes: Bytes, framed: bool) -> Vec<SourceEvent> {
        let message = Message {
            sequence,
            bytes,
            framed,
        };
        self.follower
            .take(&message)
            .now_or_never()
            .expect("nothing waits")
            .ok();
        std::iter::from_fn(|| self.told.try_recv().ok()).collect()
    }
}
