//! The relay: a sidecar beside a frontend.

mod admin;
mod card;
mod config;
mod fetch;
mod frontend;
mod load;
mod metrics;
mod pools;
mod proxy;
mod publish;
mod sources;
