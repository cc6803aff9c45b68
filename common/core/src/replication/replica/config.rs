//! What a replica accepts.

use core::time::Duration;
use std::sync::Arc;

use crate::filter::{Form, MixKey};

/// What a replica accepts.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The grid's keys: one, or two during a rotation.
    pub keys: Vec<Arc<MixKey>>,
    /// The form that is asked for; a filter is taken where a publisher has nothing else.
    pub form: Form,
    /// Most chunks of a table, at 32 KiB each, or 128 KiB in the exact form.
    pub max_chunks: u32,
    /// Most changes kept for chunks of a table that are to come, at 24 bytes each; past it the
    /// chunks come again.
    pub max_kept: usize,
    /// Most bytes of chunks kept that overtook their announcement; past it they come again.
    pub max_early_bytes: usize,
    /// Most source publishers of a pool.
    pub max_sources: usize,
    /// A transfer in which nothing arrives for so long is begun again.
    pub stall_after: Duration,
}

impl ReplicaConfig {
    /// The usual limits, with these keys.
    pub const fn with_keys(keys: Vec<Arc<MixKey>>) -> Self {
        Self {
            keys,
            form: Form::Filter,
            max_chunks: 8_192,
            max_kept: 1_000_000,
            max_early_bytes: 8 * 1024 * 1024,
            max_sources: 65_536,
            stall_after: Duration::from_secs(30),
        }
    }
}
