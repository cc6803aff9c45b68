//! The edge's configuration.
