//! What Dynamo's own relay publishes, heard by a subscription of the tests' own.
//!
//! This is the tests' witness where a relay of ours follows that one: it reads the filter by
//! code that shares nothing with it, and says at which of the publisher's sequences a block
//! is in.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::plane::Published;

const SERVICE: &str = "/dynamo.kvrelay.v1.KvEventRelay";
const MARKER: u32 = 0x4b56_5231;
const CALL: Duration = Duration::from_secs(10);
const MESSAGE_BYTES: usize = 64 << 20;

/// A message inside a message is on the wire what bytes are, so these stand for all that the
/// witness only hands back.
#[derive(Clone, PartialEq, Message)]
struct Producer {
    #[prost(bytes = "vec", tag = "1")]
    pool: Vec<u8>,
    #[prost(fixed64, tag = "2")]
    incarnation: u64,
    #[prost(uint64, tag = "3")]
    layout: u64,
    #[prost(message, optional, tag = "4")]
    format: Option<Format>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Format {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(fixed64, tag = "2")]
    seed: u64,
    #[prost(uint64, tag = "3")]
    buckets: u64,
    #[prost(uint32, tag = "4")]
    bits: u32,
    #[prost(uint32, tag = "5")]
    slots: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Watch {
    #[prost(string, tag = "1")]
    subscriber: String,
    #[prost(fixed32, tag = "127")]
    marker: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Subscribe {
    #[prost(string, tag = "1")]
    subscriber: String,
    #[prost(message, optional, tag = "2")]
    producer: Option<Producer>,
    #[prost(fixed32, tag = "127")]
    marker: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Catalog {
    #[prost(message, optional, tag = "4")]
    snapshot: Option<Pools>,
}

#[derive(Clone, PartialEq, Message)]
struct Pools {
    #[prost(message, repeated, tag = "1")]
    pools: Vec<Pool>,
}

#[derive(Clone, PartialEq, Message)]
struct Pool {
    #[prost(message, optional, tag = "1")]
    producer: Option<Producer>,
}

#[derive(Clone, PartialEq, Message)]
struct Update {
    #[prost(uint64, tag = "5")]
    sequence: u64,
    #[prost(int32, tag = "7")]
    kind: i32,
    #[prost(bytes = "vec", tag = "8")]
    payload: Vec<u8>,
}

/// The one pool of a site's relay.
pub(super) struct Filter {
    url: String,
    listening: Option<Listening>,
}

struct Listening {
    updates: Streaming<Update>,
    publisher: u64,
    format: Format,
    words: BTreeMap<u32, u64>,
    sequence: u64,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filter")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Filter {
    /// What the relay at this address publishes.
    pub(super) const fn at(url: String) -> Self {
        Self {
            url,
            listening: None,
        }
    }

    /// Reads on until a block of this name is in; `None` if it isn't within `patience`, or if
    /// there is nothing to read.
    pub(super) async fn hear(&mut self, name: u64, patience: Duration) -> Option<Published> {
        match timeout(patience, self.hear_until(name)).await {
            Ok(Ok(published)) => Some(published),
            Ok(Err(_)) => {
                self.listening = None;
                None
            }
            Err(_) => None,
        }
    }

    async fn hear_until(&mut self, name: u64) -> Result<Published> {
        if self.listening.is_none() {
            self.listening = Some(Listening::begin(&self.url).await?);
        }
        let listening = self.listening.as_mut().context("it was set above")?;
        loop {
            if listening.has(name) {
                return Ok(Published {
                    publisher: listening.publisher,
                    sequence: listening.sequence,
                });
            }
            let update = listening.updates.message().await?;
            listening.take(&update.context("the stream has ended")?)?;
        }
    }
}

impl Listening {
    async fn begin(url: &str) -> Result<Self> {
        let channel = Endpoint::from_shared(url.to_owned())?.connect().await?;
        let (subscriber, marker) = ("witness".to_owned(), MARKER);
        let watch = Watch {
            subscriber: subscriber.clone(),
            marker,
        };
        let mut catalogs: Streaming<Catalog> = call(&channel, "WatchKvPoolCatalog", watch).await?;
        let producer = loop {
            let catalog = timeout(CALL, catalogs.message()).await??;
            let pools = catalog
                .context("no list")?
                .snapshot
                .unwrap_or_default()
                .pools;
            if let Some(producer) = pools.into_iter().find_map(|pool| pool.producer) {
                break producer;
            }
        };
        let (format, publisher) = (producer.format, producer.incarnation + producer.layout);
        let subscribe = Subscribe {
            subscriber,
            producer: Some(producer),
            marker,
        };
        Ok(Self {
            updates: call(&channel, "SubscribeKvPool", subscribe).await?,
            publisher,
            format: format.context("no format")?,
            words: BTreeMap::new(),
            sequence: 0,
        })
    }

    fn take(&mut self, update: &Update) -> Result<()> {
        let payload = update.payload.as_slice();
        let number = |at: usize, bytes: usize| {
            let mut number = [0; 8];
            number[..bytes].copy_from_slice(&payload[at..at + bytes]);
            u64::from_le_bytes(number)
        };
        match update.kind {
            1 => {
                let first = number(56, 8);
                for (at, bucket) in (64..payload.len()).step_by(8).zip(first..) {
                    self.words.insert(u32::try_from(bucket)?, number(at, 8));
                }
                self.words.retain(|_, word| *word != 0);
            }
            2 => {
                for at in (60..payload.len()).step_by(12) {
                    self.words
                        .insert(u32::try_from(number(at, 4))?, number(at + 4, 8));
                }
            }
            kind => ensure!(kind == 3, "kind {kind}"),
        }
        self.sequence = update.sequence;
        Ok(())
    }

    fn has(&self, name: u64) -> bool {
        let (seed, mask) = (self.format.seed, self.format.buckets - 1);
        let mixed = xxh3_64_with_seed(&name.to_le_bytes(), seed);
        let print = if mixed & 0xffff == 0 {
            1
        } else {
            mixed & 0xffff
        };
        let bucket = mixed >> 16 & mask;
        let step = xxh3_64_with_seed(&print.to_le_bytes()[..2], seed ^ 0x9e37_79b9_7f4a_7c15);
        let other = bucket ^ (step & mask).max(1);
        let mut buckets = [bucket, other].into_iter();
        buckets.any(|bucket| {
            let word = u32::try_from(bucket)
                .ok()
                .and_then(|it| self.words.get(&it));
            word.is_some_and(|word| (0..4).any(|slot| word >> (slot * 16) & 0xffff == print))
        })
    }
}

async fn call<I, O>(channel: &Channel, method: &str, request: I) -> Result<Streaming<O>>
where
    I: Message + 'static,
    O: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES);
    grpc.ready().await?;
    let path: PathAndQuery = format!("{SERVICE}/{method}").parse()?;
    let codec: ProstCodec<I, O> = ProstCodec::default();
    let answer = grpc.server_streaming(Request::new(request), path, codec);
    Ok(timeout(CALL, answer).await??.into_inner())
}
