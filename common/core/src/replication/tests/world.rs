//! A publisher, the plain set that it should be equal to, and edges behind bad links.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::block::ChainHash;
use crate::filter::{Class, Form, Geometry, Header, MixKey, ReplaceError};
use crate::replication::{
    Chunk, Completeness, Epoch, Frame, Publisher, PublisherConfig, Replacement, Replica,
    ReplicaConfig, ReplicaError, ReplicaState, Request, Subscription, SubscriptionId,
};
use crate::time::Instant;

/// The source that all changes come from.
pub(super) const SOURCE: u64 = 77;

/// Changes a replica may keep for chunks that are to come.
const MAX_KEPT: usize = 12;

/// One edge's replica and what is on its way to and from it.
pub(super) struct Edge {
    pub(super) replica: Replica,
    connected: bool,
    session: Option<(SubscriptionId, Subscription)>,
    requests: VecDeque<Request>,
    stream: VecDeque<(SubscriptionId, Frame)>,
    chunks: Vec<(SubscriptionId, Chunk)>,
}

/// Everything.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) publisher: Publisher,
    pub(super) edges: Vec<Edge>,
    key: Arc<MixKey>,
    form: Form,
    incarnation: u64,
    /// Blocks and the source position at which each was inserted.
    blocks: BTreeMap<u64, u64>,
    position: u64,
}

pub(super) fn small_geometry(chunks: u32, key: &MixKey) -> Geometry {
    Geometry::from_header(Header {
        chunks,
        chunk_buckets: 8,
        slots: 4,
        fingerprint_bits: 16,
        key_id: key.id(),
    })
    .unwrap()
}

impl World {
    pub(super) fn new(edges: usize) -> Self {
        Self::of_form(Form::Filter, edges)
    }

    pub(super) fn of_form(form: Form, edges: usize) -> Self {
        let key = Arc::new(MixKey::from_bytes(&[5; 32]));
        let geometry = small_geometry(4, &key).with_form(form);
        let publisher = new_publisher(&key, Replacement::empty(Arc::clone(&key), geometry), 1);
        let mut world = Self {
            now: Instant::ZERO,
            publisher,
            edges: (0..edges).map(|_| Edge::new(&key, form)).collect(),
            key,
            form,
            incarnation: 1,
            blocks: BTreeMap::new(),
            position: 0,
        };
        world
            .publisher
            .set_completeness(Completeness::Whole, world.now);
        world.publisher.close();
        for edge in 0..edges {
            world.connect(edge);
        }
        world
    }

    /// Inserts the block, or removes it if it is in.
    pub(super) fn flip(&mut self, block: u64) {
        self.position += 1;
        if self.blocks.remove(&block).is_some() {
            self.publisher.remove(ChainHash(block), self.now);
        } else {
            self.blocks.insert(block, self.position);
            self.publisher.insert(ChainHash(block), self.now);
        }
        self.publisher.set_applied(SOURCE, self.position, self.now);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.publisher.handle_timeout(self.now);
        for edge in &mut self.edges {
            edge.replica.handle_timeout(self.now);
        }
    }

    pub(super) fn live(&self) -> impl Iterator<Item = ChainHash> + Clone {
        self.blocks.keys().map(|block| ChainHash(*block))
    }

    pub(super) fn grow_if_due(&mut self) {
        if let Some(geometry) = self.publisher.growth() {
            let table = Replacement::build(Arc::clone(&self.key), geometry, self.live());
            self.publisher.replace(table);
        }
    }

    /// The relay starts anew and learns all blocks again from its sources.
    pub(super) fn restart(&mut self, completeness: Completeness) {
        self.incarnation += 1;
        let geometry = small_geometry(4, &self.key).with_form(self.form);
        let table = Replacement::build(Arc::clone(&self.key), geometry, self.live());
        self.publisher = new_publisher(&self.key, table, self.incarnation);
        self.publisher.set_applied(SOURCE, self.position, self.now);
        self.publisher.set_completeness(completeness, self.now);
        self.publisher.close();
        for edge in 0..self.edges.len() {
            self.disconnect(edge);
        }
    }

    pub(super) fn connect(&mut self, edge: usize) {
        let edge = &mut self.edges[edge];
        if !edge.connected {
            edge.connected = true;
            edge.replica.handle_connect(self.now);
        }
    }

    /// All frames under way are lost; chunks may still come.
    pub(super) fn disconnect(&mut self, edge: usize) {
        let edge = &mut self.edges[edge];
        edge.connected = false;
        edge.session = None;
        edge.requests.clear();
        edge.stream.clear();
        edge.replica.handle_disconnect(self.now);
    }

    /// The relay ends the edge's subscription, and its stream breaks after so many frames.
    pub(super) fn end_stream(&mut self, edge: usize, after: usize) {
        let edge = &mut self.edges[edge];
        let Some((id, _)) = edge.session.take() else {
            return;
        };
        for (of, frame) in edge.stream.drain(..).take(after) {
            edge.replica.handle_frame(of, frame, self.now).unwrap();
        }
        edge.replica.handle_stream_end(id, self.now);
    }

    /// Carries what the edge asks for to the relay.
    pub(super) fn ask(&mut self, edge: usize) -> bool {
        let edge = &mut self.edges[edge];
        if !edge.connected {
            return false;
        }
        while let Some(request) = edge.replica.poll_request(self.now) {
            edge.requests.push_back(request);
        }
        let moved = !edge.requests.is_empty();
        for request in edge.requests.drain(..) {
            match (request, &mut edge.session) {
                (
                    Request::Subscribe {
                        subscription,
                        resume,
                        ..
                    },
                    session,
                ) => {
                    *session = Some((subscription, self.publisher.subscribe(resume)));
                }
                (Request::Audit { subscription }, Some((id, session))) if *id == subscription => {
                    session.request_audit();
                }
                (Request::Audit { .. }, _) => {}
            }
        }
        moved
    }

    /// The relay writes at most so many frames to the edge's stream.
    pub(super) fn write_frames(&mut self, edge: usize, most: usize) -> bool {
        let edge = &mut self.edges[edge];
        let Some((id, session)) = &mut edge.session else {
            return false;
        };
        let before = edge.stream.len();
        let frames = core::iter::from_fn(|| self.publisher.poll_frame(session));
        edge.stream
            .extend(frames.take(most).map(|frame| (*id, frame)));
        edge.stream.len() > before
    }

    /// The relay sends at most so many chunks.
    pub(super) fn write_chunks(&mut self, edge: usize, most: usize) -> bool {
        let edge = &mut self.edges[edge];
        let Some((id, session)) = &mut edge.session else {
            return false;
        };
        let before = edge.chunks.len();
        let chunks = core::iter::from_fn(|| self.publisher.poll_chunk(session));
        edge.chunks
            .extend(chunks.take(most).map(|chunk| (*id, chunk)));
        edge.chunks.len() > before
    }

    /// At most so many frames arrive.
    pub(super) fn deliver_frames(&mut self, edge: usize, most: usize) -> bool {
        let edge = &mut self.edges[edge];
        let most = most.min(edge.stream.len());
        for (id, frame) in edge.stream.drain(..most) {
            edge.replica.handle_frame(id, frame, self.now).unwrap();
        }
        most > 0
    }

    /// One of the chunks under way arrives, and stays under way if it is `doubled`.
    pub(super) fn deliver_chunk(&mut self, edge: usize, which: usize, doubled: bool) -> bool {
        let edge = &mut self.edges[edge];
        if edge.chunks.is_empty() {
            return false;
        }
        let which = which % edge.chunks.len();
        let (id, chunk) = if doubled {
            edge.chunks[which].clone()
        } else {
            edge.chunks.swap_remove(which)
        };
        match edge.replica.handle_chunk(id, chunk, self.now) {
            // Chunks cut at different times can be more together than the table ever held: the
            // replica starts afresh.
            Ok(()) | Err(ReplicaError::Chunk(ReplaceError::Full { .. })) => true,
            Err(error) => panic!("{error}"),
        }
    }

    /// Lets everything come to rest over links that work.
    pub(super) fn settle(&mut self) {
        for _ in 0..200 {
            self.publisher.close();
            self.grow_if_due();
            let mut moved = false;
            for edge in 0..self.edges.len() {
                self.connect(edge);
                moved |= self.ask(edge);
                moved |= self.write_frames(edge, usize::MAX);
                moved |= self.write_chunks(edge, usize::MAX);
                moved |= self.deliver_frames(edge, usize::MAX);
                while self.deliver_chunk(edge, 0, false) {
                    moved = true;
                }
            }
            if !moved && self.edges.iter().all(|edge| edge.is_live()) {
                return;
            }
            if !moved {
                self.pass(Duration::from_secs(1));
            }
        }
        panic!("the world does not come to rest");
    }

    /// No reader misses a block that was in at the position it is told of, and still is.
    pub(super) fn check_readers(&self) {
        for edge in &self.edges {
            let view = edge.replica.snapshot();
            let (Some(filter), Some(applied)) = (&view.filter, view.applied(SOURCE)) else {
                continue;
            };
            let geometry = *filter.reader.geometry();
            for (block, inserted_at) in &self.blocks {
                let class = geometry.class(&self.key, ChainHash(*block));
                assert!(
                    *inserted_at > applied || filter.reader.contains(class),
                    "block {block} is missed, inserted at {inserted_at} of {applied}"
                );
            }
        }
    }

    /// No replica keeps more than it may.
    pub(super) fn check_bounds(&self) {
        for edge in &self.edges {
            // Of what is searched and of what takes its place.
            assert!(edge.replica.kept() <= 2 * MAX_KEPT);
        }
    }

    /// Every replica is what the plain set is.
    pub(super) fn check_equal(&self) {
        let geometry = *self.publisher.geometry();
        let mut expected: Vec<Class> = self
            .live()
            .map(|chain| geometry.class(&self.key, chain))
            .collect();
        expected.sort_unstable();
        for edge in &self.edges {
            let view = edge.replica.snapshot();
            assert_eq!(view.state, ReplicaState::Live);
            assert_eq!(view.epoch, Some(self.publisher.epoch()));
            assert_eq!(view.seq, self.publisher.seq());
            assert_eq!(view.applied(SOURCE).unwrap_or(0), self.position);
            assert_eq!(view.syncing, None);
            assert_eq!(edge.replica.classes(), expected);
        }
    }
}

impl Edge {
    fn new(key: &Arc<MixKey>, form: Form) -> Self {
        let config = ReplicaConfig {
            form,
            max_chunks: 64,
            max_kept: MAX_KEPT,
            max_early_bytes: 500,
            // Nothing may depend on it.
            stall_after: Duration::from_secs(100_000),
            ..ReplicaConfig::with_keys(vec![Arc::clone(key)])
        };
        Self {
            replica: Replica::new(config),
            connected: false,
            session: None,
            requests: VecDeque::new(),
            stream: VecDeque::new(),
            chunks: Vec::new(),
        }
    }

    fn is_live(&self) -> bool {
        self.replica.snapshot().state == ReplicaState::Live
    }

    pub(super) fn drifts(&self) -> u32 {
        self.replica.drifts()
    }

    pub(super) fn state(&self) -> ReplicaState {
        self.replica.snapshot().state
    }

    pub(super) fn frames_under_way(&self) -> impl Iterator<Item = &Frame> {
        self.stream.iter().map(|(_, frame)| frame)
    }

    pub(super) fn lose_chunks(&mut self) {
        self.chunks.clear();
    }
}

fn new_publisher(key: &Arc<MixKey>, table: Replacement, incarnation: u64) -> Publisher {
    assert_eq!(key.id(), table_key(&table));
    let config = PublisherConfig {
        batch_changes: 10,
        ring_bytes: 700,
        ..PublisherConfig::default()
    };
    Publisher::new(config, table, Epoch::new(incarnation, 0))
}

fn table_key(table: &Replacement) -> u64 {
    table.geometry().key_id()
}
