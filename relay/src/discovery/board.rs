//! What a store that tells its changes has told so far.
//!
//! A store that is lost doesn't empty this: Dynamo goes on serving without it, and who dies
//! meanwhile falls silent. What nobody has confirmed for a while is told on as not readable.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::Teller;
use super::record::Record;

/// Changes on their way to the board. Who makes them waits while it is full.
const CHANNEL_CAPACITY: usize = 16;

/// Most entries; more are passed over.
const ENTRIES: usize = 3 * 65_536;

/// Most bytes of an entry; the largest, a model's, has about two thousand.
const ENTRY_BYTES: usize = 1 << 20;

/// What a store tells.
#[derive(Debug)]
pub(super) enum Change {
    /// All entries there are, by name; others are gone.
    All(BTreeMap<String, Vec<u8>>),
    /// These have changed; gone are those without a document.
    Some(Vec<(String, Option<Vec<u8>>)>),
    /// The store doesn't answer any more, for this reason.
    Lost(String),
}

/// Where a store's changes are written down.
pub(super) struct Board {
    changes: mpsc::Receiver<Change>,
    told: Teller,
    entries: BTreeMap<String, Record>,
    stale_after: Duration,
    /// When what is known is stale; `None` while the store confirms it.
    stale_at: Option<Instant>,
    lost: bool,
    passed_over: u64,
}

impl Board {
    /// An empty board, and where to send what it is to show.
    pub(super) fn new(stale_after: Duration, told: Teller) -> (mpsc::Sender<Change>, Self) {
        let (sender, changes) = mpsc::channel(CHANNEL_CAPACITY);
        let board = Self {
            changes,
            told,
            entries: BTreeMap::new(),
            stale_after,
            stale_at: Some(Instant::now() + stale_after),
            lost: false,
            passed_over: 0,
        };
        (sender, board)
    }

    /// Takes changes until nobody makes them any more.
    pub(super) async fn run(mut self) {
        loop {
            let stale_at = self.stale_at;
            let stale = async {
                match stale_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Both arms may be dropped while they wait.
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(change) => self.take(change),
                    None => return,
                },
                () = stale => {
                    self.stale_at = None;
                    warn!(after = ?self.stale_after, "Discovery is stale");
                    self.tell(false);
                }
            }
        }
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::All(documents) => {
                self.entries.retain(|name, _| documents.contains_key(name));
                for (name, document) in documents {
                    self.put(name, &document);
                }
                if std::mem::take(&mut self.lost) {
                    info!("Discovery can be read again");
                }
                self.stale_at = None;
                self.tell(true);
            }
            Change::Some(changes) => {
                for (name, document) in changes {
                    match document {
                        Some(document) => self.put(name, &document),
                        None => drop(self.entries.remove(&name)),
                    }
                }
                // Half of a store may be lost while the other half still tells.
                let is_stale = self.lost && self.stale_at.is_none();
                self.tell(!is_stale);
            }
            Change::Lost(error) => {
                if !std::mem::replace(&mut self.lost, true) {
                    warn!(%error, "Discovery can't be read");
                    self.stale_at = Some(Instant::now() + self.stale_after);
                }
            }
        }
    }

    /// What isn't understood stays as it was.
    fn put(&mut self, name: String, document: &[u8]) {
        let room = self.entries.len() < ENTRIES || self.entries.contains_key(&name);
        if !room || document.len() > ENTRY_BYTES {
            self.passed_over += 1;
            if self.passed_over.is_power_of_two() {
                warn!(%name, all = self.passed_over, "Entry passed over: too many or too long");
            }
            return;
        }
        match Record::parse(document) {
            Ok(record) => drop(self.entries.insert(name, record)),
            Err(error) => debug!(%name, %error, "Entry not understood"),
        }
    }

    fn tell(&self, readable: bool) {
        let live = self.entries.iter();
        let live = live.map(|(name, record)| (name.as_str(), record));
        self.told.tell(self.told.sight(live, readable));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::watch;
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;
    use crate::discovery::{Scope, Sighting, Sightings};

    const STALE_AFTER: Duration = Duration::from_millis(50);

    fn channel(id: u64) -> (String, Vec<u8>) {
        let document = format!(
            r#"{{"type":"EventChannel","scope":{{"kind":"endpoint","endpoint":{{"namespace":"prod",
            "component":"backend","name":"generate"}}}},"topic":"kv-events","instance_id":{id},
            "transport":{{"kind":"Zmq","config":{{"endpoint":"tcp://127.0.0.1:5000"}}}}}}"#
        );
        (format!("v1/event_channels/{id}"), document.into_bytes())
    }

    struct Rig {
        changes: mpsc::Sender<Change>,
        sightings: Sightings,
        _task: JoinSet<()>,
    }

    impl Rig {
        fn start() -> Self {
            let (sender, sightings) = watch::channel(None);
            let scope = Scope {
                namespace: "prod".into(),
                component: None,
                endpoint: None,
            };
            let told = Teller {
                scope,
                sightings: sender,
            };
            let (changes, board) = Board::new(STALE_AFTER, told);
            let mut task = JoinSet::new();
            task.spawn(board.run());
            Self {
                changes,
                sightings,
                _task: task,
            }
        }

        async fn tell(&self, change: Change) {
            self.changes.send(change).await.unwrap();
        }

        async fn until(&mut self, is: impl Fn(&Sighting) -> bool) -> Arc<Sighting> {
            let found = self.sightings.wait_for(|s| s.as_deref().is_some_and(&is));
            let found = timeout(Duration::from_secs(20), found).await;
            found.expect("in time").unwrap().clone().unwrap()
        }
    }

    fn ids(seen: &Sighting) -> Vec<u64> {
        seen.publishers.keys().copied().collect()
    }

    #[tokio::test]
    async fn changes_add_replace_and_remove_entries() {
        let mut rig = Rig::start();

        rig.tell(Change::All([channel(1), channel(2)].into())).await;
        let first = rig.until(|seen| seen.publishers.len() == 2).await;
        let (gone, _) = channel(1);
        let (new, document) = channel(3);
        let broken = (channel(2).0, Some(b"{".to_vec()));
        let changes = vec![(gone, None), (new, Some(document)), broken];
        rig.tell(Change::Some(changes)).await;
        let then = rig.until(|seen| ids(seen) == [2, 3]).await;
        rig.tell(Change::All([channel(4)].into())).await;
        let anew = rig.until(|seen| ids(seen) == [4]).await;

        assert!(first.readable && then.readable && anew.readable);
    }

    #[tokio::test]
    async fn what_a_lost_store_said_stays_and_turns_stale() {
        let mut rig = Rig::start();
        rig.tell(Change::All([channel(1)].into())).await;
        rig.until(|seen| seen.readable).await;

        rig.tell(Change::Lost("a wire".into())).await;
        let stale = rig.until(|seen| !seen.readable).await;
        rig.tell(Change::All([channel(1)].into())).await;
        let back = rig.until(|seen| seen.readable).await;

        assert_eq!(ids(&stale), [1]);
        assert_eq!(ids(&back), [1]);
    }

    #[tokio::test]
    async fn what_half_of_a_store_still_tells_counts_and_makes_nothing_fresh() {
        let mut rig = Rig::start();
        rig.tell(Change::All([channel(1), channel(2)].into())).await;
        rig.tell(Change::Lost("a half".into())).await;
        rig.until(|seen| !seen.readable).await;

        let (gone, _) = channel(1);
        rig.tell(Change::Some(vec![(gone, None)])).await;
        let half = rig.until(|seen| ids(seen) == [2]).await;

        assert!(!half.readable);
    }

    #[tokio::test]
    async fn an_entry_that_is_too_long_is_passed_over() {
        let mut rig = Rig::start();
        let (name, mut document) = channel(1);
        document.extend(vec![b' '; ENTRY_BYTES]);

        rig.tell(Change::All([(name, document), channel(2)].into()))
            .await;
        let seen = rig.until(|seen| seen.readable).await;

        assert_eq!(ids(&seen), [2]);
    }
}
