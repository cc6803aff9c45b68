//! What makes processes of one kind behave apart.

use std::hash::{BuildHasher, RandomState};

/// A number that differs from process to process, so that nodes do not draw alike.
pub fn luck() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
