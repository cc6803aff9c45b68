//! Locks among tests, also across processes: a lock ends with its file, at the latest when
//! its process is killed.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Waits until no other test needs the machine to itself, and blocks the thread meanwhile.
pub(crate) fn machine() -> Result<File> {
    file(&target_dir()?.join("kvgrid-tests.lock"))
}

/// Opens and locks a file.
pub(crate) fn file(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("no lock file {}", path.display()))?;
    file.lock()
        .with_context(|| format!("no lock on {}", path.display()))?;
    Ok(file)
}

/// Cargo's target directory, found from the running test's own path.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("the running program has no path")?;
    exe.ancestors()
        .find(|dir| dir.join("CACHEDIR.TAG").is_file())
        .map(Path::to_path_buf)
        .with_context(|| format!("no target directory above {}", exe.display()))
}
