//! The edge's metrics.
