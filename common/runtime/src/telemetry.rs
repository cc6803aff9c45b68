//! Logs: to standard error, as text or as JSON lines.
//!
//! `KVGRID_LOG` filters them (`info` if it is not set, or `kvgrid_edge=debug,info`), and
//! `KVGRID_LOG_FORMAT=json` makes them machine-readable.

use std::io::{self, IsTerminal};

use thiserror::Error;
use tracing_subscriber::EnvFilter;

/// The variable that filters logs.
pub const FILTER: &str = "KVGRID_LOG";
/// The variable that says how logs look.
pub const FORMAT: &str = "KVGRID_LOG_FORMAT";

/// Why logs cannot be set up. The environment is at fault; nothing was changed.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The filter has an unknown level or a malformed directive.
    #[error("KVGRID_LOG: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// The format is neither of the two.
    #[error("KVGRID_LOG_FORMAT: {0:?} is neither text nor json")]
    Format(String),
}

/// Sends logs to standard error from now on. A process that has set them up before keeps that.
pub fn init() -> Result<(), TelemetryError> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let filter = filter(&variable(FILTER))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // An error here means that a subscriber is set, as in tests with several nodes.
    match variable(FORMAT).as_str() {
        "" | "text" => {
            let _ = builder.with_ansi(io::stderr().is_terminal()).try_init();
        }
        "json" => {
            let _ = builder.json().flatten_event(true).try_init();
        }
        other => return Err(TelemetryError::Format(other.to_owned())),
    }
    Ok(())
}

fn filter(text: &str) -> Result<EnvFilter, TelemetryError> {
    let text = if text.is_empty() { "info" } else { text };
    Ok(EnvFilter::builder().parse(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_may_be_left_out_but_not_be_wrong() {
        assert_eq!(filter("").unwrap().to_string(), "info");
        assert!(filter("kvgrid_edge=debug,warn").is_ok());
        let error = filter("kvgrid_edge=loud").unwrap_err().to_string();
        assert!(error.starts_with("KVGRID_LOG: "), "{error}");
    }
}
