//! Small documents from servers beside the relay: metrics pages, lists of models.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use thiserror::Error;

/// Most bytes of a document; a busy Dynamo frontend's metrics page has about 110 kB.
const DOCUMENT_LIMIT: usize = 8 * 1024 * 1024;

/// Why there is no document. Its server is at fault, or its address.
#[derive(Debug, Error)]
pub(crate) enum FetchError {
    /// The server was too slow.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The server answered something else than 200.
    #[error("status {0}")]
    Status(StatusCode),
    /// The server can't be reached, or the connection broke before an answer.
    #[error("{}", innermost(.0))]
    Connection(#[from] hyper_util::client::legacy::Error),
    /// The answer broke off, or is larger than a document may be.
    #[error("body: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The address makes no request.
    #[error(transparent)]
    Request(#[from] http::Error),
}

/// What an error is about: a client says only that it failed, the system's reason lies deeper.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut reason = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    reason.to_string()
}

/// Gets documents over kept-alive connections.
#[derive(Clone, Debug)]
pub(crate) struct Fetcher {
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Fetcher {
    /// A fetcher without connections.
    pub(crate) fn new() -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// Gets a document whole.
    pub(crate) async fn get(&self, url: Uri, patience: Duration) -> Result<Bytes, FetchError> {
        self.get_at_most(url, DOCUMENT_LIMIT, patience).await
    }

    /// Gets a document of at most `limit` bytes whole.
    pub(crate) async fn get_at_most(
        &self,
        url: Uri,
        limit: usize,
        patience: Duration,
    ) -> Result<Bytes, FetchError> {
        let answer = async {
            let request = Request::get(url).body(Empty::new())?;
            let response = self.client.request(request).await?;
            if response.status() != StatusCode::OK {
                return Err(FetchError::Status(response.status()));
            }
            let body = Limited::new(response.into_body(), limit);
            let whole = body.collect().await.map_err(FetchError::Body)?;
            Ok(whole.to_bytes())
        };
        let result = tokio::time::timeout(patience, answer).await;
        result.unwrap_or(Err(FetchError::Timeout(patience)))
    }
}
