use std::collections::BTreeMap;

use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::*;

const CAPTURE: &str = include_str!("../../fixtures/ckf-stream.txt");
const SEED: u64 = 6_768_574_230_984_739_379;
const CENTRE: u64 = 7;

/// A filter as its publisher keeps it, beside a plain multiset of what is in it.
#[derive(Debug)]
struct Publisher {
    format: Format,
    words: Vec<u64>,
    held: BTreeMap<ChainHash, u64>,
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Remove(usize),
    /// Moves what is in this slot to its other bucket, if there is room.
    Kick(usize),
    /// Tells all buckets that changed.
    Tell,
    /// Tells the whole table.
    Snapshot,
}

impl Publisher {
    fn new(format: Format) -> Self {
        let (words, held) = (vec![0; format.buckets() as usize], BTreeMap::new());
        Self {
            format,
            words,
            held,
        }
    }

    fn put(&mut self, bucket: u32, print: u16) -> bool {
        let word = &mut self.words[bucket as usize];
        let free = (0..4).find(|slot| *word >> (slot * 16) & 0xffff == 0);
        if let Some(slot) = free {
            *word |= u64::from(print) << (slot * 16);
        }
        free.is_some()
    }

    fn slots(&self) -> Vec<(u32, u16, u32)> {
        let mut slots = Vec::new();
        for (bucket, word) in (0_u32..).zip(&self.words) {
            for slot in 0..4 {
                let print = (word >> (slot * 16) & 0xffff) as u16;
                if print != 0 {
                    slots.push((bucket, print, slot));
                }
            }
        }
        slots
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Insert(hash) => {
                let name = self.format.name(ChainHash(*hash));
                let (bucket, print) = parts(name);
                let other = self.format.alternate(bucket, print);
                if self.put(bucket, print) || self.put(other, print) {
                    *self.held.entry(name).or_default() += 1;
                }
            }
            Op::Remove(at) | Op::Kick(at) => {
                let slots = self.slots();
                let Some((bucket, print, slot)) = slots.get(at % slots.len().max(1)).copied()
                else {
                    return;
                };
                let other = self.format.alternate(bucket, print);
                if matches!(op, Op::Kick(_)) && !self.put(other, print) {
                    return;
                }
                self.words[bucket as usize] &= !(0xffff << (slot * 16));
                if matches!(op, Op::Remove(_)) {
                    let name = self.format.name_of_stored(bucket, print);
                    let count = self.held.get_mut(&name).unwrap();
                    *count -= 1;
                    self.held.retain(|_, count| *count > 0);
                }
            }
            Op::Tell | Op::Snapshot => {}
        }
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0_u64..200).prop_map(Op::Insert),
        4 => (0_usize..1000).prop_map(Op::Remove),
        8 => (0_usize..1000).prop_map(Op::Kick),
        3 => Just(Op::Tell),
        1 => Just(Op::Snapshot),
    ];
    proptest::collection::vec(op, 0..200)
}

/// The lower bucket of a name and its fingerprint.
fn parts(name: ChainHash) -> (u32, u16) {
    (
        (name.0 >> 16 & 0xffff_ffff) as u32,
        (name.0 & 0xffff) as u16,
    )
}

fn counted(names: impl IntoIterator<Item = ChainHash>) -> BTreeMap<ChainHash, u64> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

proptest! {
    #[test]
    fn a_mirrors_changes_add_up_to_what_the_publisher_holds(ops in ops(), bits in 1_u32..6) {
        let format = Format::new(SEED, 1 << bits).unwrap();
        let mut publisher = Publisher::new(format);
        let mut told = publisher.words.clone();
        let mut mirror = Mirror::new(format);
        let mut held: BTreeMap<ChainHash, u64> = BTreeMap::new();

        for op in ops.iter().chain([&Op::Tell]) {
            publisher.apply(op);
            let changes = match op {
                Op::Tell => {
                    let changed = (0_u32..).zip(publisher.words.iter().zip(&told));
                    let changed = changed.filter(|(_, (now, told))| now != told);
                    let images: Vec<_> = changed.map(|(bucket, (now, _))| (bucket, *now)).collect();
                    mirror.apply(&images)
                }
                Op::Snapshot => mirror.replace(publisher.words.clone()),
                _ => continue,
            };
            told.clone_from(&publisher.words);
            for name in &changes.removed {
                prop_assert!(!changes.inserted.contains(name), "{name:?} only moved");
                let count = held.get_mut(name).expect("it was told before");
                *count -= 1;
                held.retain(|_, count| *count > 0);
            }
            for name in &changes.inserted {
                *held.entry(*name).or_default() += 1;
            }
            prop_assert_eq!(&held, &publisher.held);
            prop_assert_eq!(counted(mirror.names()), held.clone());
            prop_assert_eq!(mirror.entries(), held.values().sum::<u64>());
        }
    }

    #[test]
    fn a_class_is_found_from_either_of_its_buckets(hash: u64, bits in 1_u32..=24) {
        let format = Format::new(SEED, 1 << bits).unwrap();
        let name = format.name(ChainHash(hash));
        let (bucket, print) = parts(name);
        let other = format.alternate(bucket, print);

        prop_assert!(bucket < other && other < format.buckets() && print != 0);
        prop_assert_eq!(format.alternate(other, print), bucket);
        prop_assert_eq!(format.name_of_stored(other, print), name);
    }

    #[test]
    fn foreign_bytes_are_refused_and_change_nothing(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        sequence: u64,
    ) {
        let format = Format::new(SEED, 8).unwrap();
        let mut stream = Stream::new(format, CENTRE);
        for kind in [Kind::Chunk, Kind::Delta] {
            let (base, payload) = (0, bytes.as_slice());
            let update = Update { kind, base, sequence, payload };
            prop_assert!(stream.handle(update).is_err());
            prop_assert_eq!(stream.known(), None);
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits = (0..text.len()).step_by(2);
    let bytes = digits.map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap());
    bytes.collect()
}

/// What it is, what it follows, where it leads, and its frame.
type Captured = (Kind, u64, u64, Vec<u8>);

/// The frames of the capture, by subscription: data centre, what was asked before, frames.
fn captured() -> Vec<(u64, Vec<u64>, Vec<Captured>)> {
    let mut streams: Vec<(u64, Vec<u64>, Vec<Captured>)> = Vec::new();
    for line in CAPTURE.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        if words[0] == "stream" {
            streams.push((words[1].parse().unwrap(), Vec::new(), Vec::new()));
            continue;
        }
        let (_, held, frames) = streams.last_mut().unwrap();
        match words[0] {
            "held" => held.push(u64::from_str_radix(words[1], 16).unwrap()),
            "snapshot" => {
                let mut frame = hex(words[1]);
                frame.resize(frame.len() + 524_288 * 8, 0);
                frames.push((Kind::Chunk, 0, 0, frame));
            }
            "word" => {
                let at = 64 + words[1].parse::<usize>().unwrap() * 8;
                let word = u64::from_str_radix(words[2], 16).unwrap();
                frames.last_mut().unwrap().3[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            "delta" => frames.push((Kind::Delta, 0, 1, hex(words[1]))),
            "heartbeat" => {
                let (base, sequence) = (words[1].parse().unwrap(), words[2].parse().unwrap());
                frames.push((Kind::Heartbeat, base, sequence, Vec::new()));
            }
            other => panic!("{other}"),
        }
    }
    streams
}

#[test]
fn what_a_real_publisher_sent_holds_what_was_asked_and_nothing_else() {
    let format = Format::new(SEED, 524_288).unwrap();
    let mut mirror = Mirror::new(format);
    let mut held: BTreeMap<ChainHash, u64> = BTreeMap::new();
    let mut entries = Vec::new();
    for (centre, asked, frames) in captured() {
        let mut stream = Stream::new(format, centre);
        for (kind, base, sequence, payload) in &frames {
            let progress = stream.handle(Update {
                kind: *kind,
                base: *base,
                sequence: *sequence,
                payload,
            });
            let changes = match progress.unwrap() {
                Progress::Nothing => continue,
                Progress::Snapshot { words, .. } => mirror.replace(words),
                Progress::Delta { images, .. } => mirror.apply(&images),
            };
            for name in &changes.removed {
                held.remove(name).unwrap();
            }
            held.extend(counted(changes.inserted));
            entries.push(mirror.entries());
            for hash in &asked {
                assert!(
                    held.contains_key(&format.name(ChainHash(*hash))),
                    "{hash:x}"
                );
            }
        }
        assert_eq!(stream.known(), Some(1));
        let strangers = (0..1000_u64).map(|n| format.name(ChainHash(xxh3_64(&n.to_le_bytes()))));
        assert_eq!(strangers.filter(|name| held.contains_key(name)).count(), 0);
    }

    // The second snapshot is of a worker that has started anew.
    assert_eq!(entries, [10, 13, 0, 4]);
}

/// A frame of a table of 8 buckets.
fn frame(kind: u16, sequence: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"CBI1".to_vec();
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend([16, 4, 1, 0]);
    for number in [SEED, 8, CENTRE, sequence] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(((xxh3_64(body) & 0xffff_ffff) as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn chunk(sequence: u64, (index, count): (u32, u32), offset: u64, words: &[u64]) -> Vec<u8> {
    let mut body = index.to_le_bytes().to_vec();
    body.extend(count.to_le_bytes());
    body.extend(offset.to_le_bytes());
    body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    frame(1, sequence, &body)
}

fn delta(base: u64, sequence: u64, images: &[(u32, u64)]) -> Vec<u8> {
    let mut body = base.to_le_bytes().to_vec();
    body.extend(u32::try_from(images.len()).unwrap().to_le_bytes());
    for (bucket, word) in images {
        body.extend(bucket.to_le_bytes());
        body.extend(word.to_le_bytes());
    }
    frame(2, sequence, &body)
}

fn stream() -> Stream {
    Stream::new(Format::new(SEED, 8).unwrap(), CENTRE)
}

fn say(
    stream: &mut Stream,
    kind: Kind,
    (base, sequence): (u64, u64),
    payload: &[u8],
) -> Result<Progress, StreamError> {
    stream.handle(Update {
        kind,
        base,
        sequence,
        payload,
    })
}

#[test]
fn a_snapshot_counts_when_its_last_chunk_is_there() {
    let mut stream = stream();
    let (first, second) = (chunk(5, (0, 2), 0, &[1; 4]), chunk(5, (1, 2), 4, &[2; 4]));

    let early = say(&mut stream, Kind::Chunk, (0, 5), &first);
    let beat = say(&mut stream, Kind::Heartbeat, (5, 5), &[]);
    let whole = say(&mut stream, Kind::Chunk, (0, 5), &second);

    assert_eq!(
        (early, beat),
        (Ok(Progress::Nothing), Ok(Progress::Nothing))
    );
    let words = vec![1, 1, 1, 1, 2, 2, 2, 2];
    assert_eq!(whole, Ok(Progress::Snapshot { words, sequence: 5 }));
}

#[test]
fn chunks_out_of_their_order_end_the_stream() {
    let cases = [
        chunk(5, (1, 2), 4, &[2; 4]),
        chunk(5, (0, 1), 0, &[2; 4]),
        chunk(5, (0, 2), 0, &[2; 8]),
        chunk(5, (0, 2), 1, &[2; 4]),
    ];
    for case in cases {
        let refused = say(&mut stream(), Kind::Chunk, (0, 5), &case);
        assert!(
            matches!(refused, Err(StreamError::Chunk { .. })),
            "{refused:?}"
        );
    }
    let mut mixed = stream();
    say(
        &mut mixed,
        Kind::Chunk,
        (0, 5),
        &chunk(5, (0, 2), 0, &[1; 4]),
    )
    .unwrap();
    let other = say(
        &mut mixed,
        Kind::Chunk,
        (0, 6),
        &chunk(6, (1, 2), 4, &[1; 4]),
    );
    assert_eq!(other, Err(StreamError::Chunk { index: 1, count: 2 }));
}

#[test]
fn a_missing_delta_is_a_gap_whoever_notices_it() {
    let whole = |at| {
        let mut stream = stream();
        say(
            &mut stream,
            Kind::Chunk,
            (at, at),
            &chunk(at, (0, 1), 0, &[0; 8]),
        )
        .unwrap();
        stream
    };
    let images = [(7, 0xffff)];
    let next = say(&mut whole(5), Kind::Delta, (5, 6), &delta(5, 6, &images));
    assert_eq!(
        next,
        Ok(Progress::Delta {
            images: images.to_vec(),
            sequence: 6
        })
    );

    let gap = |base| {
        Err(StreamError::Gap {
            expected: Some(5),
            base,
        })
    };
    let late = say(&mut whole(5), Kind::Delta, (6, 7), &delta(6, 7, &images));
    assert_eq!(late, gap(6));
    let twice = say(&mut whole(5), Kind::Delta, (4, 5), &delta(4, 5, &images));
    assert_eq!(twice, gap(4));
    let quiet = say(&mut whole(5), Kind::Heartbeat, (6, 6), &[]);
    assert_eq!(quiet, gap(6));
    let early = say(&mut stream(), Kind::Delta, (0, 1), &delta(0, 1, &images));
    let (expected, base) = (None, 0);
    assert_eq!(early, Err(StreamError::Gap { expected, base }));
}

#[test]
fn a_frame_that_is_not_this_filters_is_refused_by_its_fault() {
    let good = delta(0, 1, &[(7, 1)]);
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        match say(&mut stream(), Kind::Delta, (0, 1), &bytes) {
            Err(StreamError::Frame(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let set = |at: usize, to: u8| move |bytes: &mut Vec<u8>| bytes[at] = to;

    let version = "it does not begin as a frame of this version does";
    assert_eq!(refused(&set(0, b'X')), version);
    assert_eq!(refused(&set(4, 2)), version);
    assert_eq!(refused(&set(6, 9)), "frame kind 9 is not known");
    let format = "the filter is of another format: ";
    assert_eq!(
        refused(&set(8, 12)),
        format!("{format}fingerprints of 12 bits are not of 16")
    );
    assert_eq!(
        refused(&set(9, 8)),
        format!("{format}8 slots in a bucket are not 4")
    );
    let other = "the filter has another seed or size than was subscribed to";
    assert_eq!(refused(&set(12, 0)), other);
    assert_eq!(refused(&set(20, 16)), other);
    assert_eq!(refused(&set(28, 0)), "the filter is another data centre's");
    let checksum = "the checksum does not fit the content";
    assert_eq!(refused(&set(60, 0)), checksum);
    assert_eq!(refused(&|bytes| bytes.truncate(60)), checksum);
    assert_eq!(
        refused(&|bytes| bytes.truncate(20)),
        "20 bytes are not the length of its content"
    );

    let outside = say(&mut stream(), Kind::Delta, (0, 1), &delta(0, 1, &[(8, 1)]));
    assert_eq!(outside, Err(StreamError::Frame(FrameError::Bucket(8))));
    let envelope = say(&mut stream(), Kind::Delta, (0, 2), &good);
    assert_eq!(envelope, Err(StreamError::Envelope));
    let kind = say(&mut stream(), Kind::Chunk, (0, 1), &good);
    assert_eq!(kind, Err(StreamError::Envelope));
}

#[test]
fn a_format_that_is_not_known_says_what_is_wrong() {
    let good = Format::new(SEED, 524_288).unwrap().header();
    let refused = |header| Format::from_header(header).unwrap_err().to_string();

    assert_eq!(Format::from_header(good).unwrap().slots(), 2_097_152);
    assert_eq!(
        refused(Header { version: 2, ..good }),
        "format version 2 is not 1"
    );
    for buckets in [0, 1, 3, 1 << 25, 1 << 40] {
        let error = refused(Header { buckets, ..good });
        assert_eq!(
            error,
            format!("{buckets} buckets are not a power of two from 2 to 16777216")
        );
    }
}
