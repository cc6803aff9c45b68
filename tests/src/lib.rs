//! Emulated sites and links, the demo, and a harness for tests of the whole grid.

pub mod bench;
pub mod client;
pub mod demo;
pub mod dynamo;
pub mod emulator;
pub mod harness;
pub mod link;
mod lock;
pub mod netns;
pub mod node;
mod skip;
