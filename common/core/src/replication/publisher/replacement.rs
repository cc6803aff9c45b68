//! Tables that take the place of those that have become too small.

use std::sync::Arc;

use crate::block::ChainHash;
use crate::filter::{Geometry, Header, MixKey, Writer};

/// A table built from a pool's live hashes, to take the place of one that is too small.
#[derive(Debug)]
pub struct Replacement {
    pub(super) key: Arc<MixKey>,
    pub(super) writer: Writer,
}

impl Replacement {
    /// An empty table.
    pub fn empty(key: Arc<MixKey>, geometry: Geometry) -> Self {
        Self {
            key,
            writer: Writer::new(geometry),
        }
    }

    /// A table of these hashes, larger than `geometry` if they would crowd it.
    pub fn build<I>(key: Arc<MixKey>, geometry: Geometry, live: I) -> Self
    where
        I: IntoIterator<Item = ChainHash, IntoIter: Clone>,
    {
        let live = live.into_iter();
        let mut geometry = geometry;
        loop {
            let mut writer = Writer::new(geometry);
            let full = live.clone().any(|chain| {
                let class = geometry.class(&key, chain);
                writer.is_crowded() || writer.insert(class).is_err()
            });
            let next = larger(&geometry, geometry.slots());
            if !full || next == geometry {
                return Self { key, writer };
            }
            geometry = next;
        }
    }

    /// The size of the table.
    pub fn geometry(&self) -> &Geometry {
        self.writer.geometry()
    }
}

/// A geometry with room for a quarter more blocks than there are, and at least that much
/// larger than this one.
pub(super) fn larger(geometry: &Geometry, blocks: u64) -> Geometry {
    let chunks = u64::from(geometry.chunks());
    let capacity = geometry.soft_capacity() / chunks;
    let wanted = (blocks + blocks / 4).max((chunks + chunks.div_ceil(4)) * capacity);
    let chunks = wanted.div_ceil(capacity.max(1));
    let header = Header {
        chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
        ..geometry.header()
    };
    Geometry::from_header(header).unwrap_or(*geometry)
}
