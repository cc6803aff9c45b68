//! The edge: the router in a region.

mod admin;
mod api;
mod config;
mod forward;
mod metrics;
mod route;
mod subscribe;
