use std::time::Duration;

use bytes::Bytes;
use kvgrid_core::event::KvEvent;
use kvgrid_core::event::Refusal;
use serde_json::{Value, json};
use tokio::time::timeout;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use super::*;
use crate::discovery::tests::{Store, model_card};
use crate::discovery::{self};

/// What workers said of themselves, step by step.
pub(crate) struct Told(pub(crate) Usage);

/// Workers 7, 8 and so on, of so many ranks each, which have 100 blocks of 16 tokens and compute
/// eight requests at once.
pub(crate) fn usage_of(workers: u64, ranks: u32) -> Told {
    let card = model_card("http://127.0.0.1:1");
    let mut card = discovery::ModelCard::parse(card).unwrap();
    let runtime = &mut card.fields.runtime_config;
    (runtime.total_kv_blocks, runtime.max_num_seqs) = (Some(100), Some(8));
    runtime.data_parallel_size = Some(ranks);
    card.fields.kv_cache_block_size = 16;
    let mut usage = Usage::default();
    let workers = (7..7 + workers).map(|worker| (worker, Size::of(&card)));
    usage.set_workers(workers.collect());
    Told(usage)
}

impl Told {
    pub(crate) fn used(mut self, worker: u64, rank: u32, blocks: u64) -> Self {
        self.0.set_used(1, WorkerRank { worker, rank }, blocks);
        self
    }

    /// A step that computed some requests while some waited, with their prompts' tokens.
    pub(crate) fn step(
        mut self,
        worker: u64,
        rank: u32,
        at: kvgrid_core::Instant,
        (running, waiting, waiting_tokens): (u32, u32, u64),
    ) -> Self {
        let step = kvgrid_core::event::dynamo::Step {
            worker,
            rank,
            running,
            waiting,
            waiting_tokens,
        };
        self.0.set_step(2, at, step);
        self
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

const DEAD: Duration = Duration::from_secs(11);

const fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker, rank: 0 }
}

/// A worker's publisher, as Dynamo's are on the wire.
struct Publishing {
    socket: PubSocket,
    address: String,
    id: u64,
    worker: u64,
    sequence: u64,
    number: u64,
}

impl Publishing {
    async fn start(id: u64, worker: u64) -> Self {
        let mut socket = PubSocket::new();
        let endpoint = socket.bind("tcp://127.0.0.1:0").await.unwrap();
        Self {
            socket,
            address: endpoint.to_string(),
            id,
            worker,
            sequence: 0,
            number: 1,
        }
    }

    /// As if it had published so many messages, of one event each, that nobody heard.
    fn skip(&mut self, messages: u64) {
        self.sequence += messages;
        self.number += messages;
    }

    /// Publishes that it stored a block of this name.
    async fn store(&mut self, name: u64) {
        let data = json!({"stored": {"parent_hash": null, "blocks": [
            {"block_hash": name, "tokens_hash": name, "mm_extra_info": null}]}});
        self.publish(self.worker, &data).await;
    }

    async fn publish(&mut self, worker: u64, data: &Value) {
        let payload = json!([{"worker_id": worker, "storage_tier": "device",
            "residency_domain": "worker",
            "event": {"event_id": self.number, "data": data, "dp_rank": 0}}]);
        self.number += 1;
        self.send("kv-events", &rmp_serde::to_vec_named(&payload).unwrap())
            .await;
    }

    async fn send(&mut self, topic: &str, payload: &[u8]) {
        #[derive(serde::Serialize)]
        struct Envelope<'a> {
            publisher_id: u64,
            sequence: u64,
            published_at: u64,
            topic: &'a str,
            payload: Raw<'a>,
        }
        struct Raw<'a>(&'a [u8]);
        impl serde::Serialize for Raw<'_> {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_bytes(self.0)
            }
        }
        let envelope = rmp_serde::to_vec_named(&Envelope {
            publisher_id: self.id,
            sequence: self.sequence,
            published_at: 0,
            topic,
            payload: Raw(payload),
        })
        .unwrap();
        let length = u32::try_from(envelope.len()).unwrap();
        let body = [&[1][..], &length.to_be_bytes(), &envelope].concat();
        let mut message = ZmqMessage::from(topic.to_owned());
        message.push_back(Bytes::copy_from_slice(&self.id.to_be_bytes()));
        message.push_back(Bytes::copy_from_slice(&self.sequence.to_be_bytes()));
        message.push_back(body.into());
        self.sequence += 1;
        self.socket.send(message).await.unwrap();
    }
}

/// A source under test, and what it has told.
struct Listener {
    events: mpsc::Receiver<SourceEvent>,
    usage: watch::Receiver<Usage>,
    _tasks: JoinSet<()>,
    feeds: BTreeMap<usize, FeedState>,
    /// Names of the blocks that each publisher has.
    blocks: BTreeMap<u64, BTreeSet<u64>>,
    gone: Vec<u64>,
    gaps: usize,
    /// The parts that are told to edges, by component and block size.
    told: Vec<(String, u32)>,
    /// The block sizes of the parts that feeds belong to.
    of: BTreeMap<usize, u32>,
    refused: kvgrid_core::event::Refusals,
}

impl Listener {
    fn to(store: &Store) -> Self {
        let (sender, sightings) = watch::channel(None);
        let (events, receiver) = mpsc::channel(4);
        let (usage, used) = watch::channel(Usage::default());
        let settings = EventSettings {
            source: 0,
            model: ModelName::new("tiny-chat").unwrap(),
            shape: None,
            scope: store.settings().scope,
            nats: None,
            max_publishers: 8,
        };
        let mut tasks = JoinSet::new();
        let model = settings.model.clone();
        tasks.spawn(discovery::watch(store.settings(), model, sender));
        tasks.spawn(run(settings, sightings, Clock::start(), events, usage));
        Self {
            events: receiver,
            usage: used,
            _tasks: tasks,
            feeds: BTreeMap::from([(DISCOVERY, FeedState::Connecting)]),
            blocks: BTreeMap::new(),
            gone: Vec::new(),
            gaps: 0,
            told: Vec::new(),
            of: BTreeMap::new(),
            refused: kvgrid_core::event::Refusals::default(),
        }
    }

    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let all = async {
            while !done(self) {
                let event = self.events.recv().await.expect("the source runs");
                self.take(event);
            }
        };
        let ended = timeout(PATIENCE, all).await.is_ok();
        assert!(
            ended,
            "not in time: {what}; {:?} {:?}",
            self.feeds, self.blocks
        );
    }

    fn take(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Feed { feed, state } => {
                self.feeds.insert(feed.endpoint, state);
            }
            SourceEvent::FeedEnded { feed } => {
                self.feeds.remove(&feed.endpoint);
                self.of.remove(&feed.endpoint);
            }
            SourceEvent::Parts { parts, .. } => {
                let told = parts.iter().filter(|part| part.told);
                let shown = |part: &ListedPart| {
                    let component = part.of.place.split('/').nth(1).unwrap_or_default();
                    (component.to_owned(), part.of.shape.block_size.get())
                };
                self.told = told.map(shown).collect();
            }
            SourceEvent::Belongs { feed, of } => {
                self.of.insert(feed.endpoint, of.shape.block_size.get());
            }
            SourceEvent::Gap { .. } => self.gaps += 1,
            SourceEvent::Repaired { .. } => panic!("nothing is told again"),
            SourceEvent::Table { .. }
            | SourceEvent::Filter { .. }
            | SourceEvent::Ended { .. }
            | SourceEvent::Served { .. } => panic!("it has no peer"),
            SourceEvent::Refused { refused, .. } => self.refused.add(&refused),
            SourceEvent::PublisherGone { publisher, .. } => {
                self.blocks.remove(&publisher);
                self.gone.push(publisher);
            }
            SourceEvent::Batch {
                worker,
                events,
                refused,
                ..
            } => {
                self.refused.add(&refused);
                let blocks = self.blocks.entry(worker.publisher).or_default();
                for event in events {
                    match event {
                        KvEvent::Stored { blocks: new, .. } => {
                            blocks.extend(new.iter().map(|block| block.engine.0));
                        }
                        KvEvent::Removed { blocks: old, .. } => {
                            blocks.retain(|name| old.iter().all(|old| old.0 != *name));
                        }
                        KvEvent::Cleared => blocks.clear(),
                    }
                }
            }
        }
    }

    fn states(&self) -> Vec<FeedState> {
        self.feeds.values().copied().collect()
    }

    fn has(&self, publisher: u64, names: &[u64]) -> bool {
        let known = self.blocks.get(&publisher);
        known.is_some_and(|known| known.iter().copied().eq(names.iter().copied()))
    }
}

use FeedState::{Partial, Unfit, Whole};

#[tokio::test]
async fn publishers_that_come_up_are_known_whole_and_go_with_all_they_had() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    listener
        .until("discovery is read", |l| l.feeds.is_empty())
        .await;
    let mut first = Publishing::start(1, 11).await;
    let mut second = Publishing::start(2, 12).await;
    store.register(1, &first.address, rank(11));
    store.register(2, &second.address, rank(12));
    let both = |l: &Listener| l.states() == [Whole, Whole];
    listener.until("both are there", both).await;

    first.store(5).await;
    first.store(6).await;
    second.store(5).await;
    let heard = |l: &Listener| l.has(1, &[5, 6]) && l.has(2, &[5]);
    listener.until("both are heard", heard).await;
    store.age(1, DEAD);
    listener
        .until("one is dead", |l| l.gone == [1] && l.feeds.len() == 1)
        .await;
    second.store(7).await;
    listener
        .until("the other lives", |l| l.has(2, &[5, 7]))
        .await;

    assert_eq!(listener.states(), [Whole]);
    assert_eq!((listener.gaps, listener.refused.total()), (0, 0));
}

#[tokio::test]
async fn a_publisher_from_before_is_partial_unless_its_first_message_comes() {
    let store = Store::new();
    let mut old = Publishing::start(1, 11).await;
    let mut silent = Publishing::start(2, 12).await;
    store.register(1, &old.address, rank(11));
    store.register(2, &silent.address, rank(12));
    let mut listener = Listener::to(&store);
    let partial = |l: &Listener| l.states() == [Partial, Partial];
    listener.until("nobody knows what they have", partial).await;

    old.skip(9);
    old.store(5).await;
    silent.store(6).await;
    let heard = |l: &Listener| l.has(1, &[5]) && l.has(2, &[6]);
    listener.until("both are heard", heard).await;

    assert_eq!(listener.states(), [Partial, Whole]);
    assert_eq!(
        listener.gaps, 0,
        "nothing was lost that could have been heard"
    );
}

#[tokio::test]
async fn a_worker_that_publishes_anew_begins_a_new_life_and_heals() {
    let store = Store::new();
    let mut old = Publishing::start(1, 11).await;
    store.register(1, &old.address, rank(11));
    let mut listener = Listener::to(&store);
    listener
        .until("it is late", |l| l.states() == [Partial])
        .await;
    old.skip(3);
    old.store(5).await;
    listener.until("it is heard", |l| l.has(1, &[5])).await;

    let mut new = Publishing::start(2, 11).await;
    store.register(2, &new.address, rank(11));
    let replaced = |l: &Listener| l.gone == [1] && l.states() == [Whole];
    listener
        .until("the old one is gone at once", replaced)
        .await;
    new.store(6).await;
    listener
        .until("the new one is heard", |l| l.has(2, &[6]))
        .await;

    assert_eq!(Vec::from_iter(listener.blocks.keys()), [&2]);
}

#[tokio::test]
async fn a_gap_drops_the_blocks_and_stays_known_until_all_is_cleared() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    listener
        .until("discovery is read", |l| l.feeds.is_empty())
        .await;
    let mut worker = Publishing::start(1, 11).await;
    store.register(1, &worker.address, rank(11));
    listener
        .until("it is there", |l| l.states() == [Whole])
        .await;
    worker.store(5).await;
    listener.until("it is heard", |l| l.has(1, &[5])).await;

    worker.sequence += 1;
    worker.store(6).await;
    listener
        .until("a message is missing", |l| l.has(1, &[6]))
        .await;
    let after_message = (listener.gaps, listener.states());
    worker.number += 1;
    worker.store(7).await;
    listener
        .until("an event is missing", |l| l.has(1, &[7]))
        .await;
    let after_event = (listener.gaps, listener.states());
    worker.publish(11, &json!("cleared")).await;
    worker.store(8).await;
    listener
        .until("all is told again", |l| l.has(1, &[8]))
        .await;

    assert_eq!(after_message, (1, vec![Partial]));
    assert_eq!(after_event, (2, vec![Partial]));
    assert_eq!((listener.gaps, listener.states()), (2, vec![Whole]));
}

#[tokio::test]
async fn what_is_not_understood_drops_the_blocks() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    listener
        .until("discovery is read", |l| l.feeds.is_empty())
        .await;
    let mut worker = Publishing::start(1, 11).await;
    store.register(1, &worker.address, rank(11));
    listener
        .until("it is there", |l| l.states() == [Whole])
        .await;
    worker.store(5).await;

    worker.send("kv-events", b"\xc1").await;
    listener
        .until("it is lost", |l| l.gone == [1] && l.states() == [Partial])
        .await;

    assert_eq!(listener.refused.of(Refusal::Malformed), 0, "not told yet");
    listener
        .until("it is counted", |l| l.refused.total() == 1)
        .await;
    assert_eq!(listener.refused.of(Refusal::Malformed), 1);
}

#[tokio::test]
async fn whoever_speaks_for_others_is_not_believed() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    listener
        .until("discovery is read", |l| l.feeds.is_empty())
        .await;
    let mut worker = Publishing::start(1, 11).await;
    store.register(1, &worker.address, rank(11));
    listener
        .until("it is there", |l| l.states() == [Whole])
        .await;

    let stored = json!({"stored": {"blocks": [{"block_hash": 1, "tokens_hash": 1}]}});
    worker.publish(99, &stored).await;
    // Another process at the port of this one.
    worker.id = 2;
    worker.store(4).await;
    worker.id = 1;
    worker.sequence -= 1;
    worker.number -= 1;
    worker.store(5).await;
    listener
        .until("the rest is heard", |l| l.has(1, &[5]))
        .await;

    assert_eq!(listener.refused.of(Refusal::Worker), 2);
}

#[tokio::test]
async fn workers_with_another_card_are_followed_and_told_once_they_serve() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    listener
        .until("discovery is read", |l| l.feeds.is_empty())
        .await;
    let first = Publishing::start(1, 11).await;
    let mut other = Publishing::start(2, 12).await;
    let mut card = model_card("http://127.0.0.1:1");
    store.register_model(11, &card);
    store.register(1, &first.address, rank(11));
    listener
        .until("one is there", |l| l.states() == [Whole])
        .await;
    card["kv_cache_block_size"] = 32.into();
    store.register_model(12, &card);
    store.register(2, &other.address, rank(12));
    listener
        .until("both are there", |l| l.states() == [Whole, Whole])
        .await;
    let together = listener.told.clone();
    other.store(5).await;
    listener.until("it is heard", |l| l.has(2, &[5])).await;
    let sizes: Vec<u32> = listener.of.values().copied().collect();

    store.remove_model(11);
    store.age(1, DEAD);
    listener
        .until("the other is the only one", |l| {
            l.gone == [1] && l.feeds.len() == 1
        })
        .await;

    let told = |size| [("backend".to_owned(), size)];
    assert_eq!((together, sizes), (told(16).to_vec(), vec![16, 32]));
    assert_eq!(listener.told, told(32));
    assert_eq!(listener.states(), [Whole]);
    assert!(listener.has(2, &[5]), "what it had before counts");
}

#[tokio::test]
async fn who_only_decodes_is_not_followed_and_who_only_prefills_is() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    listener
        .until("discovery is read", |l| l.feeds.is_empty())
        .await;
    let prefill = Publishing::start(1, 11).await;
    let decode = Publishing::start(2, 12).await;
    let mut card = model_card("http://127.0.0.1:1");
    card["worker_type"] = "prefill".into();
    store.register_model_at("prefill", 11, &card);
    store.register(1, &prefill.address, rank(11));
    card["worker_type"] = "decode".into();
    card["kv_cache_block_size"] = 64.into();
    store.register_model_at("backend", 12, &card);
    store.register(2, &decode.address, rank(12));

    listener
        .until("one is whole", |l| l.states() == [Whole, Unfit])
        .await;

    assert_eq!(listener.told, [("prefill".to_owned(), 16)]);
}

#[tokio::test]
async fn each_endpoint_of_the_model_is_a_part() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    let card = model_card("http://127.0.0.1:1");
    for (component, worker) in [("backend", 11), ("spare", 12), ("spare", 13)] {
        store.register_model_at(component, worker, &card);
    }

    listener.until("all are known", |l| l.told.len() == 2).await;

    let parts = ["backend", "spare"].map(|component| (component.to_owned(), 16));
    assert_eq!(listener.told, parts);
}

#[tokio::test]
async fn publishers_of_another_model_are_none_of_this_pools() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    listener
        .until("discovery is read", |l| l.feeds.is_empty())
        .await;
    let ours = Publishing::start(1, 11).await;
    store.register(1, &ours.address, rank(11));
    listener
        .until("nobody says of what it is", |l| l.states() == [Whole])
        .await;
    let mut card = model_card("http://127.0.0.1:1");
    card["display_name"] = "large-chat".into();

    store.register_model(11, &card);
    listener
        .until("it is of another model", |l| {
            l.gone == [1] && l.feeds.is_empty()
        })
        .await;
    card["aliases"] = json!(["tiny-chat"]);
    store.register_model(11, &card);
    listener
        .until("that has our name too", |l| l.states() == [Partial])
        .await;

    assert!(listener.blocks.is_empty());
}

#[tokio::test]
async fn use_is_known_while_the_worker_lives() {
    let store = Store::new();
    let mut listener = Listener::to(&store);
    let mut worker = Publishing::start(3, 11).await;
    store.register_model(11, &model_card("http://127.0.0.1:1"));
    store.register_channel("kv_metrics", 3, &worker.address);
    let used = json!({"worker_id": 11, "dp_rank": 0, "active_decode_blocks": null,
        "active_prefill_tokens": null, "kv_used_blocks": 512});
    let payload = rmp_serde::to_vec_named(&used).unwrap();

    // It is told when it changes: what is said before somebody listens is lost.
    let mut usage = listener.usage.clone();
    let share = async {
        while usage.borrow_and_update().share().is_none() {
            worker.send("kv_metrics", &payload).await;
            let _ = timeout(Duration::from_millis(50), usage.changed()).await;
        }
    };
    timeout(PATIENCE, share).await.unwrap();
    let known = usage.borrow().share();
    store.write("event_channels", "c3", &json!({"type": "Gone"}));
    let gone = usage.wait_for(|usage| usage.share().is_none());
    timeout(PATIENCE, gone).await.unwrap().unwrap();

    assert_eq!(known, Some(0.25));
    listener
        .until("nothing else was told", |l| l.feeds.is_empty())
        .await;
}

#[tokio::test]
async fn what_ranks_compute_is_known_by_their_steps_while_they_tell_them() {
    let store = Store::new();
    let listener = Listener::to(&store);
    let mut worker = Publishing::start(4, 11).await;
    store.register_model(11, &model_card("http://127.0.0.1:1"));
    store.register_channel("forward-pass-metrics", 4, &worker.address);
    let requests = |prefill: u32, decode: u32, tokens: u64| {
        json!({"num_prefill_requests": prefill, "num_decode_requests": decode,
            "sum_prefill_tokens": tokens})
    };
    let step = json!({"version": 1, "worker_id": "11", "dp_rank": 0, "counter_id": 1,
        "scheduled_requests": requests(1, 3, 40), "queued_requests": requests(2, 0, 500)});
    let payload = rmp_serde::to_vec_named(&step).unwrap();
    let model = ModelName::new("tiny-chat").unwrap().id();

    let mut usage = listener.usage.clone();
    let told = async {
        loop {
            let loads = usage
                .borrow_and_update()
                .rank_loads(model, kvgrid_core::Instant::ZERO);
            if let Some(loads) = loads {
                return loads;
            }
            worker.send("forward-pass-metrics", &payload).await;
            let _ = timeout(Duration::from_millis(50), usage.changed()).await;
        }
    };
    let loads = timeout(PATIENCE, told).await.unwrap();
    store.write("event_channels", "c4", &json!({"type": "Gone"}));
    let gone = usage.wait_for(|usage| {
        let loads = usage.rank_loads(model, kvgrid_core::Instant::ZERO);
        loads.is_none()
    });
    timeout(PATIENCE, gone).await.unwrap().unwrap();

    assert_eq!((loads[0].worker, loads[0].running), (11, 4));
    assert_eq!(
        (loads[0].waiting, loads[0].waiting_tokens),
        (Some(2), Some(500))
    );
}
