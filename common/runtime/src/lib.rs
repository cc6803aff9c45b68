//! The shell that relay and edge share: everything around the core that touches the world.
//!
//! [`Node`] is a QUIC endpoint on one UDP socket, with mutual TLS both ways. [`config`] reads
//! a daemon's file and environment, [`args`] its command line, [`telemetry`] sets up its logs.
//! [`Tasks`] owns what it runs and stops it, [`admin`] answers for its health, [`http`] serves
//! HTTP/1.1, [`frames`] and [`stream`] carry messages and bodies over QUIC, and [`Clock`] is the
//! core's time; [`HugePages`] is the programs' allocator. Nothing here belongs to relay or edge alone.

pub mod admin;
pub mod args;
mod clock;
pub mod config;
mod files;
pub mod frames;
pub mod headers;
pub mod http;
mod luck;
mod memory;
mod node;
mod ready;
pub mod stream;
mod tasks;
pub mod telemetry;

pub use clock::Clock;
pub use files::write_whole;
pub use luck::luck;
pub use memory::HugePages;
pub use node::{
    BindError, CloseReason, Congestion, ConnectError, Expected, FoundRelay, Node, NodeConfig,
    PeerConnection, PeerOfError, Protocol, Seed, TransportConfig, WrapSocket, resolve, seek,
};
pub use ready::ReadyFile;
pub use tasks::{Tasks, Termination};
