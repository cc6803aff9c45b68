//! Listens to what a model's workers say of their own load, one task a publisher.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use kvgrid_core::event::dynamo::{FORWARD_PASS_METRICS, KV_METRICS, kv_use, step};
use kvgrid_runtime::Clock;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::plane::{Message, Plane, Sound, Voice};
use super::usage::{Size, Usage};
use crate::discovery::WorkerRank;

/// The topics that are listened to.
pub(super) const TOPICS: [&str; 2] = [KV_METRICS, FORWARD_PASS_METRICS];

/// The tasks that listen.
pub(super) struct Listeners {
    usage: watch::Sender<Usage>,
    plane: Plane,
    clock: Clock,
    /// What stops each.
    stops: BTreeMap<u64, CancellationToken>,
}

impl Listeners {
    /// Nobody yet; `usage` is told what they hear.
    pub(super) const fn new(usage: watch::Sender<Usage>, plane: Plane, clock: Clock) -> Self {
        Self {
            usage,
            plane,
            clock,
            stops: BTreeMap::new(),
        }
    }

    /// Listens to these voices and to no others, and notes how large workers are.
    pub(super) fn update(
        &mut self,
        workers: BTreeMap<u64, Size>,
        alive: Vec<Voice>,
        tasks: &mut JoinSet<()>,
    ) {
        self.usage
            .send_if_modified(|usage| usage.set_workers(workers));
        self.stops.retain(|id, stop| {
            let stays = alive.iter().any(|voice| voice.publisher == *id);
            if !stays {
                stop.cancel();
            }
            stays
        });
        for voice in alive {
            if let Entry::Vacant(place) = self.stops.entry(voice.publisher) {
                let stop = place.insert(CancellationToken::new()).clone();
                let listener = Listener {
                    voice,
                    usage: self.usage.clone(),
                    clock: self.clock,
                };
                let plane = self.plane.clone();
                tasks.spawn(async move {
                    stop.run_until_cancelled(listener.run(plane)).await;
                    let publisher = listener.voice.publisher;
                    listener
                        .usage
                        .send_if_modified(|usage| usage.forget(publisher));
                });
            }
        }
    }
}

/// Who listens to one publisher.
struct Listener {
    voice: Voice,
    usage: watch::Sender<Usage>,
    clock: Clock,
}

impl Listener {
    /// Listens for ever.
    async fn run(&self, plane: Plane) {
        loop {
            let mut ear = plane.listen(&self.voice).await;
            loop {
                match ear.hear().await {
                    Sound::Message(message) => {
                        if self.take(&message).is_none() {
                            let publisher = self.voice.publisher;
                            debug!(publisher, "Message not understood");
                        }
                    }
                    Sound::Noise => {}
                    Sound::Disconnected => break,
                }
            }
        }
    }

    /// Notes what a message says; `None` if it isn't the publisher's or can't be read.
    fn take(&self, message: &Message) -> Option<()> {
        let Voice {
            publisher, topic, ..
        } = self.voice;
        let envelope = message.envelope()?;
        if envelope.publisher != publisher || envelope.topic != topic {
            return None;
        }
        if topic == FORWARD_PASS_METRICS {
            let step = step(envelope.payload).ok()?;
            let now = self.clock.now();
            self.usage
                .send_if_modified(|usage| usage.set_step(publisher, now, step));
            return Some(());
        }
        let read = kv_use(envelope.payload).ok()?;
        let of = WorkerRank {
            worker: read.worker,
            rank: read.rank,
        };
        // A router's message has none.
        if let Some(blocks) = read.used_blocks {
            self.usage
                .send_if_modified(|usage| usage.set_used(publisher, of, blocks));
        }
        Some(())
    }
}
