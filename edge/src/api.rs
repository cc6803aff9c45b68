//! The client-facing API.

mod error;
mod events;
mod headers;
