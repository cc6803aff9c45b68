//! Why a collection can't be followed, and what is to be done about it.

use std::io;
use std::time::Duration;

use http::StatusCode;
use http::uri::InvalidUri;
use http_body_util::LengthLimitError;
use thiserror::Error;

use super::super::objects::Status;
use super::lines::LINE_BYTES;
use super::{OBJECTS, PAGE_BYTES};
use crate::fetch::innermost;
use crate::secret::SecretError;

/// Most characters of what the server says that are told on.
const MESSAGE_CHARS: usize = 400;

/// Why a collection can't be followed. Nothing that was known before is wrong because of it.
#[derive(Debug, Error)]
pub(in super::super) enum ApiError {
    /// Its address isn't one.
    #[error(transparent)]
    Url(#[from] InvalidUri),
    /// The address makes no request.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// No connection, or none that is trusted.
    #[error("{}", innermost(.0))]
    Connect(#[from] io::Error),
    /// The connection broke.
    #[error("{}", innermost(.0))]
    Connection(#[from] hyper::Error),
    /// The token or a file of TLS can't be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A file of TLS isn't what it should be.
    #[error("{path}: {error}")]
    Tls { path: String, error: String },
    /// The token can't be shown.
    #[error("its token can't be used")]
    Token,
    /// It doesn't answer.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// It refuses, by its answer's status or within a watch.
    #[error("{status}{}", after(.message))]
    Refused { status: StatusCode, message: String },
    /// It can't go on from the version that was read.
    #[error("the version is too old{}", after(.0))]
    Gone(String),
    /// The watch has ended, as watches do.
    #[error("the watch ended")]
    Ended,
    /// The answer is none of Kubernetes'.
    #[error("not understood: {0}")]
    NotUnderstood(#[from] serde_json::Error),
    /// An answer is of no version.
    #[error("not understood: no resourceVersion")]
    NoVersion,
    /// An object longer than can be meant.
    #[error("a line of more than {LINE_BYTES} bytes")]
    LongLine,
    /// Objects longer than can be meant.
    #[error("a page of more than {PAGE_BYTES} bytes")]
    LongPage,
    /// More objects than can be meant.
    #[error("more than {OBJECTS} objects")]
    TooMany,
}

impl ApiError {
    /// An answer of another status than 200.
    pub(super) fn refused(status: StatusCode, message: &str) -> Self {
        let message = message.chars().take(MESSAGE_CHARS).collect();
        match status {
            StatusCode::GONE => Self::Gone(message),
            status => Self::Refused { status, message },
        }
    }

    /// A watch that ended with a word.
    pub(in super::super) fn of_watch(status: &Status) -> Self {
        let code = StatusCode::from_u16(status.code);
        let code = code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        match Self::refused(code, &status.message) {
            // Whatever it was about, it may have taken changes along.
            Self::Refused { message, .. } => Self::Gone(message),
            gone => gone,
        }
    }

    /// A page that can't be read to its end.
    pub(super) fn of_page(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        if error.is::<LengthLimitError>() {
            return Self::LongPage;
        }
        match error.downcast::<hyper::Error>() {
            Ok(error) => Self::Connection(*error),
            Err(error) => Self::Connect(io::Error::other(error)),
        }
    }

    /// Whether all must be read anew, for a watch can't go on from where it was.
    pub(in super::super) fn spoils_version(&self) -> bool {
        match self {
            Self::Gone(_) | Self::NotUnderstood(_) | Self::NoVersion | Self::LongLine => true,
            // These say nothing about the version; others may, as 400 or 504.
            Self::Refused { status, .. } => !matches!(
                *status,
                StatusCode::UNAUTHORIZED
                    | StatusCode::FORBIDDEN
                    | StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::INTERNAL_SERVER_ERROR
                    | StatusCode::SERVICE_UNAVAILABLE
            ),
            Self::Url(_)
            | Self::Request(_)
            | Self::Connect(_)
            | Self::Connection(_)
            | Self::Secret(_)
            | Self::Tls { .. }
            | Self::Token
            | Self::Silent(_)
            | Self::Ended
            | Self::LongPage
            | Self::TooMany => false,
        }
    }

    /// Whether this happens to a server that is well.
    pub(in super::super) fn is_usual(&self) -> bool {
        matches!(self, Self::Ended | Self::Gone(_))
    }
}

/// What the server adds, if it adds something.
fn after(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(": {message}"),
    }
}
