//! Replication of a pool's filter from a relay to edges.
