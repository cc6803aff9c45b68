//! Pools: residency feeding publishers.
