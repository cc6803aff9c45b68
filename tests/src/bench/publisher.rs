//! A worker's publisher on Dynamo's event plane, and what it registers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use bytes::Bytes;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use zeromq::{PubSocket, Socket as _, SocketSend as _, ZmqMessage};

use kvgrid_core::block::BlockHash;
use kvgrid_core::event::{EngineHash, KvEvent, StoredBlock, Tier};

use crate::harness::MODEL;

pub(super) const NAMESPACE: &str = "bench";
const TOPIC: &str = "kv-events";

/// One worker of one rank.
pub(super) struct Publisher {
    id: u64,
    socket: PubSocket,
    /// Messages that were published.
    messages: u64,
    /// Events of them.
    events: u64,
}

#[derive(Serialize)]
struct Envelope<'a> {
    publisher_id: u64,
    sequence: u64,
    published_at: u64,
    topic: &'a str,
    payload: Binary,
}

/// Binary data; serde's own vectors are lists.
struct Binary(Vec<u8>);

impl Serialize for Binary {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

#[derive(Serialize)]
struct RouterEvent {
    worker_id: u64,
    storage_tier: &'static str,
    event: Event,
}

#[derive(Serialize)]
struct Event {
    event_id: u64,
    data: Data,
    dp_rank: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Data {
    Stored {
        parent_hash: Option<u64>,
        blocks: Vec<Block>,
    },
    Removed {
        block_hashes: Vec<u64>,
    },
    Cleared {},
}

impl From<KvEvent> for Data {
    fn from(event: KvEvent) -> Self {
        let block = |block: StoredBlock| Block {
            block_hash: block.engine.0,
            tokens_hash: block.local.0,
        };
        match event {
            KvEvent::Stored { parent, blocks, .. } => Self::Stored {
                parent_hash: parent.map(|parent| parent.0),
                blocks: blocks.into_iter().map(block).collect(),
            },
            KvEvent::Removed { blocks, .. } => Self::Removed {
                block_hashes: blocks.into_iter().map(|block| block.0).collect(),
            },
            KvEvent::Cleared => Self::Cleared {},
        }
    }
}

#[derive(Serialize)]
struct Block {
    block_hash: u64,
    tokens_hash: u64,
}

impl Publisher {
    /// Binds a socket and registers it, as a worker's of so many blocks; gives the entries
    /// written.
    pub(super) async fn start(
        number: usize,
        blocks: u64,
        discovery: &Path,
    ) -> Result<(Self, Vec<PathBuf>)> {
        let mut socket = PubSocket::new();
        let endpoint = socket.bind("tcp://127.0.0.1:0").await?.to_string();
        // Unlike those of its own blocks, and none is 0.
        let id = number as u64 + 1;
        let entries = register(id, blocks, &endpoint, discovery)?;
        let publisher = Self {
            id,
            socket,
            messages: 0,
            events: 0,
        };
        Ok((publisher, entries))
    }

    /// What others know it by.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// The number of the next message; the first one's is 0.
    pub(super) const fn next_message(&self) -> u64 {
        self.messages
    }

    /// Publishes one block that nobody has.
    pub(super) async fn publish_block(&mut self) -> Result<()> {
        let name = self.id << 32 | self.messages;
        let block = StoredBlock {
            engine: EngineHash(name),
            local: BlockHash(name),
        };
        self.publish(vec![KvEvent::Stored {
            parent: None,
            tier: Tier::Device,
            blocks: vec![block],
        }])
        .await
    }

    /// Publishes events in one message.
    pub(super) async fn publish(&mut self, events: Vec<KvEvent>) -> Result<()> {
        let events: Vec<_> = events
            .into_iter()
            .map(|event| self.numbered(event))
            .collect();
        let envelope = Envelope {
            publisher_id: self.id,
            sequence: self.messages,
            published_at: 0,
            topic: TOPIC,
            payload: Binary(rmp_serde::to_vec_named(&events)?),
        };
        let envelope = rmp_serde::to_vec_named(&envelope)?;
        let mut body = vec![1];
        body.extend(u32::try_from(envelope.len())?.to_be_bytes());
        body.extend(envelope);
        let mut message = ZmqMessage::from(Bytes::from_static(TOPIC.as_bytes()));
        message.push_back(Bytes::copy_from_slice(&self.id.to_be_bytes()));
        message.push_back(Bytes::copy_from_slice(&self.messages.to_be_bytes()));
        message.push_back(body.into());
        self.socket.send(message).await?;
        self.messages += 1;
        Ok(())
    }

    fn numbered(&mut self, event: KvEvent) -> RouterEvent {
        self.events += 1;
        RouterEvent {
            worker_id: self.id,
            storage_tier: "device",
            event: Event {
                event_id: self.events,
                data: event.into(),
                dp_rank: 0,
            },
        }
    }
}

fn register(id: u64, blocks: u64, endpoint: &str, discovery: &Path) -> Result<Vec<PathBuf>> {
    let place = json!({"namespace": NAMESPACE, "component": "backend", "name": "generate"});
    let scope = json!({"kind": "endpoint", "endpoint": place});
    let records: [(&str, Value); 3] = [
        (
            "mdc",
            json!({
                "type": "Model",
                "namespace": NAMESPACE, "component": "backend", "endpoint": "generate",
                "instance_id": id,
                "card_json": {
                    "display_name": MODEL,
                    "kv_cache_block_size": 16,
                    "runtime_config": {"total_kv_blocks": blocks},
                },
            }),
        ),
        (
            "event_sources",
            json!({
                "type": "EventSource", "scope": scope, "topic": TOPIC, "publisher_id": id,
                "metadata": {"worker": {"worker_id": id, "dp_rank": 0}, "publisher_id": id},
            }),
        ),
        (
            "event_channels",
            json!({
                "type": "EventChannel", "scope": scope, "topic": TOPIC, "instance_id": id,
                "transport": {"kind": "Zmq", "config": {"endpoint": endpoint}},
            }),
        ),
    ];
    let mut written = Vec::new();
    for (kind, record) in records {
        let directory = discovery.join("v1").join(kind);
        fs::create_dir_all(&directory)?;
        let entry = directory.join(format!("{id:x}"));
        fs::write(&entry, record.to_string())?;
        written.push(entry);
    }
    Ok(written)
}
