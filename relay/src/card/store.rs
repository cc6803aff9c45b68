//! Files of cards on disk, so that a relay that starts while no worker is alive knows the
//! site's card all the same.
//!
//! Files are named by their BLAKE3 and checked when they are read. Writes are atomic: a reader
//! sees a file whole or not at all. Past a total the oldest go.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kvgrid_core::ModelName;
use kvgrid_prompt::Card;
use tracing::debug;

/// Most bytes of all files together.
const TOTAL_BYTES: u64 = 4 * Card::MAX_BYTES as u64;

/// A directory of files.
#[derive(Clone, Debug)]
pub(super) struct Store {
    directory: PathBuf,
}

impl Store {
    /// The store below a relay's state directory, which need not be there yet.
    pub(super) fn below(state: &Path) -> Self {
        Self {
            directory: state.join("cards"),
        }
    }

    /// A file that has this content.
    pub(super) fn file(&self, hash: &blake3::Hash) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path_of(hash)).ok()?;
        (blake3::hash(&bytes) == *hash).then_some(bytes)
    }

    /// Keeps a file.
    pub(super) fn keep(&self, bytes: &[u8]) -> io::Result<()> {
        let files = self.directory.join("files");
        fs::create_dir_all(&files)?;
        let hash = blake3::hash(bytes);
        write(&files, &self.path_of(&hash), bytes)?;
        shrink(&files, TOTAL_BYTES)
    }

    /// What the site's workers last said of a model.
    pub(super) fn last(&self, model: &ModelName) -> Option<Vec<u8>> {
        fs::read(self.path_of_model(model)).ok()
    }

    /// Keeps what the site's workers say of a model.
    pub(super) fn keep_last(&self, model: &ModelName, text: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        write(&self.directory, &self.path_of_model(model), text)
    }

    fn path_of(&self, hash: &blake3::Hash) -> PathBuf {
        self.directory.join("files").join(hash.to_hex().as_str())
    }

    fn path_of_model(&self, model: &ModelName) -> PathBuf {
        self.directory.join(format!("{:016x}.json", model.id().0))
    }
}

/// Writes beside the file and renames: on one file system that is atomic.
fn write(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = directory.join(format!("unfinished-{:016x}", rand::random::<u64>()));
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // It may not even be there.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Removes the oldest files until the rest has at most `limit` bytes.
fn shrink(files: &Path, limit: u64) -> io::Result<()> {
    let mut found = Vec::new();
    for file in fs::read_dir(files)? {
        let file = file?;
        let Ok(metadata) = file.metadata() else {
            continue;
        };
        let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        found.push((written, metadata.len(), file.path()));
    }
    found.sort();
    let mut total: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in found {
        if total <= limit {
            break;
        }
        debug!(path = %path.display(), "Old card file removed");
        fs::remove_file(path)?;
        total -= bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_comes_back_by_its_hash_unless_it_was_damaged() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::below(state.path());
        let hash = blake3::hash(b"tokenizer");

        let before = store.file(&hash);
        store.keep(b"tokenizer").unwrap();
        let kept = store.file(&hash);
        fs::write(store.path_of(&hash), b"tokenizes").unwrap();

        assert_eq!((before, kept), (None, Some(b"tokenizer".to_vec())));
        assert_eq!(store.file(&hash), None);
    }

    #[test]
    fn past_the_total_the_oldest_files_go() {
        let files = tempfile::tempdir().unwrap();
        for (name, age) in [("a", 3), ("b", 2), ("c", 1)] {
            fs::write(files.path().join(name), [0; 10]).unwrap();
            let file = File::options().write(true).open(files.path().join(name));
            let then = SystemTime::now() - Duration::from_secs(age);
            file.unwrap().set_modified(then).unwrap();
        }

        shrink(files.path(), 20).unwrap();

        assert!(!files.path().join("a").exists());
        assert!(files.path().join("b").exists() && files.path().join("c").exists());
    }
}
