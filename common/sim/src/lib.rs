//! A pure model of an inference site and of the links between sites.
//!
//! Like the core, nothing here performs I/O, reads a clock, starts a thread or draws from a
//! global random generator: requests, packets and time come in, events and due times come
//! out. The emulated site and the emulated links of the tests are shells around these types.

pub mod cache;
pub mod delay_line;
pub mod link;
pub mod request;
pub mod site;
pub mod timing;

pub use delay_line::DelayLine;
pub use link::{Fate, Link, LinkConfig};
pub use request::{Output, Refusal, Request, RequestId, SiteLoad, Usage};
pub use site::{Site, SiteConfig};
pub use timing::Timing;
