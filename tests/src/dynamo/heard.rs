//! The messages of Dynamo's event plane, as the tests' witness reads them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde::Deserialize;

/// A rank of a worker, as Dynamo names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The worker's id.
    pub worker: u64,
    /// The rank's number.
    pub rank: u32,
}

/// What happened to a block, and where: engines change one block after the other, and tell
/// several in one event.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// Where.
    pub place: Place,
    change: Change,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Stored(u64),
    Removed(u64),
    Cleared,
}

/// The names of the blocks that each rank holds.
#[derive(Clone, Debug, Default)]
pub struct Held {
    places: BTreeMap<Place, BTreeSet<u64>>,
}

impl Heard {
    /// Whether a block of this name was stored.
    pub(super) fn stores(&self, name: u64) -> bool {
        matches!(self.change, Change::Stored(stored) if stored == name)
    }
}

impl Held {
    /// It has happened.
    pub fn apply(&mut self, heard: &Heard) {
        let held = self.places.entry(heard.place).or_default();
        match &heard.change {
            Change::Stored(name) => {
                held.insert(*name);
            }
            Change::Removed(name) => {
                held.remove(name);
            }
            Change::Cleared => held.clear(),
        }
    }

    /// What is held at a place.
    pub fn at(&self, place: Place) -> BTreeSet<u64> {
        self.places.get(&place).cloned().unwrap_or_default()
    }

    /// What is held at each place of which something was heard.
    pub fn all(&self) -> impl Iterator<Item = &BTreeSet<u64>> {
        self.places.values()
    }
}

#[derive(Deserialize)]
pub(super) struct Envelope {
    pub(super) publisher_id: u64,
    pub(super) sequence: u64,
    payload: Bytes,
}

/// Binary data; serde's own vectors are lists.
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        from.deserialize_bytes(Visitor)
    }
}

#[derive(Deserialize)]
struct RouterEvent {
    worker_id: u64,
    storage_tier: Option<String>,
    event: Event,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    dp_rank: u32,
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Data {
    Stored { blocks: Vec<Block> },
    Removed { block_hashes: Vec<u64> },
    Cleared,
}

#[derive(Deserialize)]
struct Block {
    block_hash: u64,
}

impl Envelope {
    /// What happened on devices.
    pub(super) fn events(&self) -> Result<Vec<Heard>> {
        let events: Vec<RouterEvent> = rmp_serde::from_slice(&self.payload.0)?;
        let of_device = |event: &RouterEvent| {
            let tier = event.storage_tier.as_deref();
            tier.is_none_or(|tier| tier == "device")
        };
        let heard = events.into_iter().filter(of_device).flat_map(|event| {
            let place = Place {
                worker: event.worker_id,
                rank: event.event.dp_rank,
            };
            let changes: Vec<Change> = match event.event.data {
                Data::Stored { blocks } => {
                    let names = blocks.into_iter().map(|block| block.block_hash);
                    names.map(Change::Stored).collect()
                }
                Data::Removed { block_hashes } => {
                    block_hashes.into_iter().map(Change::Removed).collect()
                }
                Data::Cleared => vec![Change::Cleared],
            };
            changes
                .into_iter()
                .map(move |change| Heard { place, change })
        });
        Ok(heard.collect())
    }
}
