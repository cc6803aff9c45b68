//! An emulated site.
