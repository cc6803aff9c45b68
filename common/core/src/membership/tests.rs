//! Meshes of relays over a simulated network that delays, loses and separates.

mod hostile;
mod mesh;
mod scenarios;
mod world;

pub(super) use world::member;
