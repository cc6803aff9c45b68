//! Messages of an engine about its cache, several by one publisher.

#![no_main]

use std::num::NonZeroU32;

use kvgrid_core::block::HashFormat;
use kvgrid_core::event::engine::{Decoder, DecoderConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|messages: Vec<&[u8]>| {
    let mut decoder = Decoder::new(DecoderConfig {
        block_size: NonZeroU32::new(4).expect("four is not zero"),
        format: HashFormat::Standard,
        max_salted: 16,
    });
    for message in messages {
        // An error is an answer like another; only a panic or a hang is a finding.
        let _ = decoder.decode(0, message);
    }
});
