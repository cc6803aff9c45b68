//! The cuckoo filter of a pool's chain hashes: what an edge asks "is this block cached there?".
//!
//! A [`Class`] is all that the filter keeps of a hash: a chunk, a pair of buckets and a 16-bit
//! fingerprint, taken from a keyed mix ([`MixKey`]). The filter is a *multiset* of classes, so
//! that two hashes of one class can be removed one by one.
//!
//! In its exact [`Form`] the same table keeps all 64 bits of the mix: a class is then a mixed
//! hash, which stands where its fingerprint would. Everything else is one code for both: the
//! search, the protocol of readers and writer, chunks, digests, and the coding on the wire.
//!
//! One [`Writer`] owns the table; any number of [`Reader`]s look into it without waiting.
//! **Invariant:** a reader never misses a class that was in the table throughout its look,
//! wherever the writer moves it meanwhile (the protocol stands in `table.rs`).
//!
//! A table never grows in place: another [`Geometry`] is another table, elsewhere.
//! The layout inside a table is nobody's business: two tables with the same classes have the
//! same digests, however they came about.

mod batch;
mod bucket;
mod class;
pub mod codec;
mod geometry;
mod key;
mod path;
pub mod prefix_search;
mod replace;
mod store;
mod table;
mod words;
mod writer;

pub use class::Class;
pub use codec::{CodecError, decode_chunk, decode_classes, encode_classes};
pub use geometry::{Form, Geometry, GeometryError, Header};
pub use key::MixKey;
pub use prefix_search::{Target, confirm, depths};
pub use replace::ReplaceError;
pub use table::Reader;
pub use words::{Std, Word, Words};
pub use writer::{InsertError, Writer};

#[cfg(test)]
mod tests;
