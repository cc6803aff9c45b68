//! Filters that Dynamo's own relay has sent, read by the tests' own reader: a copy of the
//! table must come to the same entries, whatever changes have led to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use kvgrid_core::block::ChainHash;
use kvgrid_core::ckf::{Changes, Format, Kind, Mirror, Progress, Stream, Update};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::captures::{shared, sorted};

/// What the test reads of a message; a message inside another is like bytes on the wire.
#[derive(Clone, PartialEq, Message)]
struct Sent {
    #[prost(message, optional, tag = "3")]
    producer: Option<Producer>,
    #[prost(uint64, tag = "4")]
    base: u64,
    #[prost(uint64, tag = "5")]
    sequence: u64,
    #[prost(int32, tag = "7")]
    kind: i32,
    #[prost(bytes = "vec", tag = "8")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Producer {
    #[prost(message, optional, tag = "4")]
    format: Option<Shape>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Shape {
    #[prost(fixed64, tag = "2")]
    seed: u64,
    #[prost(uint64, tag = "3")]
    buckets: u64,
}

/// Where a frame names its data centre.
const CENTRE: usize = 28;

/// An entry: the lower of its two buckets, and its fingerprint.
type Class = (u64, u64);

/// The table as it was sent, and its entries counted from scratch.
struct Table {
    shape: Shape,
    words: BTreeMap<u64, u64>,
}

impl Table {
    fn take(&mut self, sent: &Sent) {
        let number = |at: usize, bytes: usize| {
            let mut number = [0; 8];
            number[..bytes].copy_from_slice(&sent.payload[at..at + bytes]);
            u64::from_le_bytes(number)
        };
        match sent.kind {
            1 => {
                let words = (64..sent.payload.len()).step_by(8);
                for (at, bucket) in words.zip(number(56, 8)..) {
                    self.words.insert(bucket, number(at, 8));
                }
            }
            2 => {
                for at in (60..sent.payload.len()).step_by(12) {
                    self.words.insert(number(at, 4), number(at + 4, 8));
                }
            }
            _ => {}
        }
    }

    fn entries(&self) -> BTreeMap<Class, usize> {
        let mut entries = BTreeMap::new();
        for (bucket, word) in &self.words {
            let prints = (0..4).map(|slot| word >> (slot * 16) & 0xffff);
            for print in prints.filter(|print| *print != 0) {
                let seed = self.shape.seed ^ 0x9e37_79b9_7f4a_7c15;
                let step = xxh3_64_with_seed(&print.to_le_bytes()[..2], seed);
                let other = bucket ^ (step & (self.shape.buckets - 1)).max(1);
                *entries.entry(((*bucket).min(other), print)).or_default() += 1;
            }
        }
        entries
    }
}

/// The code under test, and its entries as its changes add up.
struct Copy {
    stream: Stream,
    mirror: Mirror,
    entries: BTreeMap<Class, usize>,
}

impl Copy {
    fn take(&mut self, sent: &Sent) {
        let kind = [Kind::Chunk, Kind::Delta, Kind::Heartbeat];
        let update = Update {
            kind: kind[usize::try_from(sent.kind).unwrap() - 1],
            base: sent.base,
            sequence: sent.sequence,
            payload: &sent.payload,
        };
        let changes = match self.stream.handle(update).unwrap() {
            Progress::Nothing => Changes::default(),
            Progress::Snapshot { words, .. } => self.mirror.replace(words),
            Progress::Delta { images, .. } => self.mirror.apply(&images),
        };
        for name in changes.removed {
            *self
                .entries
                .get_mut(&class(name))
                .expect("it was told before") -= 1;
        }
        for name in changes.inserted {
            *self.entries.entry(class(name)).or_default() += 1;
        }
        self.entries.retain(|_, count| *count > 0);
    }
}

const fn class(name: ChainHash) -> Class {
    (name.0 >> 16 & 0xffff_ffff, name.0 & 0xffff)
}

#[test]
fn every_captured_filter_gives_what_the_model_says() {
    let test = "every_captured_filter_gives_what_the_model_says";
    let Some(captures) = shared(test, "samples/dynamo/kv_dc_relay") else {
        return;
    };
    let folders = sorted(&captures).into_iter().filter(|path| path.is_dir());
    let snapshots: usize = folders.map(|folder| replay(&folder)).sum();

    assert!(snapshots > 0, "no filters in {}", captures.display());
}

/// Takes all of a folder's messages; returns how many snapshots are among them.
fn replay(folder: &Path) -> usize {
    let mut snapshots = 0;
    let mut both: Option<(Table, Copy)> = None;
    for path in sorted(folder) {
        if !path.to_string_lossy().contains(".SubscribeKvPool.pb") {
            continue;
        }
        let sent = Sent::decode(unpacked(&path).as_slice()).unwrap();
        // Each subscription begins with a snapshot, of one chunk in all of these.
        if sent.kind == 1 {
            snapshots += 1;
            both = Some(begin(&sent));
        }
        let (table, copy) = both.as_mut().expect("a snapshot comes first");
        table.take(&sent);
        copy.take(&sent);
        assert_eq!(copy.entries, table.entries(), "{}", path.display());
        assert_eq!(
            copy.mirror.names().count(),
            copy.entries.values().sum::<usize>()
        );
    }
    assert!(both.is_none_or(|(table, _)| !table.words.is_empty()));
    snapshots
}

fn begin(sent: &Sent) -> (Table, Copy) {
    let producer = sent.producer.clone().unwrap();
    let shape = producer.format.unwrap();
    let format = Format::new(shape.seed, shape.buckets).unwrap();
    // The data centre that the frame names.
    let centre = u64::from_le_bytes(sent.payload[CENTRE..CENTRE + 8].try_into().unwrap());
    let table = Table {
        shape,
        words: BTreeMap::new(),
    };
    let copy = Copy {
        stream: Stream::new(format, centre),
        mirror: Mirror::new(format),
        entries: BTreeMap::new(),
    };
    (table, copy)
}

fn unpacked(path: &Path) -> Vec<u8> {
    if path.extension().is_none_or(|it| it != "gz") {
        return fs::read(path).unwrap();
    }
    let unpacked = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
    assert!(unpacked.status.success(), "gzip could not unpack it");
    unpacked.stdout
}
