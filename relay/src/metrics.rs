//! The relay's metrics.
