//! An answer on its way to the client.

use std::fmt::Display;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::{Body, Frame};
use kvgrid_core::SiteId;
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;

use super::body::ApiBody;
use super::error::{ApiError, RETRY_AFTER_SECONDS};
use super::events::EventStream;
use super::headers;
use super::tries::{Begun, is_own_word};
use super::usage::UsageReader;
use crate::metrics::Metrics;
use crate::open::InFlight;
use crate::route::Dispatch;

const SITE: HeaderName = HeaderName::from_static("x-kvgrid-site");
const OVERLAP: HeaderName = HeaderName::from_static("x-kvgrid-overlap-tokens");
const PROMPT: HeaderName = HeaderName::from_static("x-kvgrid-prompt-tokens");
const DECISION: HeaderName = HeaderName::from_static("x-kvgrid-decision");
/// Tells proxies in front of the edge not to collect events.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a request holds from its arrival until its answer is over or its client gone.
pub(super) struct Holds {
    _place: OwnedSemaphorePermit,
    _in_flight: InFlight,
}

impl Holds {
    pub(super) fn new(place: OwnedSemaphorePermit, in_flight: InFlight) -> Self {
        Self {
            _place: place,
            _in_flight: in_flight,
        }
    }
}

/// An answer's body, as the client gets it. Dropping it aborts the request at the site.
pub(super) struct AnswerBody<B> {
    first: Option<Bytes>,
    rest: B,
    /// Set for streams of events, which can carry an error.
    events: Option<EventStream>,
    over: bool,
    site: SiteId,
    metrics: Metrics,
    /// Reads along what the answer says of the prompt, if it is one to the prompt.
    usage: Option<UsageReader>,
    dispatch: Dispatch,
    _holds: Holds,
}

/// The site broke off in the middle of an answer that can't carry an error.
#[derive(Debug, Error)]
#[error("the site broke off: {0}")]
pub(super) struct BrokenAnswer(String);

impl<B> Begun<B> {
    /// The response for the client.
    pub(super) fn into_response(
        self,
        holds: Holds,
        metrics: &Metrics,
        explain: bool,
    ) -> Response<ApiBody<B>> {
        let mut passed_on = headers::to_client(&self.head.headers);
        let streams_events = is_event_stream(&passed_on);
        if streams_events {
            passed_on.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
            passed_on
                .entry(CACHE_CONTROL)
                .or_insert(HeaderValue::from_static("no-cache"));
        }
        if is_own_word(self.head.status) {
            let wait = HeaderValue::from(RETRY_AFTER_SECONDS);
            passed_on.entry(RETRY_AFTER).or_insert(wait);
        }
        if explain {
            self.explain(&mut passed_on);
        }
        let usage = self.head.status.is_success();
        let usage = usage.then(|| UsageReader::new(&self.head.headers, streams_events));
        let body = AnswerBody {
            first: self.first,
            rest: self.body,
            events: streams_events.then(EventStream::default),
            over: false,
            site: self.choice.site,
            metrics: metrics.clone(),
            usage,
            dispatch: self.dispatch,
            _holds: holds,
        };
        let mut response = Response::new(ApiBody::Answer(Box::new(body)));
        *response.status_mut() = self.head.status;
        *response.headers_mut() = passed_on;
        response
    }

    fn explain(&self, headers: &mut HeaderMap) {
        let site = HeaderValue::from_str(self.choice.site.as_str());
        headers.insert(SITE, site.expect("a site id is letters and digits"));
        headers.insert(OVERLAP, self.choice.overlap_tokens.into());
        if let Some(tokens) = self.prompt_tokens {
            headers.insert(PROMPT, tokens.into());
        }
        // Names are free text as far as a header is concerned: one that can't be told is left out.
        let decision = self.decision.as_deref().map(HeaderValue::from_str);
        if let Some(Ok(decision)) = decision {
            headers.insert(DECISION, decision);
        }
    }
}

impl<B> AnswerBody<B> {
    /// Whether nothing will be read of it any more that counts.
    fn says_no_more(&self) -> bool {
        let events = self.events.as_ref();
        let told = || self.usage.as_ref().is_some_and(UsageReader::has_told);
        self.over || events.map_or_else(told, EventStream::is_complete)
    }

    /// Tells what the answer says of the prompt, once, before the client sees its end.
    fn tell_usage(&mut self) {
        if let Some(usage) = self.usage.take() {
            let reading = usage.reading();
            self.metrics.usage_read(reading.name());
            self.dispatch.told(reading.usage());
        }
    }
}

/// However it ended: what was read by then is all that will be.
impl<B> Drop for AnswerBody<B> {
    fn drop(&mut self) {
        self.tell_usage();
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/event-stream")
    })
}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> AnswerBody<B> {
    /// The next bytes from the site, read along; `None` at the end.
    fn poll_site(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, String>>> {
        let polled = ready!(self.poll_bytes(cx));
        if let (Some(Ok(bytes)), Some(usage)) = (&polled, &mut self.usage) {
            usage.feed(bytes);
        }
        Poll::Ready(polled)
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, String>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            let frame = match ready!(Pin::new(&mut self.rest).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.to_string()))),
                Some(Ok(frame)) => frame,
            };
            // Sites announce no trailers; one that sends them says nothing a client awaits.
            if let Ok(bytes) = frame.into_data() {
                return Poll::Ready(Some(Ok(bytes)));
            }
        }
    }

    /// The site broke off: an error event if the answer can carry one.
    fn broken(&mut self, reason: String) -> Option<Result<Frame<Bytes>, BrokenAnswer>> {
        self.over = true;
        let Some(events) = &mut self.events else {
            self.report(&reason);
            return Some(Err(BrokenAnswer(reason)));
        };
        if events.is_complete() {
            // The client has everything; how the stream ended after that is of no interest.
            return None;
        }
        let mut last = events.cut().to_vec();
        self.report(&reason);
        last.extend_from_slice(&ApiError::BrokenOff.event());
        Some(Ok(Frame::data(last.into())))
    }

    fn report(&self, reason: &str) {
        self.metrics.broken(&self.site);
        warn!(site = %self.site, reason, "Site broke off within an answer");
    }
}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> Body for AnswerBody<B> {
    type Data = Bytes;
    type Error = BrokenAnswer;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenAnswer>>> {
        while !self.over {
            let passed = match ready!(self.poll_site(cx)) {
                Some(Err(reason)) => return Poll::Ready(self.broken(reason)),
                Some(Ok(bytes)) => match &mut self.events {
                    Some(events) => events.feed(bytes),
                    None => bytes,
                },
                None => {
                    self.over = true;
                    self.events
                        .as_mut()
                        .map(EventStream::finish)
                        .unwrap_or_default()
                }
            };
            if self.says_no_more() {
                self.tell_usage();
            }
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
        }
        Poll::Ready(None)
    }
}
