//! An engine's event sockets: PUB for the stream, ROUTER for replay.
//!
//! A message is `[topic][sequence u64 BE][batch]`. A listener that missed some asks the
//! replay port `["", first sequence u64 BE]` and gets `["", sequence, batch]` for all that
//! are remembered from there on, then `["", ff x 8, ""]`. The memory is a ring: its oldest
//! message is forgotten for each new one when it is full.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::Bytes;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::config::EventsConfig;
use super::events::{EngineEvent, EventForm, encode};

const END: u64 = u64::MAX;

/// The sending side of an engine's events.
pub(super) struct Publisher {
    socket: PubSocket,
    topic: Bytes,
    form: EventForm,
    block_size: u32,
    ring: Arc<Mutex<Ring>>,
}

/// Where the sockets are bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventAddresses {
    pub(super) publish: SocketAddr,
    pub(super) replay: SocketAddr,
}

/// Messages that replay can still send.
struct Ring {
    capacity: usize,
    /// Sequence of the next message.
    next: u64,
    batches: VecDeque<Bytes>,
}

impl Ring {
    fn push(&mut self, batch: Bytes) -> u64 {
        if self.batches.len() == self.capacity {
            self.batches.pop_front();
        }
        if self.capacity > 0 {
            self.batches.push_back(batch);
        }
        self.next += 1;
        self.next - 1
    }

    fn from(&self, first: u64) -> Vec<(u64, Bytes)> {
        let oldest = self.next - self.batches.len() as u64;
        (oldest..self.next)
            .zip(&self.batches)
            .filter(|(sequence, _)| *sequence >= first)
            .map(|(sequence, batch)| (sequence, batch.clone()))
            .collect()
    }
}

impl Publisher {
    /// Binds both sockets. The future serves replay until it is dropped.
    pub(super) async fn bind(
        config: &EventsConfig,
        block_size: u32,
    ) -> anyhow::Result<(
        Self,
        EventAddresses,
        impl Future<Output = ()> + Send + use<>,
    )> {
        let mut publish = PubSocket::new();
        let mut replay = RouterSocket::new();
        let addresses = EventAddresses {
            publish: bind(&mut publish, config.publish).await?,
            replay: bind(&mut replay, config.replay).await?,
        };
        let ring = Arc::new(Mutex::new(Ring {
            capacity: config.buffer,
            next: 0,
            batches: VecDeque::new(),
        }));
        let publisher = Self {
            socket: publish,
            topic: Bytes::copy_from_slice(config.topic.as_bytes()),
            form: config.form,
            block_size,
            ring: ring.clone(),
        };
        Ok((publisher, addresses, serve_replay(replay, ring)))
    }

    /// Sends the events as one message. Listeners that are too slow miss it.
    pub(super) async fn publish(&mut self, events: &[EngineEvent]) {
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64());
        let batch = Bytes::from(encode(events, self.form, self.block_size, time));
        let sequence = lock(&self.ring).push(batch.clone());
        let frames = [self.topic.clone(), sequence_frame(sequence), batch];
        // The socket drops what its listeners can't take; it has no other failure.
        let _ = self.socket.send(message(frames)).await;
    }
}

async fn bind(socket: &mut impl Socket, address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let bound = socket
        .bind(&format!("tcp://{address}"))
        .await
        .with_context(|| format!("{address} can't be bound for events"))?;
    bound
        .to_string()
        .trim_start_matches("tcp://")
        .parse()
        .with_context(|| format!("{bound} is no address"))
}

async fn serve_replay(mut socket: RouterSocket, ring: Arc<Mutex<Ring>>) {
    while let Ok(question) = socket.recv().await {
        let frames = question.into_vec();
        let (Some(peer), Some(first)) = (frames.first(), frames.last().and_then(parse)) else {
            continue;
        };
        let missed = lock(&ring).from(first);
        let end = (END, Bytes::new());
        for (sequence, batch) in missed.into_iter().chain([end]) {
            let frames = [peer.clone(), Bytes::new(), sequence_frame(sequence), batch];
            if socket.send(message(frames)).await.is_err() {
                break;
            }
        }
    }
}

fn parse(frame: &Bytes) -> Option<u64> {
    Some(u64::from_be_bytes(frame.as_ref().try_into().ok()?))
}

fn sequence_frame(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}

fn message<const N: usize>(frames: [Bytes; N]) -> ZmqMessage {
    ZmqMessage::try_from(Vec::from(frames)).expect("there are frames")
}

fn lock(ring: &Mutex<Ring>) -> std::sync::MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}
