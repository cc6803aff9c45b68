//! What must not be printed: it stands in files or in the environment, and the configuration
//! says only where. It is read anew whenever it is needed, so that it may change.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Secret {
    /// In a file, alone; the line's end is none of it.
    File(PathBuf),
    /// In a variable of the environment.
    Env(String),
}

/// Why a secret can't be had. The operator is at fault.
#[derive(Debug, Error)]
pub(crate) enum SecretError {
    /// The file can't be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The variable isn't set, or isn't text.
    #[error("the variable {0} isn't set")]
    Env(String),
}

impl Secret {
    /// Reads it.
    pub(crate) async fn read(&self) -> Result<String, SecretError> {
        match self {
            Self::File(path) => {
                let bytes = read(path).await?;
                let text = String::from_utf8(bytes).map_err(|error| SecretError::File {
                    path: path.clone(),
                    error: std::io::Error::other(error.utf8_error()),
                })?;
                Ok(text.trim_end_matches(['\n', '\r']).to_owned())
            }
            Self::Env(name) => std::env::var(name).map_err(|_| SecretError::Env(name.clone())),
        }
    }
}

/// Files that TLS towards a server needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// Certificates of those who may certify the server, PEM.
    pub(crate) ca: PathBuf,
    /// Certificate and key to show to the server, PEM.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Reads a file, or says which one can't be read.
pub(crate) async fn read(path: &Path) -> Result<Vec<u8>, SecretError> {
    let error = |error| SecretError::File {
        path: path.to_owned(),
        error,
    };
    tokio::fs::read(path).await.map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_secret_in_a_file_ends_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "s3cret \n").unwrap();

        let secret = Secret::File(file.path().to_owned()).read().await;

        assert_eq!(secret.unwrap(), "s3cret ");
    }

    #[tokio::test]
    async fn a_secret_that_is_not_there_is_named_by_its_place() {
        let file = Secret::File("/nowhere/password".into()).read().await;
        let variable = Secret::Env("KVGRID_NO_SUCH_VARIABLE".into()).read().await;

        let file = file.unwrap_err().to_string();
        assert!(file.starts_with("/nowhere/password: "), "{file}");
        assert_eq!(
            variable.unwrap_err().to_string(),
            "the variable KVGRID_NO_SUCH_VARIABLE isn't set"
        );
    }
}
