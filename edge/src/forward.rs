//! Sends requests to relays: a stream each, on the request connection that is there.
//!
//! An answer is watched for while the request is still being sent, so that an early refusal
//! does not wait for a long upload. Dropping the future or the answer resets the stream, which
//! cancels the request at the site; an answer that ends by a reset is an error and never an
//! end. What a client does not read stays on the way: the stream's window is all that the edge
//! holds of it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use kvgrid_core::RelayId;
use kvgrid_proto::frame::{FrameError, encode};
use kvgrid_proto::v1::{RelayFault, RequestHead, ResponseHead};
use kvgrid_runtime::frames::ReadFrameError;
use kvgrid_runtime::headers::from_wire;
use kvgrid_runtime::stream::{GuardedSend, StreamBody, StreamBodyError, StreamCode, read_message};
use quinn::{ConnectionError, ReadError, RecvStream, WriteError};
use thiserror::Error;

use crate::subscribe::Links;

/// Most bytes of a request's or an answer's head.
const HEAD_LIMIT: usize = 64 * 1024;
/// Opening a stream takes no round trip, unless the relay has as many as it allows: then
/// another site is better than a wait.
const OPEN_TIMEOUT: Duration = Duration::from_millis(50);

/// Why there is no answer from a site.
#[derive(Debug, Error)]
pub(crate) enum ForwardError {
    /// There is no connection to the relay. The request has not run.
    #[error("there is no connection to the relay")]
    NoConnection,
    /// The relay has as many requests of ours as it allows. The request has not run.
    #[error("the relay opens no more streams")]
    NoStream,
    /// The connection broke before anything was sent. The request has not run.
    #[error("the connection broke before the request was sent: {0}")]
    NotSent(#[source] ConnectionError),
    /// The relay did not reach its frontend. The request has not run.
    #[error("the relay did not reach its frontend")]
    Unreached,
    /// The relay is at a limit or stops. The request has not run.
    #[error("the relay takes no more requests")]
    Busy,
    /// The relay does not allow the path, or found the head malformed; a fault of ours.
    #[error("the relay refused the request: {0}")]
    Refused(&'static str),
    /// The body or the head is larger than the relay takes. The client is at fault.
    #[error("the request is too large for the relay")]
    TooLarge,
    /// The frontend or the connection broke before an answer. The request may have run.
    #[error("the site broke off before it answered: {0}")]
    Broken(String),
    /// The relay answered what is no answer. The request may have run.
    #[error("the relay broke the protocol: {0}")]
    Protocol(String),
}

impl ForwardError {
    /// Whether the request is known not to have run, so that another site is surely the first.
    pub(crate) const fn never_ran(&self) -> bool {
        match self {
            Self::NoConnection
            | Self::NoStream
            | Self::NotSent(_)
            | Self::Unreached
            | Self::Busy
            | Self::Refused(_)
            | Self::TooLarge => true,
            Self::Broken(_) | Self::Protocol(_) => false,
        }
    }
}

/// A site's answer, whose body is still coming.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The frontend's status.
    pub(crate) status: StatusCode,
    /// The frontend's headers, without those of a single hop.
    pub(crate) headers: HeaderMap,
    /// The frontend's body, byte for byte.
    pub(crate) body: UpstreamBody,
}

/// Sends requests over the connections that are live at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder {
    links: Links,
}

impl Forwarder {
    /// Sends over what `links` has when a request comes.
    pub(crate) const fn new(links: Links) -> Self {
        Self { links }
    }

    /// Sends a request and waits for the head of the answer.
    ///
    /// The head's body length is set from `body`. There is no deadline here, as a long prompt
    /// takes long: who has one drops the future, and the site stops.
    pub(crate) async fn send(
        &self,
        relay: &RelayId,
        mut head: RequestHead,
        body: Bytes,
    ) -> Result<Upstream, ForwardError> {
        head.body_length = u64::try_from(body.len()).ok();
        let head = encode(&head, HEAD_LIMIT).map_err(|_| ForwardError::TooLarge)?;
        let (send, receive) = self.open(relay).await?;
        let mut upload = Upload::start(GuardedSend::new(send), head, body);
        let answer = first_of(&mut upload, receive).await?;
        answered(answer, upload)
    }

    async fn open(&self, relay: &RelayId) -> Result<(quinn::SendStream, RecvStream), ForwardError> {
        let connection = self.links.get(relay);
        let connection = connection.ok_or(ForwardError::NoConnection)?;
        tokio::time::timeout(OPEN_TIMEOUT, connection.open_bi())
            .await
            .map_err(|_| ForwardError::NoStream)?
            .map_err(ForwardError::NotSent)
    }
}

/// The request on its way, driven by whoever waits for the answer.
struct Upload(Option<Sending>);

type Sending = Pin<Box<dyn Future<Output = Result<(), WriteError>> + Send + Sync>>;

impl Upload {
    fn start(mut send: GuardedSend, head: Bytes, body: Bytes) -> Self {
        Self(Some(Box::pin(async move {
            send.write(head).await?;
            send.write(body).await?;
            send.finish();
            Ok(())
        })))
    }

    /// Moves on what can be moved. A relay that stops reading has its reason in its answer, and
    /// a lost connection shows there too, so errors only end the upload.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(upload) = &mut self.0
            && upload.as_mut().poll(cx).is_ready()
        {
            self.0 = None;
        }
    }
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "Upload(open)"
        } else {
            "Upload(done)"
        })
    }
}

/// Waits for the head of the answer while the request is being sent.
async fn first_of(
    upload: &mut Upload,
    receive: RecvStream,
) -> Result<(ResponseHead, StreamBody), ForwardError> {
    let mut reading = std::pin::pin!(read_message(receive, HEAD_LIMIT));
    std::future::poll_fn(|cx| {
        upload.drive(cx);
        reading.as_mut().poll(cx)
    })
    .await
    .map_err(from_read)
}

fn from_read(error: ReadFrameError) -> ForwardError {
    let refused = StreamCode::Refused.code();
    match error {
        ReadFrameError::Stream(ReadError::Reset(code)) if code == refused => {
            ForwardError::Refused("it found the request malformed")
        }
        ReadFrameError::Stream(error) => ForwardError::Broken(error.to_string()),
        ReadFrameError::Frame(FrameError::Truncated { .. }) => {
            ForwardError::Protocol("the stream ended before the answer".into())
        }
        ReadFrameError::Frame(error) => ForwardError::Protocol(error.to_string()),
    }
}

fn answered(
    (head, body): (ResponseHead, StreamBody),
    upload: Upload,
) -> Result<Upstream, ForwardError> {
    match RelayFault::try_from(head.fault) {
        Ok(RelayFault::None) => {}
        Ok(RelayFault::Unreached) => return Err(ForwardError::Unreached),
        Ok(RelayFault::Busy) => return Err(ForwardError::Busy),
        Ok(RelayFault::Forbidden) => {
            return Err(ForwardError::Refused("it does not allow the path"));
        }
        Ok(RelayFault::TooLarge) => return Err(ForwardError::TooLarge),
        Ok(RelayFault::Broken) => {
            return Err(ForwardError::Broken("the frontend broke off".into()));
        }
        // A newer relay knows more faults; nothing is known of whether the request ran.
        Err(_) => return Err(ForwardError::Broken(format!("relay fault {}", head.fault))),
    }
    let malformed = |what: String| ForwardError::Protocol(what);
    let status = u16::try_from(head.status)
        .ok()
        .and_then(|status| StatusCode::from_u16(status).ok())
        .ok_or_else(|| malformed(format!("{} is no status", head.status)))?;
    let headers = from_wire(head.headers).map_err(|error| malformed(error.to_string()))?;
    let body = body.with_length(announced(status, &headers));
    Ok(Upstream {
        status,
        headers,
        body: UpstreamBody { body, upload },
    })
}

/// The length of the body, if the answer says it and has one.
fn announced(status: StatusCode, headers: &HeaderMap) -> Option<u64> {
    let bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED];
    if bodiless.contains(&status) {
        return None;
    }
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The body of a site's answer; dropped before its end, it cancels the request.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    body: StreamBody,
    upload: Upload,
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = StreamBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamBodyError>>> {
        self.upload.drive(cx);
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
