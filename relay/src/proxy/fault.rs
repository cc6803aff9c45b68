//! Answers that the relay gives itself, when there is none from the frontend.

use http::StatusCode;
use kvgrid_proto::v1::{RelayFault, ResponseHead};
use thiserror::Error;

/// Why the frontend gives no answer; the edge decides by it whether to try elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Fault {
    /// The frontend was not reached. The request has not run.
    #[error("the frontend was not reached: {0}")]
    Unreached(String),
    /// The frontend was reached and broke off. The request may have run.
    #[error("the frontend broke off: {0}")]
    Broken(String),
    /// The method or path is none that edges may use. The edge is at fault.
    #[error("{0} is not allowed")]
    Forbidden(String),
    /// The relay has as many requests as it takes, or stops. The request has not run.
    #[error("the relay takes no more requests")]
    Busy,
    /// The body is larger than the relay takes. The client is at fault.
    #[error("the request's body is too large")]
    TooLarge,
}

impl Fault {
    /// What goes over the wire; the words stay in our log.
    pub(crate) fn head(&self) -> ResponseHead {
        let (status, fault) = match self {
            Self::Unreached(_) => (StatusCode::BAD_GATEWAY, RelayFault::Unreached),
            Self::Broken(_) => (StatusCode::BAD_GATEWAY, RelayFault::Broken),
            Self::Forbidden(_) => (StatusCode::FORBIDDEN, RelayFault::Forbidden),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, RelayFault::Busy),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, RelayFault::TooLarge),
        };
        ResponseHead {
            status: status.as_u16().into(),
            headers: Vec::new(),
            fault: fault.into(),
        }
    }
}
