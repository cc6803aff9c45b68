//! Takes a request's body from the client, whole and within limits.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

use super::error::ApiError;

/// The body; `Err` if it is too large, too slow or cut off.
pub(super) async fn whole(
    headers: &HeaderMap,
    body: Incoming,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, ApiError> {
    if announced(headers).is_some_and(|length| length > limit) {
        // Said before a byte of it is read, so that the client need not send it.
        return Err(ApiError::TooLarge { limit });
    }
    let collected = tokio::time::timeout(timeout, Limited::new(body, limit).collect());
    match collected.await {
        Err(_) => Err(ApiError::SlowBody(timeout)),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::TooLarge { limit }),
        Ok(Err(error)) => Err(ApiError::Malformed {
            message: format!("the request body ended early: {error}"),
            param: None,
        }),
    }
}

fn announced(headers: &HeaderMap) -> Option<usize> {
    let length = headers.get(CONTENT_LENGTH)?.to_str().ok()?;
    // A length beyond the machine's is over any limit.
    Some(length.parse().unwrap_or(usize::MAX))
}
