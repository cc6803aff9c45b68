//! Who relays and edges are: identities, the authority that certifies them, and the checks.
//!
//! Every node has one certificate with exactly one SPIFFE URI, whose path says its role, its
//! names and a site's labels ([`Identity`]). [`CertAuthority`] makes them, in memory or in a
//! directory; [`NodeCredentials`] holds a node's own and builds rustls configurations that
//! accept only the right role of the right trust domain, under TLS 1.3 alone. Host names play
//! no part: nodes find each other by address and know each other by certificate.

mod authority;
mod credentials;
mod directory;
mod files;
mod grid_key;
mod identity;
mod inspect;
mod verify;

pub use authority::{AuthorityError, CertAuthority, Leaf, Validity};
pub use credentials::{CredentialsError, IdentityFiles, NodeCredentials, Purpose, TLS_NAME};
pub use directory::{DirectoryError, LeafPaths, init, issue, open_authority};
pub use files::{FileError, Overwrite};
pub use grid_key::{GridKeyError, generate_grid_key, read_grid_key};
pub use identity::{Identity, IdentityError, Role, TrustDomain};
pub use inspect::{Certificate, InspectError, inspect_file};
pub use verify::{Accepts, Peer, PeerError, RoleKind, peer_of};
