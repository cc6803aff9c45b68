//! The cards an edge knows: loaded in the background, found by digest.
//!
//! Whoever receives a card offers its bytes and goes on; one thread loads cards one after
//! the other, because loading is memory-hungry and nobody waits for it. Readers take a
//! snapshot and never wait. A card that can't be used stays listed with the reason. When
//! there are too many, the one that was asked for the longest ago makes room.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use arc_swap::ArcSwap;
use tracing::{info, warn};

use crate::card::{Card, Digest};
use crate::prompter::{LoadOptions, SharedPrompter};
use crate::{EncoderKind, Prompter};

/// Limits of a [`Cards`].
#[derive(Clone, Debug)]
pub struct CardsConfig {
    /// How each card is loaded.
    pub load: LoadOptions,
    /// Most cards kept, usable or not; a further one takes the place of one long unused.
    pub max_cards: usize,
    /// Most cards waiting to be loaded; further ones are refused and may be offered again.
    pub max_waiting: usize,
}

impl Default for CardsConfig {
    fn default() -> Self {
        Self {
            load: LoadOptions::default(),
            max_cards: 64,
            max_waiting: 16,
        }
    }
}

/// What became of a card.
#[derive(Clone, Debug)]
pub enum CardState {
    /// It waits to be loaded, or is being loaded.
    Loading,
    /// It is in use.
    Ready(SharedPrompter),
    /// It can't be used, for this reason.
    Refused(Arc<str>),
}

/// The cards of an edge, by digest.
pub struct Cards {
    states: Arc<States>,
    queue: SyncSender<Job>,
    max_cards: usize,
}

struct Job {
    digest: Digest,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct States {
    snapshot: ArcSwap<Entries>,
    /// Writers take turns; readers only ever load the snapshot.
    writer: Mutex<()>,
    /// Counts the times that a card was asked for.
    asked: AtomicU64,
}

type Entries = BTreeMap<Digest, Entry>;

#[derive(Clone)]
struct Entry {
    state: CardState,
    /// The count when it was last asked for; shared by all snapshots.
    last_asked: Arc<AtomicU64>,
}

impl Cards {
    /// Starts the loading thread; it ends when the last handle is dropped.
    pub fn new(config: CardsConfig) -> std::io::Result<Self> {
        let (queue, jobs) = sync_channel(config.max_waiting);
        let states = Arc::new(States::default());
        let seen = Arc::clone(&states);
        let load = config.load;
        thread::Builder::new()
            .name("kvgrid-cards".into())
            .spawn(move || load_all(&jobs, &seen, &load))?;
        Ok(Self {
            states,
            queue,
            max_cards: config.max_cards,
        })
    }

    /// Takes a card's encoding to be loaded. One already known is left as it is; one that
    /// finds no room is refused, and may be offered again.
    pub fn offer(&self, digest: Digest, bytes: Vec<u8>) -> CardState {
        if let Some(state) = self.state(&digest) {
            return state;
        }
        let mut outcome = CardState::Loading;
        self.states.change(|entries| {
            if let Some(entry) = entries.get(&digest) {
                outcome = entry.state.clone();
            } else if entries.len() >= self.max_cards && !drop_one(entries) {
                outcome = CardState::Refused("too many cards are being loaded".into());
            } else {
                outcome = self.enqueue(digest, bytes);
                if matches!(outcome, CardState::Loading) {
                    entries.insert(digest, self.states.new_entry());
                }
            }
        });
        outcome
    }

    fn enqueue(&self, digest: Digest, bytes: Vec<u8>) -> CardState {
        match self.queue.try_send(Job { digest, bytes }) {
            Ok(()) => CardState::Loading,
            Err(TrySendError::Full(_)) => CardState::Refused("too many cards wait".into()),
            Err(TrySendError::Disconnected(_)) => CardState::Refused("no thread loads".into()),
        }
    }

    /// The prompter of a card, once it is loaded.
    pub fn get(&self, digest: &Digest) -> Option<SharedPrompter> {
        let entries = self.states.snapshot.load();
        let entry = entries.get(digest)?;
        entry
            .last_asked
            .store(self.states.count(), Ordering::Relaxed);
        match &entry.state {
            CardState::Ready(prompter) => Some(Arc::clone(prompter)),
            CardState::Loading | CardState::Refused(_) => None,
        }
    }

    /// What became of a card; `None` if it was never offered, or made room since.
    pub fn state(&self, digest: &Digest) -> Option<CardState> {
        let entries = self.states.snapshot.load();
        entries.get(digest).map(|entry| entry.state.clone())
    }

    /// Every card and what became of it.
    pub fn list(&self) -> Vec<(Digest, CardState)> {
        let entries = self.states.snapshot.load();
        let copied = entries
            .iter()
            .map(|(digest, entry)| (*digest, entry.state.clone()));
        copied.collect()
    }
}

/// Drops the card that was asked for the longest ago, if one may be dropped.
fn drop_one(entries: &mut Entries) -> bool {
    let loaded = entries
        .iter()
        .filter(|(_, entry)| !matches!(entry.state, CardState::Loading));
    let oldest = loaded.min_by_key(|(_, entry)| entry.last_asked.load(Ordering::Relaxed));
    let Some(digest) = oldest.map(|(digest, _)| *digest) else {
        return false;
    };
    entries.remove(&digest);
    true
}

impl States {
    fn change(&self, change: impl FnOnce(&mut Entries)) {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = Entries::clone(&self.snapshot.load());
        change(&mut entries);
        self.snapshot.store(Arc::new(entries));
    }

    fn count(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed)
    }

    fn new_entry(&self) -> Entry {
        Entry {
            state: CardState::Loading,
            last_asked: Arc::new(AtomicU64::new(self.count())),
        }
    }
}

fn load_all(jobs: &Receiver<Job>, states: &States, options: &LoadOptions) {
    while let Ok(job) = jobs.recv() {
        let state = load(&job, options);
        states.change(|entries| {
            if let Some(entry) = entries.get_mut(&job.digest) {
                entry.state = state;
            }
        });
    }
}

fn load(job: &Job, options: &LoadOptions) -> CardState {
    let digest = blake3::Hash::from_bytes(job.digest).to_hex();
    match try_load(job, options) {
        Ok(prompter) => {
            let slow = match prompter.encoder() {
                EncoderKind::Fast => "",
                EncoderKind::Slow { because } => because,
            };
            let no_memo = prompter.memo_stats().err().unwrap_or_default();
            info!(%digest, model = prompter.model(), slow, no_memo, "Card loaded");
            CardState::Ready(Arc::new(prompter))
        }
        Err(reason) => {
            warn!(%digest, %reason, "Card refused");
            CardState::Refused(reason.into())
        }
    }
}

fn try_load(job: &Job, options: &LoadOptions) -> Result<Prompter, String> {
    if Card::digest_of(&job.bytes) != job.digest {
        return Err("the bytes have another digest".into());
    }
    let card = Card::decode(&job.bytes).map_err(|error| error.to_string())?;
    let load = || Prompter::load(&card, options);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(load)) {
        Ok(loaded) => loaded.map_err(|error| error.to_string()),
        Err(_) => Err("loading it panicked".into()),
    }
}

#[cfg(test)]
mod tests;
