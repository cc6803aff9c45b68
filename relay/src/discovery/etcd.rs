//! Dynamo's discovery in etcd: the documents that the file store has as well, each bound to its
//! owner's lease, so that a dead owner's go when that ends.
//!
//! All is read once, and then watched from that revision on. Whatever breaks the watch, be it a
//! lost connection, a leader that is gone or a revision that was compacted away, all is read
//! anew: then nothing can have been missed, also where etcd itself has begun anew.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{debug, info};

use super::board::Change;
use crate::retry::Retry;
use crate::secret::{Secret, TlsFiles};

mod client;
mod messages;

use client::{Client, EtcdError};
use messages::{Event, KeyValue};

/// How the keys begin that Dynamo writes.
const PREFIX: &str = "v1/";

/// The kinds of entries that matter, by what follows the prefix.
const KINDS: [&str; 3] = ["event_channels/", "event_sources/", "mdc/"];

/// Where an etcd is and how to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdSettings {
    /// Its members, `http://host:port` or `https://host:port`; one is asked at a time.
    pub(crate) endpoints: Vec<String>,
    /// Who to be, if it wants to know.
    pub(crate) user: Option<(String, Secret)>,
    /// Whom to trust; needed by `https`.
    pub(crate) tls: Option<TlsFiles>,
    /// How long after the last word of it what it said is not stale.
    pub(crate) stale_after: Duration,
}

/// Tells what there is and how it changes, for ever.
pub(super) async fn follow(settings: EtcdSettings, changes: mpsc::Sender<Change>) {
    let mut retry = Retry::of_service();
    for endpoint in settings.endpoints.iter().cycle() {
        let follow = Follow {
            settings: &settings,
            endpoint,
            changes: &changes,
        };
        let told = follow.run(|| retry.note_up()).await;
        let Err(error) = told else {
            return;
        };
        debug!(endpoint, %error, "etcd can't be followed");
        let lost = Change::Lost(format!("{endpoint}: {error}"));
        if changes.send(lost).await.is_err() {
            return;
        }
        sleep(retry.next_delay()).await;
    }
}

/// One attempt at one member.
struct Follow<'a> {
    settings: &'a EtcdSettings,
    endpoint: &'a str,
    changes: &'a mpsc::Sender<Change>,
}

impl Follow<'_> {
    /// Follows until something breaks; ends without an error when nobody listens any more.
    async fn run(&self, is_up: impl FnOnce()) -> Result<(), EtcdError> {
        let mut client = Client::connect(self.settings, self.endpoint).await?;
        let (revision, all) = client.all(PREFIX).await?;
        let mut watch = client.watch(PREFIX, revision.saturating_add(1)).await?;
        info!(endpoint = self.endpoint, revision, "etcd is followed");
        is_up();
        let all: BTreeMap<_, _> = all.into_iter().filter_map(document).collect();
        let mut change = Change::All(all);
        while self.changes.send(change).await.is_ok() {
            let changed = watch.next().await?;
            change = Change::Some(changed.into_iter().filter_map(changed_entry).collect());
        }
        Ok(())
    }
}

/// An entry of a kind that matters, by its key.
fn document(entry: KeyValue) -> Option<(String, Vec<u8>)> {
    Some((name(entry.key)?, entry.value))
}

fn changed_entry(event: Event) -> Option<(String, Option<Vec<u8>>)> {
    let is_gone = event.is_delete();
    let entry = event.kv?;
    let name = name(entry.key)?;
    Some((name, (!is_gone).then_some(entry.value)))
}

fn name(key: Vec<u8>) -> Option<String> {
    let name = String::from_utf8(key).ok()?;
    let rest = name.strip_prefix(PREFIX)?;
    KINDS
        .iter()
        .any(|kind| rest.starts_with(kind))
        .then_some(name)
}
