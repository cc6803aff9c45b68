//! The shell that relay and edge share.

pub mod frames;
