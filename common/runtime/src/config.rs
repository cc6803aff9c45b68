//! Configuration: a TOML file, overridden by the environment.
//!
//! `KVGRID_EDGE_LISTEN__CLIENTS=127.0.0.1:8080` sets `clients` in table `[listen]`: the
//! daemon's prefix, then the path with `__` between its parts, in upper case. A value that reads
//! as a TOML boolean, number, array, inline table or quoted string is one, and anything else is
//! a string as it stands. Tables are parsed into a daemon's own type, which refuses unknown
//! keys; errors are one sentence that names the file's line, the key or the variable.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml::{Table, Value};

use kvgrid_certs::IdentityFiles;

/// A configuration is written by people; a larger file is another one.
const MAX_BYTES: u64 = 1 << 20;

/// Why a configuration cannot be used. Whoever wrote it is at fault; nothing was started.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{path}, line {line}: {reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where the fault is, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A key is unknown, missing or has a value it cannot have.
    #[error("{key}: {reason}")]
    Key {
        /// The key, with the tables it is in.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A variable of the environment does not name a key.
    #[error("{variable}: {reason}")]
    Variable {
        /// The variable.
        variable: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl ConfigError {
    /// For what a daemon finds out itself when it resolves a parsed configuration.
    pub fn key(key: &str, reason: &(impl ToString + ?Sized)) -> Self {
        Self::Key {
            key: key.to_owned(),
            reason: reason.to_string(),
        }
    }
}

/// The variables that override a daemon's configuration.
#[derive(Clone, Debug, Default)]
pub struct Environment(Vec<Override>);

#[derive(Clone, Debug)]
struct Override {
    variable: String,
    path: Vec<String>,
    value: String,
}

impl Environment {
    /// The process's own variables that begin with `prefix`, such as `KVGRID_EDGE_`.
    pub fn of_process(prefix: &str) -> Self {
        // What is not Unicode cannot be meant for us, and must not stop us.
        Self::from_pairs(
            prefix,
            std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            }),
        )
    }

    /// Those of `pairs` that begin with `prefix`.
    pub fn from_pairs(prefix: &str, pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let read = |(variable, value): (String, String)| {
            let path = variable.strip_prefix(prefix)?.to_lowercase();
            Some(Override {
                path: path.split("__").map(str::to_owned).collect(),
                variable,
                value,
            })
        };
        let mut overrides: Vec<_> = pairs.into_iter().filter_map(read).collect();
        // A whole table comes before its keys, whatever order the system gives them in.
        overrides.sort_by(|a, b| a.path.cmp(&b.path));
        Self(overrides)
    }
}

/// Reads a daemon's configuration from a file and the environment.
pub fn load<T: DeserializeOwned>(path: &Path, environment: &Environment) -> Result<T, ConfigError> {
    let failed = |error| ConfigError::Read {
        path: path.to_owned(),
        error,
    };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > MAX_BYTES {
        return Err(failed(std::io::Error::other("it has more than a megabyte")));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse(path, &text, environment)
}

/// Reads a configuration from a text; `path` is for errors alone.
pub fn parse<T: DeserializeOwned>(
    path: &Path,
    text: &str,
    environment: &Environment,
) -> Result<T, ConfigError> {
    let mut table: Table = toml::from_str(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        line: line_of(text, error.span().map_or(0, |span| span.start)),
        reason: one_line(error.message()),
    })?;
    for set in &environment.0 {
        set_key(&mut table, set)?;
    }
    table.try_into().map_err(|error| key_error(&error))
}

/// A configuration as TOML, with every value that holds: what `--check` prints.
pub fn render<T: Serialize>(config: &T) -> String {
    toml::to_string(config).expect("a configuration was read from TOML, so it can be written")
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|b| *b == b'\n').count()
}

fn one_line(text: &str) -> String {
    text.trim().replace('\n', ", ")
}

/// The TOML crate tells the key on a line of its own behind the message.
fn key_error(error: &toml::de::Error) -> ConfigError {
    let text = error.to_string();
    let (reason, key) = match text.trim().split_once("\nin `") {
        Some((reason, key)) => (reason, key.trim_end_matches('`')),
        None => (text.trim(), "top level"),
    };
    ConfigError::key(key, &one_line(reason))
}

fn set_key(table: &mut Table, set: &Override) -> Result<(), ConfigError> {
    let failed = |reason| ConfigError::Variable {
        variable: set.variable.clone(),
        reason,
    };
    let (key, tables) = set
        .path
        .split_last()
        .ok_or_else(|| failed("names no key"))?;
    if set.path.iter().any(String::is_empty) {
        return Err(failed("is written PREFIX_TABLE__KEY"));
    }
    let mut place = table;
    for name in tables {
        let entry = place
            .entry(name.clone())
            .or_insert_with(|| Value::Table(Table::new()));
        place = entry
            .as_table_mut()
            .ok_or_else(|| failed("names a key within what is no table"))?;
    }
    place.insert(key.clone(), value(&set.value));
    Ok(())
}

fn value(text: &str) -> Value {
    let typed = format!("value = {text}")
        .parse::<Table>()
        .ok()
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"));
    match typed {
        // A date is nothing a daemon has a key for; it is some string that looks like one.
        Some(Value::Datetime(_)) | None => Value::String(text.to_owned()),
        Some(value) => value,
    }
}

/// Table `[identity]`: where a node's certificate and keys are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityConfig {
    /// The node's certificate (PEM).
    pub cert: PathBuf,
    /// The node's private key (PEM).
    pub key: PathBuf,
    /// The authority's certificate (PEM).
    pub ca: PathBuf,
    /// The grid's key (32 bytes).
    pub grid_key: PathBuf,
}

impl IdentityConfig {
    /// The files that make up the node's credentials.
    pub fn files(&self) -> IdentityFiles {
        IdentityFiles {
            cert: self.cert.clone(),
            key: self.key.clone(),
            ca: self.ca.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
