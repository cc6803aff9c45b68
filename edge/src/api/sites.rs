//! The way to the sites, as the API sees it.

use std::fmt::Display;
use std::future::Future;

use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use kvgrid_core::id::{ModelId, RelayId};

/// A request on its way to a site.
#[derive(Clone, Debug)]
pub(crate) struct SiteRequest {
    /// The method.
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    /// The headers that the site sees.
    pub(crate) headers: HeaderMap,
    /// The number that loads are counted by.
    pub(crate) number: u64,
    /// The model asked for.
    pub(crate) model: ModelId,
    /// The prompt's length; 0 if it is not known.
    pub(crate) prompt_tokens: u32,
    /// Tokens of it that the site is thought to hold.
    pub(crate) overlap_tokens: u32,
    /// The body.
    pub(crate) body: Bytes,
}

/// Why a site gave no answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendError {
    /// What went wrong, in one word for the metrics.
    pub(crate) reason: &'static str,
    /// What went wrong, for people.
    pub(crate) detail: String,
    /// What follows from it.
    pub(crate) kind: FailureKind,
    /// Whether the site may have begun the work, which another then does again.
    pub(crate) may_have_run: bool,
}

/// What a failed try says of the site and of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The site failed, and may do so again: it counts against the relay.
    Fault,
    /// It works, but takes no more just now, or not from here.
    Refusal,
    /// This relay takes no more just now, or is not connected any more; another of the site's
    /// may take it.
    RelayRefusal,
    /// It doesn't serve the model.
    LacksModel,
    /// It takes no request as large as this.
    TooLarge,
}

/// Carries requests to relays. Dropping what it returns aborts the request at the site.
pub(crate) trait Sites: Send + Sync + 'static {
    /// An answer's body as it comes; an error in it means that it is not whole.
    type Body: http_body::Body<Data = Bytes, Error: Display> + Send + Unpin + 'static;

    /// Sends a request and waits for the head of its answer.
    fn send(
        &self,
        relay: &RelayId,
        request: SiteRequest,
    ) -> impl Future<Output = Result<Response<Self::Body>, SendError>> + Send;
}
