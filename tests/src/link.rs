//! Emulated links.
