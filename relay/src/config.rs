//! The relay's configuration.
