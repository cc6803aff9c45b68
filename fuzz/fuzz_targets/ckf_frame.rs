//! Frames of Dynamo's own filter, as a subscription brings them.
#![no_main]

use kvgrid_core::ckf::{Format, Kind, Mirror, Progress, Stream, Update};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, u64, &[u8])| {
    let (base, sequence, payload) = input;
    let Ok(format) = Format::new(7, 8) else {
        return;
    };
    let mut mirror = Mirror::new(format);
    let mut stream = Stream::new(format, 5);
    for kind in [Kind::Chunk, Kind::Delta, Kind::Heartbeat] {
        let update = Update {
            kind,
            base,
            sequence,
            payload,
        };
        match stream.handle(update) {
            Ok(Progress::Snapshot { words, .. }) => drop(mirror.replace(words)),
            Ok(Progress::Delta { images, .. }) => drop(mirror.apply(&images)),
            Ok(Progress::Nothing) | Err(_) => {}
        }
    }
});
