//! Requests from edges to the frontend, a stream each.
//!
//! A stream brings a head and a raw body, and takes back the same. Bodies flow as they come,
//! both ways at once. Whichever end gives up, the other is told at once: an edge that stops
//! reading, resets or vanishes drops the request to the frontend, and a frontend that breaks
//! resets the stream, so that no cut-off answer looks whole. An answer that the relay gives
//! itself carries a fault, which tells whether the frontend may have begun.

mod admission;
mod fault;
mod frontend;

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use kvgrid_core::ModelId;
use kvgrid_proto::frame::{FrameError, encode};
use kvgrid_proto::v1::{RequestHead, ResponseHead};
use kvgrid_runtime::headers::{strip_hop, to_wire};
use kvgrid_runtime::stream::{GuardedSend, StreamBody, StreamCode, read_message};
use kvgrid_runtime::{Clock, CloseReason, PeerConnection, Tasks};
use quinn::{RecvStream, SendStream};
use thiserror::Error;
use tokio::sync::Semaphore;
use tracing::{Instrument, debug, debug_span, info};

use crate::load::{Gateway, GatewaySession, Prompt, Ticket};

pub(crate) use admission::Allowed;
pub(crate) use fault::Fault;
pub(crate) use frontend::{Frontend, FrontendError, FrontendSettings};

/// Most bytes of a request's or an answer's head.
const HEAD_LIMIT: usize = 64 * 1024;
/// An edge sends the head with the first packet of its stream.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of what edges may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProxyLimits {
    /// Bytes of a request's body; beyond it the answer is 413.
    pub(crate) body_bytes: u64,
    /// Requests at the same time; beyond it the fault is busy, and the edge goes elsewhere.
    pub(crate) requests: usize,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            // Bodies are passed on, not held, so the limit is one of sanity.
            body_bytes: 128 << 20,
            requests: 4096,
        }
    }
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct ProxyContext {
    frontend: Frontend,
    allowed: Allowed,
    gateway: Gateway,
    clock: Clock,
    tasks: Tasks,
    body_bytes: u64,
    places: Semaphore,
}

impl ProxyContext {
    /// A proxy to `frontend` that counts in `gateway`.
    pub(crate) fn new(
        frontend: Frontend,
        allowed: Allowed,
        limits: ProxyLimits,
        gateway: Gateway,
        (clock, tasks): (Clock, Tasks),
    ) -> Self {
        Self {
            frontend,
            allowed,
            gateway,
            clock,
            tasks,
            body_bytes: limits.body_bytes,
            places: Semaphore::new(limits.requests),
        }
    }
}

/// Serves an edge's request connection until it ends or the relay stops.
///
/// Requests that are open then go on as tasks, and end with the connection at the latest.
pub(crate) async fn serve_requests(peer: PeerConnection, context: Arc<ProxyContext>) {
    let Some((_, edge)) = peer.peer.as_edge() else {
        peer.close(CloseReason::Role);
        return;
    };
    let session = Arc::new(context.gateway.connect(edge));
    info!(%edge, "Edge opened a request connection");
    loop {
        // Both arms may be dropped while they wait; a stream that came is taken next time.
        let stream = tokio::select! {
            () = context.tasks.stopping() => break,
            stream = peer.connection.accept_bi() => stream,
        };
        let (send, receive) = match stream {
            Ok(stream) => stream,
            Err(error) => {
                info!(%edge, %error, "Edge's request connection ended");
                break;
            }
        };
        let span = debug_span!("request", %edge, stream = %send.id());
        let exchange = Exchange {
            context: Arc::clone(&context),
            session: Arc::clone(&session),
        };
        let serving = exchange.serve(send, receive).instrument(span);
        context.tasks.spawn("request", serving);
    }
}

/// One request's way through the relay.
struct Exchange {
    context: Arc<ProxyContext>,
    session: Arc<GatewaySession>,
}

/// How an exchange ended when it did not end well.
#[derive(Debug, Error)]
enum Ended {
    /// The relay gives the answer.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The head is none, too long or not there in time.
    #[error("malformed head: {0}")]
    Head(String),
    /// The edge does not read any more.
    #[error("the edge stopped reading: {0}")]
    Edge(#[from] quinn::WriteError),
    /// The edge's body did not come whole.
    #[error("the request's body is not whole: {0}")]
    Upload(String),
    /// The frontend's answer did not come whole.
    #[error("the answer's body is not whole: {0}")]
    Answer(#[source] hyper::Error),
    /// The frontend's headers are more than a head can carry.
    #[error("the answer's head: {0}")]
    Frame(#[from] FrameError),
}

impl Exchange {
    async fn serve(self, send: SendStream, receive: RecvStream) {
        let mut send = GuardedSend::new(send);
        let abandoned = send.stopped();
        let ended = tokio::select! {
            // First, so that a request abandoned before it was seen does not reach the frontend.
            biased;
            _ = abandoned => {
                // Whatever the exchange held is dropped with it: request, answer and ticket.
                debug!("Edge abandoned the request");
                return;
            }
            ended = self.exchange(&mut send, receive) => ended,
        };
        match ended {
            Ok(()) => send.finish(),
            Err(ended) => {
                debug!(%ended, "Request ended early");
                end(send, ended).await;
            }
        }
    }

    async fn exchange(&self, send: &mut GuardedSend, receive: RecvStream) -> Result<(), Ended> {
        let reading = read_message::<RequestHead>(receive, HEAD_LIMIT);
        let (head, body) = tokio::time::timeout(HEAD_TIMEOUT, reading)
            .await
            .map_err(|_| Ended::Head("it did not come in time".into()))?
            .map_err(|error| Ended::Head(error.to_string()))?;
        // Counted before it is judged: the edge must learn that this number has arrived.
        let ticket = self.begin(&head);
        let _place = self.context.places.try_acquire().map_err(|_| Fault::Busy)?;
        if self.context.tasks.is_stopping() {
            return Err(Fault::Busy.into());
        }
        let request = self.admit(head, body)?;
        debug!(method = %request.method(), uri = %request.uri(), "Request to the frontend");
        let answer = self.context.frontend.send(request).await;
        let clock = self.context.clock;
        relay_answer(answer.map_err(from_frontend)?, send, (ticket, clock)).await
    }

    fn begin(&self, head: &RequestHead) -> Ticket {
        let uncached = head.prompt_tokens.saturating_sub(head.overlap_tokens);
        let prompt = Prompt {
            tokens: head.prompt_tokens.into(),
            uncached: uncached.into(),
        };
        let model = ModelId(head.model_id);
        let now = self.context.clock.now();
        self.session.begin(head.number, model, prompt, now)
    }

    /// Turns a head and a body into a request, if it is one that may pass.
    fn admit(&self, head: RequestHead, body: StreamBody) -> Result<Request<StreamBody>, Ended> {
        let limit = self.context.body_bytes;
        if head.body_length.is_some_and(|length| length > limit) {
            return Err(Fault::TooLarge.into());
        }
        let body = body.with_limit(limit).with_length(head.body_length);
        let target = self.context.allowed.admit(&head)?;
        let mut request = Request::new(body);
        *request.method_mut() = target.method;
        *request.uri_mut() = self.context.frontend.uri(target.path_and_query);
        *request.headers_mut() =
            admission::headers(head.headers).map_err(|error| Ended::Head(error.to_string()))?;
        Ok(request)
    }
}

fn from_frontend(error: FrontendError) -> Ended {
    match error {
        FrontendError::Unreached(reason) => Fault::Unreached(reason).into(),
        FrontendError::Broken(reason) => Fault::Broken(reason).into(),
        FrontendError::TooLarge => Fault::TooLarge.into(),
        FrontendError::Upload(reason) => Ended::Upload(reason),
    }
}

/// Ends a stream so that the edge cannot take what it got for a whole answer.
async fn end(mut send: GuardedSend, ended: Ended) {
    match ended {
        Ended::Fault(fault) => {
            let Ok(head) = encode(&fault.head(), HEAD_LIMIT) else {
                return;
            };
            // The edge may have left meanwhile: then there is nobody to tell.
            if send.write(head).await.is_ok() {
                send.finish();
            }
        }
        Ended::Head(_) => send.reset(StreamCode::Refused),
        Ended::Edge(_) | Ended::Upload(_) => send.reset(StreamCode::Abandoned),
        Ended::Answer(_) | Ended::Frame(_) => send.reset(StreamCode::Broken),
    }
}

/// Passes the frontend's answer on, chunk by chunk.
async fn relay_answer(
    answer: Response<Incoming>,
    send: &mut GuardedSend,
    (mut ticket, clock): (Ticket, Clock),
) -> Result<(), Ended> {
    let (mut parts, mut body) = answer.into_parts();
    strip_hop(&mut parts.headers);
    let streamed = is_stream(&parts);
    let head = ResponseHead {
        status: parts.status.as_u16().into(),
        headers: to_wire(&parts.headers),
        fault: 0,
    };
    send.write(encode(&head, HEAD_LIMIT)?).await?;
    while let Some(frame) = body.frame().await {
        // Trailers have no place on the wire, and nobody sends them here.
        let Ok(data) = frame.map_err(Ended::Answer)?.into_data() else {
            continue;
        };
        if data.is_empty() {
            continue;
        }
        ticket.first_byte();
        if streamed {
            ticket.streamed(clock.now());
        }
        send.write(data).await?;
    }
    Ok(())
}

/// Whether an answer comes as it is computed: one that comes at its end doesn't say how long
/// that took.
fn is_stream(parts: &Parts) -> bool {
    let kind = parts.headers.get(CONTENT_TYPE);
    let is_events = |kind: &HeaderValue| kind.as_bytes().starts_with(b"text/event-stream");
    parts.status.is_success() && kind.is_some_and(is_events)
}

#[cfg(test)]
mod tests;
