//! Coded classes of a filter: what is decoded fits its table, and has one form on the wire.

#![no_main]

use kvgrid_core::filter::{Geometry, Header, Writer, decode_chunk, decode_classes, encode_classes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (chunks, size, bytes) = input;
    let header = Header {
        chunks: u32::from(chunks),
        chunk_buckets: 1 << (size % 16),
        slots: 4,
        fingerprint_bits: if size < 128 { 16 } else { 64 },
        key_id: 0,
    };
    let Ok(geometry) = Geometry::from_header(header) else {
        return;
    };
    if let Ok(classes) = decode_classes(&geometry, bytes) {
        let coded = encode_classes(&geometry, &classes);
        assert_eq!(decode_classes(&geometry, &coded), Ok(classes));
    }
    if let Ok(classes) = decode_chunk(&geometry, 0, bytes) {
        let mut writer = Writer::new(geometry);
        if writer.replace_chunk(0, &classes).is_ok() {
            assert_eq!(writer.chunk_classes(0), classes);
        }
    }
});
