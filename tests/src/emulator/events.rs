//! KV events as engines encode them.
//!
//! A batch is the MessagePack array `[time, [events], rank]`. An event is a map with a
//! `type` (newer vLLM and SGLang) or an array whose first element is the type (older ones).

use std::collections::BTreeMap;
use std::sync::Arc;

use kvgrid_core::event::EngineHash;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};

/// How an event is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventForm {
    /// A map with named fields.
    Map,
    /// An array with a field at each position.
    Array,
}

/// An event of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// Blocks were stored, in the order of their chain.
    Stored {
        /// The block before the first.
        parent: Option<EngineHash>,
        /// The engine's names.
        blocks: Vec<EngineHash>,
        /// The blocks' tokens.
        tokens: Vec<u32>,
        /// Whose they are.
        namespace: Option<Arc<str>>,
    },
    /// Blocks were evicted.
    Removed {
        /// The engine's names.
        blocks: Vec<EngineHash>,
    },
}

/// Encodes a batch. `time` is in seconds since 1970.
pub fn encode(events: &[EngineEvent], form: EventForm, block_size: u32, time: f64) -> Vec<u8> {
    let events: Vec<Encoded<'_>> = events
        .iter()
        .map(|event| Encoded {
            event,
            form,
            block_size,
        })
        .collect();
    rmp_serde::to_vec(&(time, events, 0u32)).expect("numbers and texts always encode")
}

struct Encoded<'a> {
    event: &'a EngineEvent,
    form: EventForm,
    block_size: u32,
}

impl Serialize for Encoded<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.form {
            EventForm::Map => self.serialize_map(serializer),
            EventForm::Array => self.serialize_array(serializer),
        }
    }
}

impl Encoded<'_> {
    fn serialize_map<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map;
        match self.event {
            EngineEvent::Stored {
                parent,
                blocks,
                tokens,
                namespace,
            } => {
                map = serializer.serialize_map(Some(6 + usize::from(namespace.is_some())))?;
                map.serialize_entry("type", "BlockStored")?;
                map.serialize_entry("block_hashes", &names(blocks))?;
                map.serialize_entry("parent_block_hash", &parent.map(|parent| parent.0))?;
                map.serialize_entry("token_ids", tokens)?;
                map.serialize_entry("block_size", &self.block_size)?;
                if let Some(namespace) = namespace {
                    map.serialize_entry("cache_salt", &**namespace)?;
                }
            }
            EngineEvent::Removed { blocks } => {
                map = serializer.serialize_map(Some(3))?;
                map.serialize_entry("type", "BlockRemoved")?;
                map.serialize_entry("block_hashes", &names(blocks))?;
            }
        }
        map.serialize_entry("group_idx", &0)?;
        map.end()
    }

    fn serialize_array<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const ABSENT: Option<u32> = None;
        let mut array;
        match self.event {
            EngineEvent::Stored {
                parent,
                blocks,
                tokens,
                namespace,
            } => {
                array = serializer.serialize_seq(Some(7 + usize::from(namespace.is_some())))?;
                array.serialize_element("BlockStored")?;
                array.serialize_element(&names(blocks))?;
                array.serialize_element(&parent.map(|parent| parent.0))?;
                array.serialize_element(tokens)?;
                array.serialize_element(&self.block_size)?;
                // lora_id, medium
                array.serialize_element(&ABSENT)?;
                array.serialize_element("GPU")?;
                if let Some(namespace) = namespace {
                    // SGLang's array form has a map of such things where vLLM's has lora_name.
                    array.serialize_element(&BTreeMap::from([("cache_salt", &**namespace)]))?;
                }
            }
            EngineEvent::Removed { blocks } => {
                array = serializer.serialize_seq(Some(3))?;
                array.serialize_element("BlockRemoved")?;
                array.serialize_element(&names(blocks))?;
                array.serialize_element("GPU")?;
            }
        }
        array.end()
    }
}

fn names(blocks: &[EngineHash]) -> Vec<u64> {
    blocks.iter().map(|block| block.0).collect()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use kvgrid_core::block::{HashFormat, HashSeed, block_hashes};
    use kvgrid_core::event::engine::{Decoder, DecoderConfig};
    use kvgrid_core::event::{KvEvent, Tier};

    use super::*;

    fn stored() -> EngineEvent {
        EngineEvent::Stored {
            parent: Some(EngineHash(7)),
            blocks: vec![EngineHash(u64::MAX)],
            tokens: vec![1, 2],
            namespace: None,
        }
    }

    fn as_json(bytes: &[u8]) -> serde_json::Value {
        rmp_serde::from_slice(bytes).unwrap()
    }

    #[test]
    fn a_map_batch_looks_like_the_captured_one() {
        let removed = EngineEvent::Removed {
            blocks: vec![EngineHash(7)],
        };

        let bytes = encode(&[stored(), removed], EventForm::Map, 2, 1.5);

        assert_eq!(
            as_json(&bytes),
            serde_json::json!([1.5, [
                {"type": "BlockStored", "block_hashes": [u64::MAX], "parent_block_hash": 7,
                 "token_ids": [1, 2], "block_size": 2, "group_idx": 0},
                {"type": "BlockRemoved", "block_hashes": [7], "group_idx": 0},
            ], 0])
        );
    }

    #[test]
    fn a_relay_reads_both_forms_alike_salted_or_not() {
        let config = DecoderConfig {
            block_size: NonZeroU32::new(2).unwrap(),
            format: HashFormat::Standard,
            max_salted: 10,
        };
        for namespace in [None, Some(Arc::from("tenant-a"))] {
            let stored = EngineEvent::Stored {
                parent: None,
                blocks: vec![EngineHash(7), EngineHash(9)],
                tokens: vec![1, 2, 3, 4],
                namespace: namespace.clone(),
            };
            let seed = HashSeed::new(None, namespace.as_deref());
            let local = block_hashes(&[1, 2, 3, 4], config.block_size, config.format, seed);
            for form in [EventForm::Map, EventForm::Array] {
                let bytes = encode(std::slice::from_ref(&stored), form, 2, 1.5);

                let batch = Decoder::new(config).decode(0, &bytes).unwrap();

                let KvEvent::Stored {
                    parent,
                    tier,
                    blocks,
                } = &batch.events[0]
                else {
                    panic!("{batch:?}");
                };
                assert_eq!((*parent, *tier), (None, Tier::Device));
                assert_eq!(
                    blocks.iter().map(|block| block.local).collect::<Vec<_>>(),
                    local
                );
                assert_eq!(blocks[1].engine, EngineHash(9));
            }
        }
    }

    #[test]
    fn an_array_event_has_its_fields_in_the_engines_order() {
        let bytes = encode(&[stored()], EventForm::Array, 2, 1.5);

        assert_eq!(
            as_json(&bytes),
            serde_json::json!([
                1.5,
                [["BlockStored", [u64::MAX], 7, [1, 2], 2, null, "GPU"],],
                0
            ])
        );
    }
}
