//! What can be wrong with a message whose frame was sound.

use std::fmt::Display;

use kvgrid_core::Instant;
use thiserror::Error;

/// Why a message means nothing to the core. The sender is at fault; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConvertError {
    /// A field that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field has a value that it can't have.
    #[error("{field}: {why}")]
    Invalid {
        /// The field, with its message.
        field: &'static str,
        /// What is wrong with the value.
        why: String,
    },
}

impl ConvertError {
    /// A field with a value that it can't have, and why.
    pub(crate) fn invalid(field: &'static str, why: impl Display) -> Self {
        let why = why.to_string();
        Self::Invalid { field, why }
    }
}

/// The value of a field that must be there.
pub(crate) fn required<T>(value: Option<T>, field: &'static str) -> Result<T, ConvertError> {
    value.ok_or(ConvertError::Missing(field))
}

/// How old something of this time is, in microseconds.
pub(crate) fn age(at: Instant, now: Instant) -> u64 {
    let age = now.saturating_since(at);
    u64::try_from(age.as_micros()).unwrap_or(u64::MAX)
}

/// When something was that is so old.
pub(crate) fn before(now: Instant, age_micros: u64) -> Instant {
    Instant::from_micros(now.as_micros().saturating_sub(age_micros))
}
