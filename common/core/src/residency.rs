//! Exact ownership of blocks at the relay.
