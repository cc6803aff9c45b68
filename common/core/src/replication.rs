//! Replication of a pool's filter from a relay to edges.
//!
//! A [`Publisher`] owns the truth of one pool and numbers its changes; any number of
//! subscribers pull from it, each at its own pace. A [`Replica`] at an edge follows one
//! publisher at a time. Both are pure: the shells carry [`Frame`]s, [`Chunk`]s and
//! [`Request`]s between them and tell the time.
//!
//! ```text
//! Empty --connect--> Syncing --whole--> Live <--whole-- Stale
//!                                        |                ^
//!                                        +-- gap, digest, disconnect, new epoch
//! ```
//!
//! **Invariants:** a replica that was whole once never becomes empty: it goes stale, answers
//! from what it has, and is replaced in one swap or repaired chunk by chunk. A replica that
//! reports a source position as applied finds everything published up to that position.
//! A subscriber costs the publisher no memory that grows with how slow it is.

mod message;
mod publisher;
mod replica;
mod view;

pub use message::{
    Announced, Begin, Chunk, Completeness, Delta, Digests, End, Epoch, Frame, Request, Resume, Seq,
    Status, SubscriptionId,
};
pub use publisher::{Publisher, PublisherConfig, Replacement, Subscription};
pub use replica::{Replica, ReplicaConfig, ReplicaError};
pub use view::{ReplicaFilter, ReplicaState, ReplicaView, Syncing};

#[cfg(test)]
mod tests;
