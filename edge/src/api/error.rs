//! What a client is told when its request can't be served, in OpenAI's form.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use thiserror::Error;

/// Why a request was not served. None of these changes any state.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ApiError {
    /// The client's fault: the body is not what the API takes.
    #[error("{message}")]
    Malformed {
        /// What is wrong, in words the client's author understands.
        message: String,
        /// The field at fault, where there is one.
        param: Option<&'static str>,
    },
    /// The client's fault: no such path here.
    #[error("unknown path {0}; try /v1/chat/completions, /v1/completions or /v1/models")]
    UnknownPath(String),
    /// The client's fault: the path takes another method.
    #[error("this path takes {0} only")]
    Method(&'static str),
    /// The client's fault, or the operator's: no live site serves the model.
    #[error("the model `{0}` does not exist or no site serves it")]
    UnknownModel(String),
    /// The client's fault: no site takes a prompt as long as this.
    #[error("this model's maximum context length is {limit} tokens, and the prompt is longer")]
    TooLong {
        /// The longest context among the sites.
        limit: u32,
    },
    /// The client's fault: more body than the limit allows.
    #[error("the request body is over the limit of {limit} bytes")]
    TooLarge {
        /// Most bytes allowed.
        limit: usize,
    },
    /// The client's fault: more body than any site's relay takes.
    #[error("the request is too large for the sites that could serve it")]
    TooLargeForSites,
    /// The client was too slow to send its body.
    #[error("the request body did not arrive within {0:?}")]
    SlowBody(Duration),
    /// This edge is at its limit of concurrent requests.
    #[error("this edge is at its limit of concurrent requests; try again shortly")]
    Overloaded,
    /// The grid's fault: each site that could serve was tried or is excluded.
    #[error("no site can serve this request now: {0}")]
    Unavailable(String),
    /// The grid's fault: the site broke off within its answer.
    #[error("the site broke off within its answer; what came so far is not whole")]
    BrokenOff,
    /// The grid's fault: a site did not answer in time.
    #[error("the site did not answer in time")]
    Timeout,
    /// This edge's fault.
    #[error("internal error; the edge's log tells more")]
    Internal,
}

/// How long a client is asked to wait before it tries again.
pub(super) const RETRY_AFTER_SECONDS: u16 = 1;

#[derive(Serialize)]
struct Envelope<'a> {
    error: Body<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl ApiError {
    /// The HTTP status that goes with it.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Malformed { .. } | Self::TooLong { .. } => StatusCode::BAD_REQUEST,
            Self::UnknownPath(_) | Self::UnknownModel(_) => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } | Self::TooLargeForSites => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Overloaded | Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::BrokenOff => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            Self::UnknownModel(_) => Some("model_not_found"),
            Self::UnknownPath(_) => Some("unknown_url"),
            Self::Method(_) => Some("method_not_allowed"),
            Self::TooLong { .. } => Some("context_length_exceeded"),
            Self::TooLarge { .. } | Self::TooLargeForSites => Some("request_too_large"),
            Self::SlowBody(_) => Some("request_timeout"),
            Self::Overloaded => Some("overloaded"),
            Self::Unavailable(_) => Some("no_site_available"),
            Self::BrokenOff => Some("site_failed"),
            Self::Timeout => Some("site_timeout"),
            Self::Malformed { .. } | Self::Internal => None,
        }
    }

    fn param(&self) -> Option<&'static str> {
        match self {
            Self::Malformed { param, .. } => *param,
            Self::UnknownModel(_) => Some("model"),
            Self::UnknownPath(_)
            | Self::Method(_)
            | Self::TooLong { .. }
            | Self::TooLarge { .. }
            | Self::TooLargeForSites
            | Self::SlowBody(_)
            | Self::Overloaded
            | Self::Unavailable(_)
            | Self::BrokenOff
            | Self::Timeout
            | Self::Internal => None,
        }
    }

    /// The JSON object that OpenAI's clients parse.
    pub(crate) fn json(&self) -> Bytes {
        let message = self.to_string();
        let kind = if self.status().is_client_error() {
            "invalid_request_error"
        } else {
            "server_error"
        };
        let envelope = Envelope {
            error: Body {
                message: &message,
                kind,
                param: self.param(),
                code: self.code(),
            },
        };
        serde_json::to_vec(&envelope)
            .expect("strings always serialise")
            .into()
    }

    /// The event that ends a stream which had already begun.
    pub(crate) fn event(&self) -> Bytes {
        let json = self.json();
        [b"data: ", json.as_ref(), b"\n\n"].concat().into()
    }

    /// The whole answer.
    pub(crate) fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.json());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        }
        if let Self::Method(method) = self {
            headers.insert(ALLOW, HeaderValue::from_static(method));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(error: &ApiError) -> serde_json::Value {
        serde_json::from_slice(&error.json()).unwrap()
    }

    #[test]
    fn an_unknown_model_is_told_in_openais_form() {
        let error = ApiError::UnknownModel("no\"such".into());

        assert_eq!(error.response().status(), 404);
        let json = parsed(&error);
        assert_eq!(json["error"]["type"], "invalid_request_error");
        assert_eq!(json["error"]["code"], "model_not_found");
        assert_eq!(json["error"]["param"], "model");
        assert!(
            json["error"]["message"]
                .as_str()
                .unwrap()
                .contains("no\"such")
        );
    }

    #[test]
    fn who_can_come_back_is_told_when() {
        let unavailable = ApiError::Unavailable("all excluded".into()).response();
        assert_eq!(unavailable.status(), 503);
        assert_eq!(unavailable.headers()[RETRY_AFTER], "1");

        let malformed = ApiError::Malformed {
            message: "no".into(),
            param: None,
        }
        .response();
        assert!(!malformed.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn an_event_is_one_line_of_data_whatever_the_message_holds() {
        let event = ApiError::Unavailable("line\nbreak\r\n\r\n".into()).event();
        let text = std::str::from_utf8(&event).unwrap();

        let data = text
            .strip_prefix("data: ")
            .unwrap()
            .strip_suffix("\n\n")
            .unwrap();
        assert!(!data.contains(['\n', '\r']));
        assert!(serde_json::from_str::<serde_json::Value>(data).is_ok());
    }
}
