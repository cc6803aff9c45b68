//! Files that are whole or not there: written aside, then put in place in one step.
//!
//! Without [`Overwrite::Force`] the step is a hard link, which fails when the name is taken,
//! so two runs at once cannot destroy each other's keys.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// PEM bundles and keys are small; a larger file is a mistake.
const MAX_BYTES: u64 = 1 << 20;

/// What a file may do to one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Nothing: writing fails.
    Refuse,
    /// Take its place.
    Force,
}

/// Why a file cannot be read or written. A file that was there stays as it was.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file is far larger than it can be.
    #[error("{0} has more than a megabyte: it is no key or certificate")]
    TooLarge(PathBuf),
    /// The file or its directory cannot be written.
    #[error("{path} cannot be written: {error}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file of this name is there, and was not to be replaced.
    #[error("{0} exists; --force replaces it")]
    Exists(PathBuf),
}

/// Who may read a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    Owner,
    Everyone,
}

/// A file to be.
pub(crate) struct NewFile<'a> {
    pub(crate) path: PathBuf,
    pub(crate) content: &'a [u8],
    pub(crate) readers: Readers,
}

/// Reads a small file whole.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |error| FileError::Read {
        path: path.to_owned(),
        error,
    };
    let mut content = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(failed)?;
    if content.len() as u64 > MAX_BYTES {
        return Err(FileError::TooLarge(path.to_owned()));
    }
    Ok(content)
}

/// Makes a directory, and those above it, if it is not there.
pub(crate) fn make_directory(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(|error| FileError::Write {
        path: path.to_owned(),
        error,
    })
}

/// Writes all files, or none when one of the names is taken or one cannot be written aside.
pub(crate) fn write_all(files: &[NewFile<'_>], overwrite: Overwrite) -> Result<(), FileError> {
    if overwrite == Overwrite::Refuse
        && let Some(taken) = files.iter().find(|file| file.path.exists())
    {
        return Err(FileError::Exists(taken.path.clone()));
    }
    let aside: Vec<Aside> = files.iter().map(Aside::write).collect::<Result<_, _>>()?;
    for (file, aside) in files.iter().zip(aside) {
        aside.put_in_place(&file.path, overwrite)?;
    }
    Ok(())
}

/// A file written under another name, removed again unless it was put in place.
struct Aside(PathBuf);

impl Aside {
    fn write(file: &NewFile<'_>) -> Result<Self, FileError> {
        let failed = |error| FileError::Write {
            path: file.path.clone(),
            error,
        };
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        let path = file
            .path
            .with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let mode = match file.readers {
            Readers::Owner => 0o600,
            Readers::Everyone => 0o644,
        };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let mut opened = options.open(&path).map_err(failed)?;
        let aside = Self(path);
        opened.write_all(file.content).map_err(failed)?;
        opened.sync_all().map_err(failed)?;
        Ok(aside)
    }

    fn put_in_place(self, path: &Path, overwrite: Overwrite) -> Result<(), FileError> {
        let done = match overwrite {
            Overwrite::Refuse => fs::hard_link(&self.0, path),
            Overwrite::Force => fs::rename(&self.0, path),
        };
        done.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => FileError::Exists(path.to_owned()),
            _ => FileError::Write {
                path: path.to_owned(),
                error,
            },
        })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // After a rename it is gone; otherwise a leftover under a dotted name does no harm.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(path: PathBuf, content: &[u8]) -> NewFile<'_> {
        NewFile {
            path,
            content,
            readers: Readers::Owner,
        }
    }

    #[test]
    fn one_taken_name_keeps_all_files_from_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let (free, taken) = (dir.path().join("free"), dir.path().join("taken"));
        fs::write(&taken, "old").unwrap();

        let files = [file(free.clone(), b"new"), file(taken.clone(), b"new")];
        let error = write_all(&files, Overwrite::Refuse).unwrap_err();

        assert!(matches!(error, FileError::Exists(path) if path == taken));
        assert!(!free.exists());
        assert_eq!(fs::read(&taken).unwrap(), b"old");
    }

    #[test]
    fn a_replaced_file_gets_the_new_content_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();

        write_all(&[file(path.clone(), b"new")], Overwrite::Force).unwrap();

        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn nothing_is_left_beside_the_files() {
        let dir = tempfile::tempdir().unwrap();

        write_all(&[file(dir.path().join("key"), b"new")], Overwrite::Refuse).unwrap();

        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_huge_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("huge");
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();

        assert!(matches!(read(&path), Err(FileError::TooLarge(_))));
    }
}
