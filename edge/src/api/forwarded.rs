//! The edge's forwarder as the API's way to the sites.

use http::Response;
use kvgrid_core::id::RelayId;
use kvgrid_proto::v1::RequestHead;
use kvgrid_runtime::headers::to_wire;

use super::sites::{FailureKind, SendError, SiteRequest, Sites};
use crate::forward::{ForwardError, Forwarder, UpstreamBody};

impl Sites for Forwarder {
    type Body = UpstreamBody;

    async fn send(
        &self,
        relay: &RelayId,
        request: SiteRequest,
    ) -> Result<Response<UpstreamBody>, SendError> {
        let head = RequestHead {
            method: request.method.to_string(),
            target: request.target,
            headers: to_wire(&request.headers),
            number: request.number,
            prompt_tokens: request.prompt_tokens,
            overlap_tokens: request.overlap_tokens,
            model_id: request.model.0,
            // The forwarder knows the body and sets it.
            body_length: None,
        };
        let upstream = Self::send(self, relay, head, request.body).await?;
        let mut response = Response::new(upstream.body);
        *response.status_mut() = upstream.status;
        *response.headers_mut() = upstream.headers;
        Ok(response)
    }
}

impl From<ForwardError> for SendError {
    fn from(error: ForwardError) -> Self {
        let (reason, kind) = match &error {
            // The view says so at once; the breaker would only remember it for too long.
            ForwardError::NoConnection => ("no_connection", FailureKind::RelayRefusal),
            ForwardError::NoStream => ("no_stream", FailureKind::RelayRefusal),
            ForwardError::NotSent(_) => ("not_sent", FailureKind::Fault),
            ForwardError::Unreached => ("unreached", FailureKind::Fault),
            ForwardError::Busy => ("busy", FailureKind::RelayRefusal),
            ForwardError::Refused(_) => ("refused", FailureKind::Refusal),
            ForwardError::TooLarge => ("too_large", FailureKind::TooLarge),
            ForwardError::Broken(_) => ("broken", FailureKind::Fault),
            ForwardError::Protocol(_) => ("protocol", FailureKind::Fault),
        };
        Self {
            reason,
            detail: error.to_string(),
            kind,
            may_have_run: !error.never_ran(),
        }
    }
}
