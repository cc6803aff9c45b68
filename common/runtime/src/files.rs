//! Files that appear whole.

use std::fs;
use std::io;
use std::path::Path;

/// Writes a file beside its place and moves it there, so that no reader sees half of it.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    fs::write(&aside, content)
        .and_then(|()| fs::rename(&aside, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&aside);
        })
}
