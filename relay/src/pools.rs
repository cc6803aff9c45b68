//! Pools: residency feeding publishers.

mod pool;
