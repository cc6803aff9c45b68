//! Streams that real publishers sent, read by the tests' own reader.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kvgrid_core::block::HashFormat;
use kvgrid_core::event::Tier;
use kvgrid_core::event::engine::DecoderConfig;

use super::model::{Again, Fact, Model, Name, Place, local_hash};
use super::value::Value;
use super::{Pools, TIERS};
use crate::sources::dynamo_events::scripted::ScriptedFollower;
use crate::sources::engine_zmq::scripted::ScriptedFeed;
use crate::sources::{FeedId, SourceEvent};

const BLOCK_SIZE: u32 = 16;
const FEED: FeedId = FeedId {
    source: 0,
    endpoint: 0,
};

/// A message as it was sent.
struct Heard {
    sequence: u64,
    body: Vec<u8>,
}

/// What a publisher holds, as far as its messages were heard without a hole.
struct Reading {
    model: Model,
    next: Option<u64>,
}

impl Reading {
    fn new(again: Again) -> Self {
        let (model, next) = (Model::new(again), None);
        Self { model, next }
    }

    fn hears(&mut self, again: Again, sequence: u64, facts: &[Fact]) {
        if self.next != Some(sequence) {
            self.model = Model::new(again);
        }
        self.next = Some(sequence + 1);
        facts.iter().for_each(|fact| self.model.learn(fact));
    }
}

fn take(pools: &mut Pools, told: &[SourceEvent]) {
    told.iter().for_each(|event| pools.take(event));
}

/// Hears a raw engine's messages; returns how many chains were published at most.
fn replay_engine(messages: &[Heard], what: &str) -> usize {
    let decoder = DecoderConfig {
        block_size: NonZeroU32::new(BLOCK_SIZE).unwrap(),
        format: HashFormat::Standard,
        max_salted: 100,
    };
    let mut feed = ScriptedFeed::new(FEED, 0, decoder, None);
    let mut pools = Pools::new(Again::More);
    let mut reading = Reading::new(Again::More);
    take(&mut pools, &feed.connected());
    let mut most = 0;
    for Heard { sequence, body } in messages {
        reading.hears(Again::More, *sequence, &engine_facts(body));
        take(
            &mut pools,
            &feed.hears(*sequence, Bytes::copy_from_slice(body)),
        );
        most = most.max(compare(&pools, &[&reading].into_iter(), what));
    }
    most
}

/// Hears Dynamo workers' messages; returns how many chains were published at most.
fn replay_plane(messages: &[Heard], framed: bool, what: &str) -> usize {
    let mut pools = Pools::new(Again::Same);
    let mut voices: BTreeMap<u64, (ScriptedFollower, Reading)> = BTreeMap::new();
    let mut most = 0;
    for Heard { body, .. } in messages {
        let envelope = Value::read(if framed { &body[5..] } else { body });
        if *envelope.get("topic") != Value::text("kv-events") {
            continue;
        }
        let number = |name| envelope.get(name).uint().unwrap();
        let (publisher, sequence) = (number("publisher_id"), number("sequence"));
        let endpoint = voices.len();
        let (follower, reading) = voices.entry(publisher).or_insert_with(|| {
            let feed = FeedId { endpoint, ..FEED };
            let follower = ScriptedFollower::new(feed, publisher, None, true);
            (follower, Reading::new(Again::Same))
        });
        reading.hears(Again::Same, sequence, &plane_facts(&envelope));
        let body = Bytes::copy_from_slice(body);
        take(&mut pools, &follower.hears(sequence, body, framed));
        let readings = voices.values().map(|(_, reading)| reading);
        most = most.max(compare(&pools, &readings, what));
    }
    most
}

fn compare<'a>(
    pools: &Pools,
    readings: &(impl Iterator<Item = &'a Reading> + Clone),
    what: &str,
) -> usize {
    let chains = |tier| readings.clone().flat_map(move |it| it.model.chains(tier));
    pools.check_against(chains, what);
    TIERS.into_iter().flat_map(chains).count()
}

/// What a raw engine's message means; these are of maps without salts or adapters.
fn engine_facts(body: &[u8]) -> Vec<Fact> {
    let batch = Value::read(body);
    let rank = batch.items().get(2).and_then(Value::uint).unwrap_or(0);
    let tier = Tier::Device;
    let place = Place {
        rank: rank.try_into().unwrap(),
        tier,
    };
    let fact = |event: &Value| match event.get("type") {
        kind if *kind == Value::text("BlockStored") => {
            let token = |token: &Value| u32::try_from(token.uint().unwrap()).unwrap();
            let tokens: Vec<u32> = event.get("token_ids").items().iter().map(token).collect();
            let blocks = tokens.chunks(BLOCK_SIZE as usize);
            let locals = blocks.map(|block| local_hash(block, None, None));
            let names = names(event.get("block_hashes"));
            let parent = name(event.get("parent_block_hash"));
            Fact::Stored(place, parent, names.into_iter().zip(locals).collect())
        }
        kind if *kind == Value::text("BlockRemoved") => {
            Fact::Removed(place, names(event.get("block_hashes")))
        }
        _ => Fact::Cleared(place.rank),
    };
    batch.items()[1].items().iter().map(fact).collect()
}

/// What a message on Dynamo's plane means; these are of device blocks only.
fn plane_facts(envelope: &Value) -> Vec<Fact> {
    let Value::Bytes(payload) = envelope.get("payload") else {
        panic!("no payload");
    };
    let payload = Value::read(payload);
    let events = match &payload {
        Value::Map(_) => std::slice::from_ref(&payload),
        list => list.items(),
    };
    let fact = |event: &Value| {
        let event = event.get("event");
        let rank = event.get("dp_rank").uint().unwrap_or(0);
        let tier = Tier::Device;
        let place = Place {
            rank: rank.try_into().unwrap(),
            tier,
        };
        let data = event.get("data");
        let (stored, removed) = (data.get("stored"), data.get("removed"));
        if *removed != Value::Nil {
            return Fact::Removed(place, names(removed.get("block_hashes")));
        }
        if *stored == Value::Nil {
            return Fact::Cleared(place.rank);
        }
        let block = |block: &Value| {
            let local = block.get("tokens_hash").uint().unwrap();
            (name(block.get("block_hash")).unwrap(), local)
        };
        let blocks = stored.get("blocks").items().iter().map(block);
        Fact::Stored(place, name(stored.get("parent_hash")), blocks.collect())
    };
    events.iter().map(fact).collect()
}

fn names(list: &Value) -> Vec<Name> {
    list.items().iter().filter_map(name).collect()
}

fn name(value: &Value) -> Option<Name> {
    Some(value.uint()?.to_le_bytes().to_vec())
}

/// A folder of messages that Dynamo's mocker sent while a small cache filled and evicted.
fn fixture(folder: &str, prefix: &str) -> Vec<Heard> {
    let events = Path::new(env!("CARGO_MANIFEST_DIR")).join("../common/core/src/event");
    let read = |sequence: u64| Heard {
        sequence,
        body: fs::read(events.join(format!("{folder}/fixtures/{prefix}_{sequence:02}.bin")))
            .unwrap(),
    };
    (0..13).map(read).collect()
}

#[test]
fn what_a_raw_engine_sent_gives_what_the_model_says() {
    let most = replay_engine(&fixture("engine", "mocker"), "mocker");

    assert!(most > 4, "{most}");
}

#[test]
fn what_a_dynamo_worker_sent_gives_what_the_model_says() {
    let most = replay_plane(&fixture("dynamo", "evictions"), true, "evictions");

    assert!(most > 4, "{most}");
}

/// All captures in the folder that `KVGRID_SHARED` names.
#[test]
fn every_capture_gives_what_the_model_says() {
    let test = "every_capture_gives_what_the_model_says";
    let Some(captures) = shared(test, "samples/dynamo/kv_events") else {
        return;
    };
    let mut seen = 0;
    for capture in sorted(&captures) {
        let what = capture.display().to_string();
        let most = match Capture::read(&capture) {
            Capture::Engine(messages) => replay_engine(&messages, &what),
            Capture::Plane(messages, framed) => replay_plane(&messages, framed, &what),
        };
        assert!(most > 0, "{what}: nothing was published");
        seen += 1;
    }
    assert!(seen > 0, "no captures in {}", captures.display());
}

/// A folder of the one that `KVGRID_SHARED` names; without that the test is skipped.
pub(super) fn shared(test: &str, folder: &str) -> Option<PathBuf> {
    let Some(shared) = std::env::var_os("KVGRID_SHARED") else {
        // Written past cargo's capture, so that it shows although the test passes.
        let reason = "KVGRID_SHARED names no folder of captures";
        writeln!(std::io::stderr(), "skipped: {test}: {reason}").unwrap();
        return None;
    };
    Some(Path::new(&shared).join(folder))
}

enum Capture {
    Engine(Vec<Heard>),
    /// Whether frames are around the messages.
    Plane(Vec<Heard>, bool),
}

impl Capture {
    /// Files are named by a number, a topic on Dynamo's ZeroMQ plane, and a frame; those from
    /// NATS have a number only.
    fn read(folder: &Path) -> Self {
        let files = sorted(folder).into_iter();
        let files: Vec<PathBuf> = files
            .filter(|it| it.extension().is_some_and(|it| it == "bin"))
            .collect();
        let last = |ending: &str| {
            let is = |path: &&PathBuf| path.to_string_lossy().ends_with(ending);
            let found: Vec<&PathBuf> = files.iter().filter(is).collect();
            found
        };
        let heard = |path: &PathBuf, sequence: u64| Heard {
            sequence,
            body: fs::read(path).unwrap(),
        };
        let planes = last(".frame3.bin");
        if !planes.is_empty() {
            return Self::Plane(
                planes.into_iter().map(|path| heard(path, 0)).collect(),
                true,
            );
        }
        let raw = last(".frame2.bin");
        if raw.is_empty() {
            return Self::Plane(files.iter().map(|path| heard(path, 0)).collect(), false);
        }
        let numbered = |path: &PathBuf| {
            let sequence = path.to_string_lossy().replace(".frame2.", ".frame1.");
            let sequence = fs::read(sequence).unwrap();
            heard(path, u64::from_be_bytes(sequence.try_into().unwrap()))
        };
        Self::Engine(raw.into_iter().map(numbered).collect())
    }
}

pub(super) fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}
