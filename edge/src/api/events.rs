//! Keeps a server-sent event stream whole when its site dies.
//!
//! Bytes pass unchanged and at once, but for the tail of an event whose end has not come: a
//! client can't use half an event, so holding it back costs nothing. If the site then dies, the
//! half is dropped and one error event follows, instead of being glued to the half.

use bytes::{Bytes, BytesMut};

/// Most bytes of an unfinished event held back; a longer one passes as it comes.
const TAIL_LIMIT: usize = 256 * 1024;

/// How OpenAI's streams end.
const DONE: [&[u8]; 2] = [b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n"];

/// Splits a stream after whole events.
#[derive(Debug, Default)]
pub(crate) struct EventStream {
    tail: BytesMut,
    /// An event over the limit is under way: its beginning has passed already.
    oversize: bool,
    /// The event that says that no more follow has passed.
    complete: bool,
}

impl EventStream {
    /// Takes bytes from the site and gives what may pass now; empty if nothing may.
    pub(crate) fn feed(&mut self, bytes: Bytes) -> Bytes {
        let passed = self.pass(bytes);
        self.complete |= DONE.iter().any(|done| passed.ends_with(done));
        passed
    }

    fn pass(&mut self, bytes: Bytes) -> Bytes {
        if self.tail.is_empty() && ends_event(&bytes) {
            self.oversize = false;
            return bytes;
        }
        // The end of an event may lie across the seam, at most three bytes back.
        let seam = self.tail.len().saturating_sub(3);
        self.tail.extend_from_slice(&bytes);
        if let Some(end) = last_event_end(&self.tail, seam) {
            self.oversize = false;
            return self.tail.split_to(end).freeze();
        }
        if self.oversize || self.tail.len() > TAIL_LIMIT {
            self.oversize = true;
            return self.tail.split().freeze();
        }
        Bytes::new()
    }

    /// Whether the stream has said itself that it is over.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// The site finished: what is held back belongs to the client.
    pub(crate) fn finish(&mut self) -> Bytes {
        self.tail.split().freeze()
    }

    /// The site died: drops what is held back, and gives what must stand before an error event.
    pub(crate) fn cut(&mut self) -> &'static [u8] {
        self.tail.clear();
        if std::mem::take(&mut self.oversize) {
            b"\n\n"
        } else {
            b""
        }
    }
}

fn ends_event(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\r\n\r\n")
}

/// Where the last whole event ends, looking no further back than `from`.
fn last_event_end(bytes: &[u8], from: usize) -> Option<usize> {
    let ends = (from..bytes.len()).rev().map(|last| last + 1);
    ends.into_iter().find(|end| ends_event(&bytes[..*end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(chunks: &[&'static str]) -> (Vec<Bytes>, EventStream) {
        let mut stream = EventStream::default();
        let passed = chunks
            .iter()
            .map(|chunk| stream.feed(Bytes::from_static(chunk.as_bytes())))
            .collect();
        (passed, stream)
    }

    #[test]
    fn whole_events_pass_at_once() {
        let (passed, _) = passed(&["data: a\n\n", "data: b\n\ndata: c\n\n"]);

        assert_eq!(passed, ["data: a\n\n", "data: b\n\ndata: c\n\n"]);
    }

    #[test]
    fn half_an_event_waits_for_its_end() {
        let (passed, mut stream) = passed(&["data: a\n\ndata: ", "b\n", "\ndata: c"]);

        assert_eq!(passed, ["data: a\n\n", "", "data: b\n\n"]);
        assert_eq!(stream.finish(), "data: c");
    }

    #[test]
    fn carriage_returns_may_be_split_anywhere() {
        let (passed, _) = passed(&["data: a\r", "\n\r", "\ndata: b\r\n\r\n"]);

        assert_eq!(passed, ["", "", "data: a\r\n\r\ndata: b\r\n\r\n"]);
    }

    #[test]
    fn a_dead_sites_half_event_is_dropped() {
        let (_, mut stream) = passed(&["data: a\n\ndata: {\"hal"]);

        assert_eq!(stream.cut(), b"");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn a_stream_is_complete_once_it_has_said_so() {
        let (_, half) = passed(&["data: a\n\n", "data: [DONE]\n"]);
        assert!(!half.is_complete());

        let (_, whole) = passed(&["data: a\n\ndata: [DO", "NE]\n\n"]);
        assert!(whole.is_complete());
    }

    #[test]
    fn an_endless_event_passes_and_is_closed_before_an_error() {
        let mut stream = EventStream::default();
        let chunk = Bytes::from(vec![b'x'; 100_000]);
        let total: usize = (0..5).map(|_| stream.feed(chunk.clone()).len()).sum();

        assert_eq!(total, 500_000);
        assert_eq!(stream.cut(), b"\n\n");
    }

    #[test]
    fn no_byte_is_lost_or_changed_however_a_stream_is_cut() {
        let text = "data: one\n\n: ping\n\ndata: two\r\n\r\ndata: \u{e9}\n\ndata: [DONE]\n\n";
        for size in 1..text.len() {
            let mut stream = EventStream::default();
            let mut out = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                out.extend_from_slice(&stream.feed(Bytes::copy_from_slice(chunk)));
            }
            out.extend_from_slice(&stream.finish());
            assert_eq!(out, text.as_bytes(), "cut every {size} bytes");
        }
    }
}
