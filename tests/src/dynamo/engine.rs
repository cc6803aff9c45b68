//! What an engine says it published, read from its own replay port.
//!
//! This is the tests' witness: it shares no code with the relay's decoder. The mocker
//! names blocks by Dynamo's chain hash, so what it holds can be compared with a prompt.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use serde::Deserialize;
use zeromq::{DealerSocket, Socket as _, SocketRecv as _, SocketSend as _, ZmqMessage};

/// A replay is answered at once or not at all: connecting to a dead port hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// The sequence that marks the end of a replay.
const END: u64 = u64::MAX;

/// An engine's publisher, followed through its replay port.
#[derive(Debug)]
pub struct Engine {
    endpoint: String,
    next: u64,
    held: BTreeSet<u64>,
}

impl Engine {
    pub(super) fn new(endpoint: String) -> Self {
        Self {
            endpoint,
            next: 0,
            held: BTreeSet::new(),
        }
    }

    /// The sequence of the last message published, after reading all that is new.
    pub async fn last_sequence(&mut self) -> Result<Option<u64>> {
        self.read_new().await?;
        Ok(self.next.checked_sub(1))
    }

    /// The names of all blocks announced and not removed since, after reading all that
    /// is new.
    pub async fn held(&mut self) -> Result<&BTreeSet<u64>> {
        self.read_new().await?;
        Ok(&self.held)
    }

    /// Forgets what was read: the engine was started anew and counts from 0.
    pub(super) fn restarted(&mut self) {
        self.next = 0;
        self.held.clear();
    }

    async fn read_new(&mut self) -> Result<()> {
        let replay = replay(&self.endpoint, self.next);
        let messages = tokio::time::timeout(PATIENCE, replay)
            .await
            .with_context(|| format!("no replay from {}", self.endpoint))??;
        for (sequence, payload) in messages {
            if sequence != self.next {
                bail!("replay gave {sequence} where {} is next", self.next);
            }
            let batch: Batch = rmp_serde::from_slice(&payload)
                .with_context(|| format!("message {sequence} isn't a batch of events"))?;
            batch.1.into_iter().for_each(|event| self.apply(event));
            self.next += 1;
        }
        Ok(())
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::BlockStored { block_hashes } => self.held.extend(block_hashes),
            Event::BlockRemoved { block_hashes } => {
                for name in block_hashes {
                    self.held.remove(&name);
                }
            }
            Event::AllBlocksCleared {} => self.held.clear(),
        }
    }
}

/// Time, events, data-parallel rank.
#[derive(Deserialize)]
struct Batch(
    #[allow(dead_code, reason = "its place in the array")] f64,
    Vec<Event>,
    #[allow(dead_code, reason = "its place in the array")] Option<u32>,
);

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Event {
    BlockStored { block_hashes: Vec<u64> },
    BlockRemoved { block_hashes: Vec<u64> },
    AllBlocksCleared {},
}

/// All messages from `start` on: (sequence, payload).
async fn replay(endpoint: &str, start: u64) -> Result<Vec<(u64, Bytes)>> {
    let mut socket = DealerSocket::new();
    socket.connect(endpoint).await?;
    let mut request = ZmqMessage::from(Bytes::new());
    request.push_back(Bytes::copy_from_slice(&start.to_be_bytes()));
    socket.send(request).await?;

    let mut messages = Vec::new();
    loop {
        let frames = socket.recv().await?.into_vec();
        let [.., sequence, payload] = frames.as_slice() else {
            bail!("a replay message of {} frames", frames.len());
        };
        let sequence = u64::from_be_bytes(
            sequence[..]
                .try_into()
                .context("a sequence that isn't 8 bytes")?,
        );
        if sequence == END {
            return Ok(messages);
        }
        messages.push((sequence, payload.clone()));
    }
}
