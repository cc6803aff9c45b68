//! The client-facing API.
