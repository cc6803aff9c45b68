//! kvgrid's pure core: what is cached where, and where a request should go.
//!
//! Nothing here performs I/O, reads a clock, starts a thread or draws from a global random
//! generator. Time, randomness and messages are parameters; effects are return values. The
//! shells around it (relay, edge) wait, feed, drain and publish.

pub mod backoff;
pub mod block;
pub mod breaker;
pub mod ckf;
pub mod event;
pub mod eviction;
pub mod filter;
pub mod id;
pub mod label;
pub mod load;
pub mod membership;
pub mod parity;
pub mod prediction;
pub mod replication;
pub mod residency;
pub mod routing;
pub mod time;
pub mod view;

pub use id::{EdgeId, ModelId, ModelName, NameError, PoolId, Region, RelayId, SiteId};
pub use time::Instant;
