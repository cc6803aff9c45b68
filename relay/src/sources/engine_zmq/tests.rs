use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use kvgrid_core::block::HashFormat;
use kvgrid_core::event::KvEvent;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// Past messages that the replay port still has.
type Past = Arc<Mutex<Vec<(u64, Bytes)>>>;

/// An engine that publishes what it is told, under names that mean nothing to anyone.
struct Engine {
    live: PubSocket,
    past: Past,
    replays: JoinSet<()>,
    stop: CancellationToken,
    next: u64,
    events: String,
    replay: String,
}

impl Engine {
    /// An engine with a loopback address of its own, so that nobody else takes its ports
    /// while it is stopped.
    async fn start() -> Self {
        static ENGINES: AtomicU8 = AtomicU8::new(2);
        let host = ENGINES.fetch_add(1, Ordering::Relaxed);
        let address = format!("tcp://127.0.7.{host}:0");
        Self::start_on(&address, &address).await
    }

    async fn start_on(events: &str, replay: &str) -> Self {
        let mut live = PubSocket::new();
        let events = bind(&mut live, events).await;
        let mut router = RouterSocket::new();
        let replay = bind(&mut router, replay).await;
        let past = Past::default();
        let stop = CancellationToken::new();
        let mut replays = JoinSet::new();
        replays.spawn(serve_replays(router, Arc::clone(&past), stop.clone()));
        Self {
            live,
            past,
            replays,
            stop,
            next: 0,
            events,
            replay,
        }
    }

    /// Publishes that it stored a block, and returns the block's name.
    async fn store(&mut self) -> u64 {
        let name = rand::random();
        self.publish(stored(name)).await;
        name
    }

    /// The same, but the live message is lost on the way.
    fn store_unheard(&mut self) -> u64 {
        let name = rand::random();
        self.record(stored(name));
        name
    }

    async fn publish(&mut self, payload: Bytes) {
        let sequence = self.record(payload.clone());
        let mut message = ZmqMessage::from(Bytes::new());
        message.push_back(Bytes::copy_from_slice(&sequence.to_be_bytes()));
        message.push_back(payload);
        self.live.send(message).await.unwrap();
    }

    fn record(&mut self, payload: Bytes) -> u64 {
        let sequence = self.next;
        self.past.lock().unwrap().push((sequence, payload));
        self.next += 1;
        sequence
    }

    /// Forgets what it has published so far.
    fn forget(&self) {
        self.past.lock().unwrap().clear();
    }

    /// Closes its sockets, as the end of its process does.
    async fn stop(mut self) -> (String, String) {
        self.stop.cancel();
        self.replays.join_next().await;
        assert!(self.live.close().await.is_empty());
        (self.events, self.replay)
    }

    /// Loses its connections and gets them back.
    async fn reconnect(self) -> Self {
        let (past, next) = (Arc::clone(&self.past), self.next);
        let (events, replay) = self.stop().await;
        let mut engine = Self::start_on(&events, &replay).await;
        engine
            .past
            .lock()
            .unwrap()
            .clone_from(&past.lock().unwrap());
        engine.next = next;
        engine
    }
}

async fn bind(socket: &mut impl Socket, address: &str) -> String {
    // A port may be held for a moment by the connections of its last owner.
    for _ in 0..200 {
        if let Ok(endpoint) = socket.bind(address).await {
            return endpoint.to_string();
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{address} cannot be bound");
}

async fn serve_replays(mut router: RouterSocket, past: Past, stop: CancellationToken) {
    while let Some(Ok(request)) = stop.run_until_cancelled(router.recv()).await {
        let frames = request.into_vec();
        let from = u64::from_be_bytes(frames[2].as_ref().try_into().unwrap());
        let past = past.lock().unwrap().clone();
        let end = (u64::MAX, Bytes::new());
        let found = past.into_iter().filter(|(sequence, _)| *sequence >= from);
        for (sequence, payload) in found.chain([end]) {
            let mut reply = ZmqMessage::from(frames[0].clone());
            reply.push_back(Bytes::new());
            reply.push_back(Bytes::copy_from_slice(&sequence.to_be_bytes()));
            reply.push_back(payload);
            router.send(reply).await.unwrap();
        }
    }
    assert!(router.close().await.is_empty());
}

fn stored(name: u64) -> Bytes {
    let event = ("BlockStored", [name], None::<u64>, [1, 2, 3, 4], 4);
    // Messages hold the engine's clock, so that no two are alike.
    let at: f64 = rand::random();
    rmp_serde::to_vec(&(at, [event], 0)).unwrap().into()
}

/// A feed under test, and what it has told.
struct Listener {
    events: mpsc::Receiver<SourceEvent>,
    _feed: JoinSet<()>,
    state: FeedState,
    gone: Vec<u64>,
    gaps: usize,
    repairs: usize,
    /// Publisher, sequence and the names that were stored.
    batches: Vec<(u64, u64, Vec<u64>)>,
}

const FEED: FeedId = FeedId {
    source: 0,
    endpoint: 0,
};

impl Listener {
    fn to(engine: &Engine) -> Self {
        Self::with_replay(&engine.events, Some(&engine.replay))
    }

    fn with_replay(events: &str, replay: Option<&str>) -> Self {
        let config = FeedConfig {
            events: events.to_owned(),
            replay: replay.map(str::to_owned),
            topic: String::new(),
            rank: 0,
            gone_after: Duration::from_secs(1),
            decoder: DecoderConfig {
                block_size: NonZeroU32::new(4).unwrap(),
                format: HashFormat::Standard,
                max_salted: 0,
            },
        };
        let (sender, events) = mpsc::channel(4);
        let mut feed = JoinSet::new();
        feed.spawn(run(FEED, config, sender));
        Self {
            events,
            _feed: feed,
            state: FeedState::Connecting,
            gone: Vec::new(),
            gaps: 0,
            repairs: 0,
            batches: Vec::new(),
        }
    }

    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let all = async {
            while !done(self) {
                let event = self.events.recv().await.unwrap();
                self.note(event);
            }
        };
        let in_time = timeout(PATIENCE, all).await.is_ok();
        assert!(
            in_time,
            "not in time: {what}; state {:?}, gone {:?}, batches {:?}",
            self.state, self.gone, self.batches
        );
    }

    fn note(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Feed { state, .. } => self.state = state,
            SourceEvent::PublisherGone { publisher, .. } => self.gone.push(publisher),
            SourceEvent::Gap { .. } => self.gaps += 1,
            SourceEvent::Repaired { .. } => self.repairs += 1,
            SourceEvent::FeedEnded { .. }
            | SourceEvent::Parts { .. }
            | SourceEvent::Belongs { .. }
            | SourceEvent::Refused { .. } => panic!("its feeds and shape are configured"),
            SourceEvent::Table { .. }
            | SourceEvent::Filter { .. }
            | SourceEvent::Ended { .. }
            | SourceEvent::Served { .. } => panic!("it has no peer"),
            SourceEvent::Batch {
                worker,
                sequence,
                events,
                ..
            } => {
                let mut names = Vec::new();
                for event in events {
                    match event {
                        KvEvent::Stored { blocks, .. } => {
                            names.extend(blocks.iter().map(|block| block.engine.0));
                        }
                        other => panic!("not published: {other:?}"),
                    }
                }
                self.batches.push((worker.publisher, sequence, names));
            }
        }
    }

    async fn until_batches(&mut self, count: usize) {
        self.until("batches", |l| l.batches.len() >= count).await;
    }

    fn names(&self) -> Vec<u64> {
        self.batches
            .iter()
            .flat_map(|batch| batch.2.clone())
            .collect()
    }

    fn publishers(&self) -> Vec<u64> {
        let mut publishers: Vec<_> = self.batches.iter().map(|batch| batch.0).collect();
        publishers.dedup();
        publishers
    }
}

#[tokio::test]
async fn a_late_feed_replays_what_it_missed_and_goes_on_live() {
    let mut engine = Engine::start().await;
    let mut names = vec![engine.store().await, engine.store().await];

    let mut feed = Listener::to(&engine);
    feed.until_batches(2).await;
    names.push(engine.store().await);
    feed.until_batches(3).await;

    assert_eq!(feed.names(), names);
    assert_eq!(feed.state, FeedState::Whole);
    assert_eq!(feed.publishers().len(), 1);
    assert_eq!(feed.batches[2].1, 2, "the engine's own sequence");
}

#[tokio::test]
async fn an_engine_that_has_published_nothing_is_seen_whole() {
    let engine = Engine::start().await;

    let mut feed = Listener::to(&engine);

    feed.until("whole", |l| l.state == FeedState::Whole).await;
    assert!(feed.batches.is_empty());
}

#[tokio::test]
async fn a_gap_is_repaired_in_order() {
    let mut engine = Engine::start().await;
    let mut names = vec![engine.store().await];
    let mut feed = Listener::to(&engine);
    feed.until_batches(1).await;

    names.push(engine.store_unheard());
    names.push(engine.store_unheard());
    names.push(engine.store().await);
    feed.until_batches(4).await;
    feed.until("the repair is told", |l| l.repairs > 0).await;

    assert_eq!(feed.names(), names);
    assert_eq!(feed.state, FeedState::Whole);
    assert!(feed.gone.is_empty());
    assert_eq!(feed.gaps, 0);
}

#[tokio::test]
async fn a_lost_message_with_none_after_it_is_found_too() {
    let mut engine = Engine::start().await;
    let mut names = vec![engine.store().await];
    let mut feed = Listener::to(&engine);
    feed.until_batches(1).await;

    names.push(engine.store_unheard());
    feed.until_batches(2).await;

    assert_eq!(feed.names(), names);
}

#[tokio::test]
async fn a_gap_that_cannot_be_repaired_drops_the_blocks() {
    let mut engine = Engine::start().await;
    engine.store().await;
    let mut feed = Listener::to(&engine);
    feed.until_batches(1).await;

    engine.store_unheard();
    engine.forget();
    let after = engine.store().await;
    feed.until_batches(2).await;

    assert_eq!(feed.gone, [feed.batches[0].0]);
    assert_eq!(feed.batches[1].2, [after]);
    assert_eq!(feed.publishers().len(), 2);
    assert_eq!((feed.state, feed.gaps), (FeedState::Partial, 1));
}

#[tokio::test]
async fn a_restarted_engine_is_another_publisher() {
    let mut engine = Engine::start().await;
    engine.store().await;
    engine.store().await;
    let mut feed = Listener::to(&engine);
    feed.until_batches(2).await;

    let (events, replay) = engine.stop().await;
    let mut engine = Engine::start_on(&events, &replay).await;
    let name = engine.store().await;
    feed.until_batches(3).await;

    assert_eq!(feed.gone, [feed.batches[0].0]);
    assert_eq!(feed.batches[2].1, 0);
    assert_eq!(feed.batches[2].2, [name]);
    assert_eq!(feed.publishers().len(), 2);
    assert_eq!(feed.state, FeedState::Whole);
}

#[tokio::test]
async fn a_restarted_engine_that_is_further_on_is_not_taken_for_the_old_one() {
    let mut engine = Engine::start().await;
    engine.store().await;
    let mut feed = Listener::to(&engine);
    feed.until_batches(1).await;

    let (events, replay) = engine.stop().await;
    let mut engine = Engine::start_on(&events, &replay).await;
    let names = [
        engine.store_unheard(),
        engine.store_unheard(),
        engine.store().await,
    ];
    feed.until_batches(4).await;

    assert_eq!(feed.gone.len(), 1);
    assert_eq!(feed.names()[1..], names);
    assert_eq!(feed.state, FeedState::Whole);
}

#[tokio::test]
async fn a_broken_connection_costs_nothing_when_it_comes_back() {
    let mut engine = Engine::start().await;
    let mut names = vec![engine.store().await];
    let mut feed = Listener::to(&engine);
    feed.until_batches(1).await;

    let mut engine = engine.reconnect().await;
    names.push(engine.store_unheard());
    names.push(engine.store().await);
    feed.until_batches(3).await;

    assert_eq!(feed.names(), names);
    assert!(feed.gone.is_empty());
    assert_eq!(feed.publishers().len(), 1);
}

#[tokio::test]
async fn an_engine_that_stays_away_is_gone_and_welcome_back() {
    let mut engine = Engine::start().await;
    engine.store().await;
    let mut feed = Listener::to(&engine);
    feed.until_batches(1).await;

    let (events, replay) = engine.stop().await;
    feed.until("gone", |l| l.state == FeedState::Gone).await;
    let gone = feed.gone.clone();
    let mut engine = Engine::start_on(&events, &replay).await;
    engine.store().await;
    feed.until_batches(2).await;

    assert_eq!(gone, [feed.batches[0].0]);
    assert_eq!(feed.state, FeedState::Whole);
}

#[tokio::test]
async fn an_engine_that_was_never_there_is_not_taken_for_gone() {
    let engine = Engine::start().await;
    let (events, replay) = engine.stop().await;
    let mut feed = Listener::with_replay(&events, Some(&replay));

    // Three times as long as one that has been there would be waited for.
    let gone = feed.until("gone", |l| l.state == FeedState::Gone);
    assert!(timeout(Duration::from_secs(3), gone).await.is_err());
    let mut engine = Engine::start_on(&events, &replay).await;
    engine.store().await;
    feed.until_batches(1).await;

    assert_eq!(feed.state, FeedState::Whole);
}

#[tokio::test]
async fn a_message_that_may_hide_a_removal_drops_the_blocks() {
    let mut engine = Engine::start().await;
    engine.store().await;
    let mut feed = Listener::to(&engine);
    feed.until_batches(1).await;

    engine.publish(Bytes::from_static(b"nonsense")).await;
    let name = engine.store().await;
    feed.until_batches(3).await;

    assert_eq!(feed.gone, [feed.batches[0].0]);
    assert_eq!(feed.batches[1].2, Vec::<u64>::new());
    assert_eq!(feed.batches[2].2, [name]);
    assert_eq!(feed.state, FeedState::Partial);
}

#[tokio::test]
async fn without_a_replay_port_only_the_first_message_makes_a_whole_life() {
    let mut engine = Engine::start().await;
    let mut late = Listener::with_replay(&engine.events, None);
    engine.store_unheard();

    // Which message is heard first depends on when the subscription is in place.
    while late.batches.is_empty() {
        engine.store().await;
        let waited = timeout(Duration::from_millis(50), late.until_batches(1)).await;
        drop(waited);
    }

    assert!(late.batches[0].1 > 0);
    assert_eq!(late.state, FeedState::Partial);
}

#[tokio::test]
async fn a_replay_port_that_opens_late_tells_the_beginning() {
    let mut engine = Engine::start().await;
    let spare = Engine::start().await;
    let (_, replay) = spare.stop().await;
    let mut names = vec![engine.store_unheard()];
    let mut feed = Listener::with_replay(&engine.events, Some(&replay));
    while feed.batches.is_empty() {
        names.push(engine.store().await);
        let waited = timeout(Duration::from_millis(100), feed.until_batches(1)).await;
        drop(waited);
    }
    let state_before = feed.state;

    let mut router = RouterSocket::new();
    bind(&mut router, &replay).await;
    let past = Arc::clone(&engine.past);
    engine
        .replays
        .spawn(serve_replays(router, past, engine.stop.clone()));
    feed.until("whole", |l| l.state == FeedState::Whole).await;
    let publisher = feed.publishers().len();
    feed.until("all names", |l| names.iter().all(|n| l.names().contains(n)))
        .await;

    assert_eq!(state_before, FeedState::Partial);
    assert_eq!(feed.gone.len(), 1);
    assert!(publisher <= 2);
}
