//! The frontend: a pooled HTTP/1.1 client.

mod connection;

use std::error::Error;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kvgrid_runtime::stream::{StreamBody, StreamBodyError};
use thiserror::Error;

use connection::Connector;

/// Idle connections that are kept; a burst may open more, which are closed after it.
const IDLE_CONNECTIONS: usize = 256;
/// Shorter than any server's own keep-alive, so that we are the one to close.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Where the frontend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontendSettings {
    /// `http://host:port`, nothing more.
    pub(crate) url: Uri,
    /// How long a connection may take; the frontend is near.
    pub(crate) connect_timeout: Duration,
}

/// Why a URL cannot be a frontend's. Whoever wrote the configuration is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0} is not written http://host:port")]
pub(crate) struct FrontendUrlError(Uri);

/// Why there is no answer from the frontend.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum FrontendError {
    /// No connection was made, or the request was not written to one.
    #[error("not reached: {0}")]
    Unreached(String),
    /// The connection broke after the request may have been written.
    #[error("broke off: {0}")]
    Broken(String),
    /// The request's body went over the limit.
    #[error("the request's body is too large")]
    TooLarge,
    /// The request's body did not come whole.
    #[error("the request's body is not whole: {0}")]
    Upload(String),
}

/// A client of one frontend; clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Frontend {
    client: Client<Connector, StreamBody>,
    authority: Authority,
}

impl Frontend {
    /// A client that connects when it is asked.
    pub(crate) fn new(settings: &FrontendSettings) -> Result<Self, FrontendUrlError> {
        let url = &settings.url;
        let malformed = || FrontendUrlError(url.clone());
        let authority = url.authority().ok_or_else(malformed)?.clone();
        if url.scheme() != Some(&Scheme::HTTP) || url.path() != "/" || url.query().is_some() {
            return Err(malformed());
        }
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(Connector::new(settings.connect_timeout));
        Ok(Self { client, authority })
    }

    /// The frontend's address of a path.
    pub(crate) fn uri(&self, path_and_query: PathAndQuery) -> Uri {
        Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(path_and_query)
            .build()
            .expect("all three parts are there and parsed")
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// Dropping the future, or the answer's body before its end, closes the connection at once,
    /// also while the frontend is silent: that is how it learns that nobody waits any more.
    pub(super) async fn send(
        &self,
        request: Request<StreamBody>,
    ) -> Result<Response<Incoming>, FrontendError> {
        self.client.request(request).await.map_err(|error| {
            let reason = whole_reason(&error);
            // A fault of the body comes first: it is what broke the connection.
            if let Some(fault) = find::<StreamBodyError>(&error) {
                return match fault {
                    StreamBodyError::Long => FrontendError::TooLarge,
                    _ => FrontendError::Upload(reason),
                };
            }
            let unsent = find::<hyper::Error>(&error).is_some_and(hyper::Error::is_canceled);
            if error.is_connect() || unsent {
                FrontendError::Unreached(reason)
            } else {
                FrontendError::Broken(reason)
            }
        })
    }
}

/// An error and what caused it, outermost first.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        (*error).source()
    })
}

/// The first error of a kind in a chain of causes.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// Clients wrap the error that says what happened in ones that don't.
fn whole_reason(error: &(dyn Error + 'static)) -> String {
    let reasons: Vec<String> = chain(error).map(ToString::to_string).collect();
    reasons.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_has_an_address_and_nothing_else() {
        let frontend = |url: &str| {
            Frontend::new(&FrontendSettings {
                url: url.parse().unwrap(),
                connect_timeout: Duration::from_secs(1),
            })
        };

        assert!(frontend("http://127.0.0.1:8000").is_ok());
        assert!(frontend("http://localhost:8000/").is_ok());
        for wrong in [
            "https://host:1",
            "http://host/v1",
            "host:1",
            "/",
            "http://host/?a",
        ] {
            let error = frontend(wrong).unwrap_err().to_string();
            assert!(error.contains("is not written http://host:port"), "{error}");
        }
    }
}
