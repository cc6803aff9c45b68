//! An answer that is read line by line.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::ApiError;

/// Most bytes of a line: an object of the largest size that Kubernetes takes, and what its
/// encoding adds.
pub(super) const LINE_BYTES: usize = 8 << 20;

/// The lines of an answer.
pub(super) struct Lines {
    body: Incoming,
    buffer: BytesMut,
    /// Bytes at the buffer's beginning that have no line's end among them.
    searched: usize,
}

impl Lines {
    pub(super) fn new(body: Incoming) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            searched: 0,
        }
    }

    /// Waits for the next line that isn't empty. The end of the answer is an error, and so is
    /// a line that has no end.
    pub(super) async fn next(&mut self) -> Result<Bytes, ApiError> {
        loop {
            while let Some(line) = self.line() {
                if !line.trim_ascii().is_empty() {
                    return Ok(line);
                }
            }
            if self.buffer.len() > LINE_BYTES {
                return Err(ApiError::LongLine);
            }
            let frame = self.body.frame().await.ok_or(ApiError::Ended)??;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// Takes a line off the buffer, if it has a whole one.
    fn line(&mut self) -> Option<Bytes> {
        let unsearched = &self.buffer[self.searched..];
        let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + end + 1);
        self.searched = 0;
        Some(line.freeze())
    }
}
