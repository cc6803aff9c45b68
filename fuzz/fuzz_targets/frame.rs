//! Frames in pieces: where a stream is cut must not change what is read from it.

#![no_main]

use kvgrid_proto::frame::Decoder;
use kvgrid_proto::v1::{EdgeFrame, PoolFrame, RelayFrame, RequestHead, SnapshotChunk};
use libfuzzer_sys::fuzz_target;

/// Low, so that the limit is met.
const LIMIT: usize = 4096;

/// The debug text of every message, and of the error that ended the stream if one did.
fn read<M>(pieces: &[&[u8]]) -> Vec<String>
where
    M: prost::Message + Default + std::fmt::Debug,
{
    let mut decoder = Decoder::new(LIMIT);
    let mut read = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next_message::<M>() {
                Ok(Some(message)) => read.push(format!("{message:?}")),
                Ok(None) => break,
                Err(error) => {
                    read.push(error.to_string());
                    return read;
                }
            }
        }
    }
    read
}

fn compare<M>(pieces: &[&[u8]])
where
    M: prost::Message + Default + std::fmt::Debug,
{
    assert_eq!(read::<M>(pieces), read::<M>(&[&pieces.concat()]));
}

fuzz_target!(|pieces: Vec<&[u8]>| {
    compare::<EdgeFrame>(&pieces);
    compare::<RelayFrame>(&pieces);
    compare::<PoolFrame>(&pieces);
    compare::<SnapshotChunk>(&pieces);
    compare::<RequestHead>(&pieces);
});
