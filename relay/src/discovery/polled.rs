//! A store of files, read over and over: nobody tells when one of them changes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use kvgrid_core::event::dynamo::KV_EVENTS;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::files::Files;
use super::{FileSettings, Sighting, Teller};

/// Pause between looks while a new worker's publisher is awaited. Measured with Dynamo 1.6.1,
/// it registers 100 ms after the model, and has its first requests 15 ms later.
const HURRY: Duration = Duration::from_millis(5);

/// How long a new worker's publisher is awaited; some publish nothing.
const AWAITED: Duration = Duration::from_secs(3);

/// Reads the store over and over, and tells what is alive in it when that changes.
pub(super) async fn watch(settings: FileSettings, told: Teller) {
    let mut files = Files::new(settings.root.clone());
    let mut newcomers = Newcomers::default();
    loop {
        let dead_after = settings.dead_after;
        // Disks may be slow; a read that is under way when the relay stops ends by itself.
        let read = spawn_blocking(move || {
            let result = files.read(SystemTime::now(), dead_after);
            (files, result)
        });
        let Ok((returned, result)) = read.await else {
            return;
        };
        files = returned;
        match &result {
            Err(error) if told.was_readable() => {
                warn!(root = %settings.root.display(), %error, "Discovery can't be read");
            }
            Ok(()) if !told.was_readable() => {
                info!(root = %settings.root.display(), "Discovery can be read again");
            }
            _ => {}
        }
        let sighting = told.sight(files.live(), result.is_ok());
        let pause = match newcomers.look(&sighting, Instant::now()) {
            true => settings.interval.min(HURRY),
            false => settings.interval,
        };
        told.tell(sighting);
        sleep(pause).await;
    }
}

/// Workers that have registered their model and may soon register what they publish. Then they
/// have requests at once, and the relay must hear them by then.
#[derive(Default)]
pub(super) struct Newcomers {
    /// Models' entries, with when they came up.
    since: BTreeMap<String, Instant>,
}

impl Newcomers {
    /// Takes note of who is there, and says whether somebody is awaited.
    pub(super) fn look(&mut self, seen: &Sighting, now: Instant) -> bool {
        self.since.retain(|name, _| seen.models.contains_key(name));
        let publish = |worker: u64| {
            let mut all = seen.publishers.values();
            all.any(|by| by.topic == KV_EVENTS && by.worker.is_some_and(|of| of.worker == worker))
        };
        let mut awaited = false;
        for (name, model) in &seen.models {
            let since = *self.since.entry(name.clone()).or_insert(now);
            awaited |= now.duration_since(since) < AWAITED && !publish(model.worker);
        }
        awaited
    }
}
