//! The grid's key: 32 random bytes that mix block hashes before they enter a filter.

use std::path::{Path, PathBuf};

use rustls::crypto::ring;
use thiserror::Error;

use crate::files::{self, FileError};

/// Why there is no grid key.
#[derive(Debug, Error)]
pub enum GridKeyError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has another size than a key.
    #[error("{path} has {length} bytes, and a grid key has 32")]
    Length {
        /// The file.
        path: PathBuf,
        /// Its size.
        length: usize,
    },
    /// The system has no random bytes to give.
    #[error("no random bytes for a key")]
    Random,
}

/// Reads the key that `kvgrid-certs init` made.
pub fn read_grid_key(path: &Path) -> Result<[u8; 32], GridKeyError> {
    let content = files::read(path)?;
    let length = content.len();
    content.try_into().map_err(|_| GridKeyError::Length {
        path: path.to_owned(),
        length,
    })
}

/// Makes a new key.
pub fn generate_grid_key() -> Result<[u8; 32], GridKeyError> {
    let mut key = [0; 32];
    ring::default_provider()
        .secure_random
        .fill(&mut key)
        .map_err(|_| GridKeyError::Random)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_another_length_is_refused_by_name_and_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grid.key");
        std::fs::write(&path, [0; 31]).unwrap();

        let error = read_grid_key(&path).unwrap_err().to_string();

        assert!(
            error.ends_with("grid.key has 31 bytes, and a grid key has 32"),
            "{error}"
        );
    }

    #[test]
    fn two_keys_differ() {
        assert_ne!(generate_grid_key().unwrap(), generate_grid_key().unwrap());
    }
}
