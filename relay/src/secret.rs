//! What must not be printed: it stands in files or in the environment, and the configuration
//! says only where. It is read anew whenever it is needed, so that it may change.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", remote = "Self")]
pub(crate) enum Secret {
    /// In a file, alone; the line's end is none of it.
    File(PathBuf),
    /// In a variable of the environment.
    Env(String),
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Place)
    }
}

/// Reads where a secret is. Who writes the secret itself there isn't told which: errors are
/// printed.
struct Place;

impl<'de> Visitor<'de> for Place {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{ file = \"PATH\" } or { env = \"NAME\" }")
    }

    fn visit_str<E: serde::de::Error>(self, _text: &str) -> Result<Secret, E> {
        Err(E::custom(
            "a secret does not stand in the configuration: { file = \"PATH\" } or { env = \"NAME\" }",
        ))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Secret, A::Error> {
        Secret::deserialize(MapAccessDeserializer::new(map)).map_err(A::Error::custom)
    }
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

    #[test]
    fn a_secret_that_stands_in_the_configuration_is_not_printed() {
        #[derive(Debug, Deserialize)]
        struct Table {
            password: Secret,
        }
        let read = |text: &str| toml::from_str::<Table>(text);

        let place = read("password = { env = \"PASSWORD\" }").unwrap().password;
        assert_eq!(place, Secret::Env("PASSWORD".into()));
        for text in ["password = \"hunter2\"", "password = { hunter2 = 1 }"] {
            let error = read(text).unwrap_err();
            let told = error.message();
            assert!(told.contains("file"), "{told}");
            assert!(text.contains('{') || !told.contains("hunter2"), "{told}");
        }
    }

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
