//! The bodies that clients get.

use std::fmt::Display;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::answer::{AnswerBody, BrokenAnswer};

/// A response's body.
pub(super) enum ApiBody<B> {
    /// The edge's own words.
    Whole(Full<Bytes>),
    /// A site's.
    Answer(Box<AnswerBody<B>>),
}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> Body for ApiBody<B> {
    type Data = Bytes;
    type Error = BrokenAnswer;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenAnswer>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole)
                .poll_frame(cx)
                .map_err(|never| match never {}),
            Self::Answer(answer) => Pin::new(answer.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Answer(answer) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Answer(answer) => answer.size_hint(),
        }
    }
}
