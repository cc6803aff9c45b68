//! Messages of Dynamo's event plane.

#![no_main]

use kvgrid_core::event::dynamo::{Envelope, kv_events, kv_use};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    // An error is an answer like another; only a panic or a hang is a finding.
    if let Ok(envelope) = Envelope::from_frame(frame) {
        let _ = kv_events(envelope.payload);
        let _ = kv_use(envelope.payload);
    }
    let _ = kv_events(frame);
});
