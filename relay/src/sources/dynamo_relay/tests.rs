//! The source against a peer that says what each test wants.

mod peer;

use std::collections::BTreeMap;
use std::time::Duration;

use kvgrid_core::block::HashFormat;
use kvgrid_core::ckf::Format;
use kvgrid_core::event::{Refusal, Refusals};
use tokio::task::JoinSet;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use xxhash_rust::xxh3::xxh3_64;

use super::catalog::{Entry, Unfit};
use super::peer::{MARKER, VERSION};
use super::v1::*;
use super::watching::pool_key;
use super::*;
use crate::sources::{FeedState, FilterChange};
use peer::{FakePeer, relay, update};

const PATIENCE: Duration = Duration::from_secs(20);
const SEED: u64 = 7;
const BUCKETS: u64 = 8;
const CENTRE: u64 = 5;

/// A pool in this life of its publisher.
fn pool(endpoint: &str, incarnation: u64) -> KvPoolDescriptor {
    let digest = |digest: &[u8]| {
        Some(DigestIdentity {
            digest: digest.to_vec().into(),
            source: 1,
        })
    };
    KvPoolDescriptor {
        producer: Some(ProducerIdentity {
            pool_id: Some(KvPoolId {
                identity_version: 1,
                indexer_domain: Some(IndexerDomainId {
                    cache_semantics: digest(b"semantics"),
                    routing_scope: digest(endpoint.as_bytes()),
                }),
                dc_id: CENTRE,
            }),
            producer_incarnation: incarnation,
            layout_generation: 1,
            ckf_format: Some(CkfFormat {
                format_version: 1,
                seed: SEED,
                bucket_count: BUCKETS,
                fingerprint_bits: 16,
                slots_per_bucket: 4,
            }),
        }),
        serving_endpoint: Some(DynamoEndpointId {
            namespace: "prod".into(),
            component: "backend".into(),
            endpoint: endpoint.into(),
        }),
        registrations: vec![ModelRegistration {
            canonical_model_id: "tiny".into(),
            target: Some(ModelTarget {
                target: Some(model_target::Target::Base(BaseModelTarget {
                    base_model: "tiny".into(),
                })),
            }),
            aliases: vec!["small".into()],
        }],
        query_semantics: Some(KvQuerySemantics {
            kv_block_size: 16,
            hash_format: KvQueryHashFormat::DynamoStandardV1.into(),
        }),
        pool_roles: vec![WorkerRole::Aggregated.into()],
    }
}

fn frame(kind: u16, sequence: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"CBI1".to_vec();
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend([16, 4, 1, 0]);
    for number in [SEED, BUCKETS, CENTRE, sequence] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(&xxh3_64(body).to_le_bytes()[..4]);
    bytes.extend(body);
    bytes
}

fn message(
    life: u64,
    producer: &ProducerIdentity,
    kind: FilterUpdateKind,
    (base_sequence, sequence): (u64, u64),
    payload: Vec<u8>,
) -> FilterUpdate {
    FilterUpdate {
        protocol_version: VERSION,
        relay: Some(relay(life)),
        producer: Some(producer.clone()),
        base_sequence,
        sequence,
        kind: kind.into(),
        payload: payload.into(),
        contract_marker: MARKER,
    }
}

fn snapshot(life: u64, producer: &ProducerIdentity, sequence: u64, word: u64) -> FilterUpdate {
    let mut body = 0_u32.to_le_bytes().to_vec();
    body.extend(1_u32.to_le_bytes());
    body.extend(0_u64.to_le_bytes());
    body.extend((0..BUCKETS).flat_map(|_| word.to_le_bytes()));
    let payload = frame(1, sequence, &body);
    let kind = FilterUpdateKind::SnapshotChunk;
    message(life, producer, kind, (0, sequence), payload)
}

fn delta(producer: &ProducerIdentity, base: u64, sequence: u64) -> FilterUpdate {
    let mut body = base.to_le_bytes().to_vec();
    body.extend(1_u32.to_le_bytes());
    body.extend(3_u32.to_le_bytes());
    body.extend(9_u64.to_le_bytes());
    let payload = frame(2, sequence, &body);
    message(
        1,
        producer,
        FilterUpdateKind::Delta,
        (base, sequence),
        payload,
    )
}

fn settings(url: &str) -> RelaySettings {
    RelaySettings {
        source: 0,
        model: ModelName::new("tiny").unwrap(),
        shape: None,
        peer: PeerSettings {
            url: url.parse().unwrap(),
            message_bytes: 8 << 20,
            namespace: None,
            component: None,
            endpoint: None,
            discovery: None,
        },
    }
}

/// The source, and what it has told.
struct Heard {
    events: mpsc::Receiver<SourceEvent>,
    feeds: BTreeMap<usize, FeedState>,
    tables: BTreeMap<usize, String>,
    /// Sequences of snapshots and deltas, by feed.
    changes: Vec<(usize, char, u64)>,
    ends: Vec<&'static str>,
    refused: Refusals,
    gaps: u64,
    _task: JoinSet<()>,
}

impl Heard {
    fn from(peer: &FakePeer) -> Self {
        let (sender, events) = mpsc::channel(64);
        let usage = watch::Sender::new(Usage::default());
        let mut task = JoinSet::new();
        task.spawn(run(settings(&peer.url), (Clock::start(), 1), sender, usage));
        Self {
            events,
            feeds: BTreeMap::new(),
            tables: BTreeMap::new(),
            changes: Vec::new(),
            ends: Vec::new(),
            refused: Refusals::default(),
            gaps: 0,
            _task: task,
        }
    }

    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let all = async {
            while !done(self) {
                let event = self.events.recv().await.unwrap();
                self.take(event);
            }
        };
        let ended = tokio::time::timeout(PATIENCE, all).await.is_ok();
        let Self {
            feeds,
            changes,
            ends,
            ..
        } = self;
        assert!(ended, "not in time: {what}; {feeds:?} {changes:?} {ends:?}");
    }

    fn take(&mut self, event: SourceEvent) {
        let feed = event.feed().endpoint;
        match event {
            SourceEvent::Feed { state, .. } => {
                self.feeds.insert(feed, state);
            }
            SourceEvent::FeedEnded { .. } => {
                self.feeds.remove(&feed);
            }
            SourceEvent::Table { of, .. } => {
                self.tables.insert(feed, of.place.clone());
            }
            SourceEvent::Filter {
                change, sequence, ..
            } => {
                let kind = match change {
                    FilterChange::Snapshot(_) => 's',
                    FilterChange::Delta(_) => 'd',
                };
                self.changes.push((feed, kind, sequence));
            }
            SourceEvent::Ended { reason, .. } => self.ends.push(reason),
            SourceEvent::Refused { refused, .. } => self.refused.add(&refused),
            SourceEvent::Gap { .. } => self.gaps += 1,
            SourceEvent::Served { .. } => {}
            other => panic!("none of its own: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_pool_is_followed_from_its_snapshot_on_and_again_after_a_gap() {
    let mut peer = FakePeer::start().await;
    peer.list(1, vec![pool("generate", 1)]);
    let mut heard = Heard::from(&peer);

    let first = peer.subscription().await;
    assert_eq!(Some(&first.producer), pool("generate", 1).producer.as_ref());
    first.say(snapshot(1, &first.producer, 4, 0));
    first.say(delta(&first.producer, 4, 5));
    heard
        .until("snapshot and delta", |heard| heard.changes.len() == 2)
        .await;
    assert_eq!(heard.changes, [(1, 's', 4), (1, 'd', 5)]);
    assert_eq!(heard.tables[&1], "prod/backend/generate");
    assert_eq!(heard.feeds[&1], FeedState::Whole);
    assert_eq!(heard.feeds[&0], FeedState::Whole);

    first.say(delta(&first.producer, 6, 7));
    heard.until("a gap", |heard| heard.gaps == 1).await;
    let second = peer.subscription().await;
    second.say(snapshot(1, &second.producer, 7, 0));
    heard
        .until("another snapshot", |heard| heard.changes.len() == 3)
        .await;
    assert_eq!(heard.changes[2], (1, 's', 7));
    assert_eq!(heard.ends, ["gap"]);
}

#[tokio::test]
async fn what_another_life_says_is_refused_and_counted() {
    let mut peer = FakePeer::start().await;
    peer.list(1, vec![pool("generate", 1)]);
    let mut heard = Heard::from(&peer);

    let first = peer.subscription().await;
    let other = pool("generate", 2).producer.unwrap();
    first.say(snapshot(1, &other, 0, 1));
    heard.until("one end", |heard| heard.ends.len() == 1).await;
    let second = peer.subscription().await;
    second.say(snapshot(2, &second.producer, 0, 1));
    heard.until("two ends", |heard| heard.ends.len() == 2).await;
    let third = peer.subscription().await;
    third.say(FilterUpdate {
        contract_marker: 0,
        ..snapshot(1, &third.producer, 0, 1)
    });
    heard
        .until("three ends", |heard| heard.ends.len() == 3)
        .await;

    assert_eq!(heard.ends, ["producer", "producer", "contract"]);
    assert_eq!(heard.refused.of(Refusal::Producer), 2);
    assert_eq!(heard.refused.of(Refusal::Contract), 1);
    assert_eq!(heard.changes, []);
}

#[tokio::test]
async fn a_peer_of_another_version_is_not_believed() {
    let peer = FakePeer::start().await;
    peer.tell(KvPoolCatalogUpdate {
        protocol_version: 2,
        ..update(1, vec![pool("generate", 1)])
    });
    let mut heard = Heard::from(&peer);

    heard.until("an end", |heard| !heard.ends.is_empty()).await;

    assert_eq!(heard.ends[0], "contract");
    assert!(heard.refused.of(Refusal::Contract) >= 1);
    assert!(heard.tables.is_empty());
}

#[tokio::test]
async fn a_stream_that_ends_says_why_by_its_trailer_alone() {
    let mut peer = FakePeer::start().await;
    peer.list(1, vec![pool("generate", 1)]);
    let mut heard = Heard::from(&peer);
    let status = |reason: &str| {
        let mut trailer = MetadataMap::new();
        trailer.insert("kv-relay-error-reason", reason.parse().unwrap());
        Status::with_metadata(Code::Unavailable, "words", trailer)
    };

    for reason in ["RELAY_ERROR_REASON_SUBSCRIBER_LAGGED", "NEWS"] {
        peer.subscription().await.fail(status(reason));
    }
    drop(peer.subscription().await);
    heard
        .until("three ends", |heard| heard.ends.len() == 3)
        .await;

    assert_eq!(heard.ends, ["subscriber_lagged", "unavailable", "finished"]);
}

#[tokio::test]
async fn a_pool_goes_when_the_life_that_listed_it_lists_it_no_more() {
    let mut peer = FakePeer::start().await;
    peer.list(1, vec![pool("generate", 1), pool("other", 1)]);
    let mut heard = Heard::from(&peer);
    heard
        .until("two pools", |heard| heard.tables.len() == 2)
        .await;
    let mut followed = [peer.subscription().await, peer.subscription().await];

    // Another life may not have found it yet.
    peer.list(2, vec![pool("other", 2)]);
    followed = [
        peer.subscription().await,
        followed.into_iter().next().unwrap(),
    ];
    let [other, _] = &followed;
    assert_eq!(Some(&other.producer), pool("other", 2).producer.as_ref());
    other.say(snapshot(2, &other.producer, 0, 1));
    heard
        .until("the new life", |heard| !heard.changes.is_empty())
        .await;
    assert_eq!(heard.feeds.len(), 3, "{:?}", heard.feeds);
    let known = heard.tables.clone();

    peer.list(2, vec![pool("generate", 2), pool("other", 2)]);
    let again = peer.subscription().await;
    again.say(snapshot(2, &again.producer, 0, 1));
    heard
        .until("it is found again", |heard| heard.changes.len() == 2)
        .await;
    assert_eq!(heard.tables, known, "under the same feeds");

    peer.list(2, vec![pool("other", 2)]);
    heard
        .until("it is gone", |heard| heard.feeds.len() == 2)
        .await;
}

#[test]
fn what_is_not_known_makes_a_pool_unfit_and_is_never_taken_for_a_default() {
    let read = |change: &dyn Fn(&mut KvPoolDescriptor)| {
        let mut pool = pool("generate", 1);
        change(&mut pool);
        catalog::read(&pool, &relay(1), &settings("http://a:1"))
    };
    let unknown = |what| Entry::Unfit(Unfit::Unknown(what));

    assert!(matches!(read(&|_| ()), Entry::Ours(_)));
    let target = read(&|pool| pool.registrations[0].target = Some(ModelTarget { target: None }));
    assert_eq!(target, unknown("a registration's target"));
    let role = read(&|pool| pool.pool_roles.push(77));
    assert_eq!(role, unknown("a role"));
    let hash = |to| {
        move |pool: &mut KvPoolDescriptor| {
            pool.query_semantics.as_mut().unwrap().hash_format = to;
        }
    };
    assert_eq!(read(&hash(0)), unknown("the hash format"));
    assert_eq!(read(&hash(77)), unknown("the hash format"));
    let identity = read(&|pool| {
        let producer = pool.producer.as_mut().unwrap();
        producer.pool_id.as_mut().unwrap().identity_version = 2;
    });
    assert_eq!(identity, Entry::Unfit(Unfit::Identity(2)));
    let format = read(&|pool| {
        let producer = pool.producer.as_mut().unwrap();
        producer.ckf_format.as_mut().unwrap().format_version = 2;
    });
    assert!(matches!(format, Entry::Unfit(Unfit::Format(_))));
    let nothing = read(&|pool| pool.query_semantics = None);
    assert_eq!(nothing, Entry::Unfit(Unfit::Missing("query_semantics")));
    let place = read(&|pool| pool.serving_endpoint.as_mut().unwrap().endpoint.clear());
    assert!(matches!(place, Entry::Unfit(Unfit::Place(_))));
}

#[test]
fn pools_of_others_and_of_workers_that_only_decode_are_not_ours() {
    let mut wanted = settings("http://a:1");
    wanted.model = ModelName::new("small").unwrap();
    let read = |settings: &RelaySettings, pool: &KvPoolDescriptor| {
        catalog::read(pool, &relay(1), settings)
    };

    let Entry::Ours(listed) = read(&wanted, &pool("generate", 1)) else {
        panic!("it is called so, too");
    };
    assert_eq!(listed.format, Format::new(SEED, BUCKETS).unwrap());
    assert_eq!(
        (listed.centre, listed.shape.format),
        (CENTRE, HashFormat::Standard)
    );
    let decode = KvPoolDescriptor {
        pool_roles: vec![WorkerRole::Decode.into()],
        ..pool("generate", 1)
    };
    assert_eq!(read(&wanted, &decode), Entry::Others);
    wanted.peer.namespace = Some("test".into());
    assert_eq!(read(&wanted, &pool("generate", 1)), Entry::Others);
    wanted.peer.namespace = None;
    wanted.model = ModelName::new("large").unwrap();
    assert_eq!(read(&wanted, &pool("generate", 1)), Entry::Others);
}

#[test]
fn blocks_that_no_prompt_would_match_are_refused() {
    let mut wanted = settings("http://a:1");
    let shape = |block_size: u32, format| PoolShape {
        block_size: block_size.try_into().unwrap(),
        format,
    };
    let read = |settings: &RelaySettings| catalog::read(&pool("generate", 1), &relay(1), settings);

    wanted.shape = Some(shape(32, HashFormat::Standard));
    let Entry::Unfit(size) = read(&wanted) else {
        panic!("it differs");
    };
    wanted.shape = Some(shape(16, HashFormat::Eagle));
    let Entry::Unfit(format) = read(&wanted) else {
        panic!("it differs");
    };

    assert_eq!(size.refusal(), Refusal::BlockSize);
    let says = "blocks of 16 tokens, and 32 are configured: no prompt would match";
    assert_eq!(size.to_string(), says);
    assert_eq!(format.refusal(), Refusal::HashFormat);
}

#[test]
fn use_is_told_of_pools_of_which_all_ranks_were_observed() {
    let producer = pool("generate", 1).producer;
    let id = pool_key(producer.as_ref().unwrap().pool_id.as_ref());
    let entry = |used, observed| KvPoolLoadEntry {
        producer: producer.clone(),
        kv_used_blocks: used,
        total_kv_blocks: 100,
        kv_observed_ranks: observed,
        kv_expected_ranks: 2,
    };
    let share = |entry, ours: &[Vec<u8>]| {
        let update = KvPoolLoadUpdate {
            pools: vec![entry],
            ..KvPoolLoadUpdate::default()
        };
        usage::use_of(&update, &ours.iter().cloned().collect()).share()
    };

    assert_eq!(share(entry(25, 2), std::slice::from_ref(&id)), Some(0.25));
    assert_eq!(share(entry(25, 1), std::slice::from_ref(&id)), None);
    assert_eq!(share(entry(0, 0), &[id]), None);
    assert_eq!(share(entry(25, 2), &[]), None);
}

#[test]
fn readiness_that_is_not_said_is_not_known() {
    let mut wanted = settings("http://a:1");
    wanted.peer.namespace = Some("prod".into());
    let ready = |entries: &[(&str, &str, i32)]| {
        let entry = |(namespace, model, state): &(&str, &str, i32)| TopologyEntry {
            namespace: (*namespace).into(),
            canonical_model_id: (*model).into(),
            state: *state,
        };
        let update = ServingReadinessUpdate {
            entries: entries.iter().map(entry).collect(),
            ..ServingReadinessUpdate::default()
        };
        usage::is_ready(&update, &wanted)
    };

    assert_eq!(ready(&[]), None);
    assert_eq!(ready(&[("prod", "tiny", 0), ("prod", "tiny", 77)]), None);
    assert_eq!(ready(&[("test", "tiny", 2), ("prod", "large", 2)]), None);
    assert_eq!(ready(&[("prod", "tiny", 1)]), Some(false));
    assert_eq!(
        ready(&[("prod", "tiny", 1), ("prod", "tiny", 2)]),
        Some(true)
    );
}
