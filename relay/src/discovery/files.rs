//! Dynamo's discovery in files: one JSON document per entry, in a directory per kind, touched
//! every few seconds by its owner and deleted by anyone once it is stale.
//!
//! Dynamo writes beside an entry and renames; should a file be half written all the same, the
//! next look will do. When a directory can't be read, what was known ages as if its owners were
//! dead.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracing::debug;

use super::record::Record;

/// The kinds of entries that matter, by their directories.
const KINDS: [&str; 3] = ["event_channels", "event_sources", "mdc"];

/// Most bytes of an entry; the largest, a model's, has about two thousand.
const ENTRY_BYTES: u64 = 1 << 20;

/// Most entries of a kind; more are passed over.
const ENTRIES: usize = 65_536;

/// How the names of entries begin that are still being written.
const UNFINISHED: &str = ".tmp";

/// The entries of a store, as of the last look.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    kinds: BTreeMap<&'static str, BTreeMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    modified: SystemTime,
    /// The file's length and time when it was last read, unless that has to be done again.
    read_at: Option<(SystemTime, u64)>,
    record: Option<Record>,
}

impl Files {
    /// A store that has not been looked at.
    pub(super) fn new(root: PathBuf) -> Self {
        Self {
            root,
            kinds: KINDS.map(|kind| (kind, BTreeMap::new())).into(),
        }
    }

    /// Looks again, and forgets entries that nobody touched for `dead_after` before `now`. On
    /// an error what was known before stays, as far as it is fresh.
    pub(super) fn read(&mut self, now: SystemTime, dead_after: Duration) -> io::Result<()> {
        // A time in the future is a clock's fault, not a death.
        let alive = |modified| {
            let age = now.duration_since(modified).unwrap_or_default();
            age <= dead_after
        };
        let mut result = Ok(());
        for (kind, entries) in &mut self.kinds {
            let directory = self.root.join("v1").join(kind);
            let looked = look(&directory, entries, alive);
            result = result.and(looked);
            entries.retain(|_, entry| alive(entry.modified));
        }
        result
    }

    /// The entries that are alive and could be read, by names that are unique in the store.
    pub(super) fn live(&self) -> impl Iterator<Item = (&str, &Record)> {
        self.kinds.values().flatten().filter_map(|(name, entry)| {
            let record = entry.record.as_ref()?;
            Some((name.as_str(), record))
        })
    }
}

/// Brings a kind's entries up to date with its directory.
fn look(
    directory: &Path,
    entries: &mut BTreeMap<String, Entry>,
    alive: impl Fn(SystemTime) -> bool,
) -> io::Result<()> {
    let found = match fs::read_dir(directory) {
        Ok(found) => found,
        // Nobody has registered yet.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            entries.clear();
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let mut kept = BTreeMap::new();
    for file in found.take(ENTRIES) {
        let file = file?;
        // It may be gone again, or be none of Dynamo's names.
        let (Ok(name), Ok(metadata)) = (file.file_name().into_string(), file.metadata()) else {
            continue;
        };
        if name.starts_with(UNFINISHED) {
            continue;
        }
        let Ok(modified) = metadata.modified() else {
            continue;
        };
        if !metadata.is_file() || !alive(modified) {
            continue;
        }
        let mut entry = entries.remove(&name).unwrap_or(Entry {
            modified,
            read_at: None,
            record: None,
        });
        entry.update(&file.path(), modified, &metadata);
        kept.insert(name, entry);
    }
    *entries = kept;
    Ok(())
}

impl Entry {
    /// Reads the file if it may have changed. What can't be read is kept as it was.
    fn update(&mut self, path: &Path, modified: SystemTime, metadata: &Metadata) {
        self.modified = modified;
        let at = (modified, metadata.len());
        if self.read_at == Some(at) {
            return;
        }
        self.read_at = None;
        match read(path) {
            Ok(record) => {
                self.record = Some(record);
                self.read_at = Some(at);
            }
            Err(error) => debug!(path = %path.display(), %error, "Entry not understood"),
        }
    }
}

fn read(path: &Path) -> io::Result<Record> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(ENTRY_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > ENTRY_BYTES {
        return Err(io::Error::other("more than a megabyte"));
    }
    Ok(Record::parse(&bytes)?)
}
