//! The number of a relay's life, kept from one to the next.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kvgrid_runtime::write_whole;
use thiserror::Error;

/// Why the number can't be kept. The system or the operator is at fault.
#[derive(Debug, Error)]
pub(crate) enum GenerationError {
    /// The file or its directory can't be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file holds something else.
    #[error("{0} holds no number: remove it if nothing else needs it")]
    NoNumber(PathBuf),
    /// There is no higher number, which only a meddled-with file brings about.
    #[error("{0} holds the last of all numbers: remove it")]
    Last(PathBuf),
}

/// A file with the number of this life. Others take a relay for restarted when its number is
/// higher than before, and for an old rumour when it is lower.
#[derive(Debug)]
pub(crate) struct GenerationFile {
    path: PathBuf,
    number: u64,
}

impl GenerationFile {
    /// Begins a new life: the number after the last one, kept at once.
    pub(crate) fn next(path: &Path) -> Result<Self, GenerationError> {
        let failed = |error| GenerationError::File {
            path: path.to_owned(),
            error,
        };
        let last = match fs::read_to_string(path) {
            Ok(text) => text
                .trim()
                .parse()
                .map_err(|_| GenerationError::NoNumber(path.to_owned()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0_u64,
            Err(error) => return Err(failed(error)),
        };
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(failed)?;
        }
        let next = last.checked_add(1);
        let mut file = Self {
            path: path.to_owned(),
            number: last,
        };
        file.keep(next.ok_or_else(|| GenerationError::Last(path.to_owned()))?)?;
        Ok(file)
    }

    /// The number of this life.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Goes on with a higher number.
    pub(crate) fn keep(&mut self, number: u64) -> Result<(), GenerationError> {
        self.number = number;
        write_whole(&self.path, format!("{number}\n").as_bytes()).map_err(|error| {
            GenerationError::File {
                path: self.path.clone(),
                error,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_life_has_a_higher_number_than_all_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/generation");

        assert_eq!(GenerationFile::next(&path).unwrap().number(), 1);
        GenerationFile::next(&path).unwrap().keep(9).unwrap();
        assert_eq!(GenerationFile::next(&path).unwrap().number(), 10);
    }

    #[test]
    fn what_cannot_be_kept_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("generation");
        fs::write(&path, "seven").unwrap();
        let file = dir.path().join("a file");
        fs::write(&file, "").unwrap();

        let error = GenerationFile::next(&path).unwrap_err().to_string();
        assert!(error.ends_with("holds no number: remove it if nothing else needs it"));
        assert!(GenerationFile::next(&file.join("generation")).is_err());
        fs::write(&path, u64::MAX.to_string()).unwrap();
        assert!(matches!(
            GenerationFile::next(&path),
            Err(GenerationError::Last(_))
        ));
    }
}
