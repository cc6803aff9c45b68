//! Which requests may pass to the frontend.
//!
//! An edge speaks for its clients, so the list is short: a frontend has pages (metrics, cache
//! control, worker control) that are nobody's business outside its site. Paths are compared as
//! they are written; one that only means the same as an allowed one is not allowed.

use std::fmt;
use std::str::FromStr;

use http::header::{CONTENT_LENGTH, EXPECT, HOST};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method};
use kvgrid_proto::v1::{Header, RequestHead};
use kvgrid_runtime::headers::{HeaderError, from_wire, strip_hop};
use thiserror::Error;

use super::fault::Fault;

/// Why a text allows nothing. Whoever wrote the configuration is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not written METHOD /path")]
pub(crate) struct AllowedError(String);

/// The methods and paths that edges may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed(Vec<Target>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    method: Method,
    path: String,
}

impl Default for Allowed {
    /// What an edge offers its clients.
    fn default() -> Self {
        let target = |method, path: &str| Target {
            method,
            path: path.to_owned(),
        };
        Self(vec![
            target(Method::POST, "/v1/chat/completions"),
            target(Method::POST, "/v1/completions"),
            target(Method::GET, "/v1/models"),
        ])
    }
}

impl Allowed {
    /// Reads texts such as `POST /v1/chat/completions`.
    pub(crate) fn parse<'a>(
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, AllowedError> {
        texts
            .into_iter()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// What a head asks for, if it is allowed.
    pub(super) fn admit(&self, head: &RequestHead) -> Result<Admitted, Fault> {
        let forbidden = || Fault::Forbidden(format!("{:?} {:?}", head.method, head.target));
        let method = Method::from_str(&head.method).map_err(|_| forbidden())?;
        let path_and_query = PathAndQuery::from_str(&head.target).map_err(|_| forbidden())?;
        let path = path_and_query.path();
        if self.0.iter().any(|t| t.method == method && t.path == path) {
            Ok(Admitted {
                method,
                path_and_query,
            })
        } else {
            Err(forbidden())
        }
    }
}

impl FromStr for Target {
    type Err = AllowedError;

    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let malformed = || AllowedError(text.to_owned());
        let (method, path) = text.split_once(' ').ok_or_else(malformed)?;
        if !path.starts_with('/') || path.contains(['?', '#', ' ']) {
            return Err(malformed());
        }
        Ok(Self {
            method: method.parse().map_err(|_| malformed())?,
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, target) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", target.method, target.path)?;
        }
        Ok(())
    }
}

/// What was asked for and may pass.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) method: Method,
    pub(super) path_and_query: PathAndQuery,
}

/// The headers for the frontend: without those that speak of the way here.
///
/// The client sets `host` anew, and `content-length` from the length that the edge announced
/// and is held to. What else a client may not say to a site the edge has removed.
pub(super) fn headers(wire: Vec<Header>) -> Result<HeaderMap, HeaderError> {
    let mut headers = from_wire(wire)?;
    strip_hop(&mut headers);
    for name in [HOST, CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(method: &str, target: &str) -> Result<String, Fault> {
        let head = RequestHead {
            method: method.into(),
            target: target.into(),
            ..RequestHead::default()
        };
        let admitted = Allowed::default().admit(&head)?;
        Ok(format!("{} {}", admitted.method, admitted.path_and_query))
    }

    #[test]
    fn an_allowed_path_passes_with_its_query() {
        assert_eq!(
            admitted("POST", "/v1/completions?beta=true").unwrap(),
            "POST /v1/completions?beta=true"
        );
    }

    #[test]
    fn another_method_path_or_spelling_does_not_pass() {
        for (method, target) in [
            ("GET", "/v1/completions"),
            ("POST", "/v1/completions/"),
            ("POST", "//v1/completions"),
            ("POST", "/v1/%63ompletions"),
            ("POST", "/metrics/../v1/completions"),
            ("POST", "http://frontend/v1/completions"),
            ("POST", "v1/completions"),
            ("GET", "/metrics"),
            ("GET", ""),
            ("G T", "/v1/models"),
        ] {
            let refused = admitted(method, target);
            assert!(matches!(refused, Err(Fault::Forbidden(_))), "{target}");
        }
    }

    #[test]
    fn a_list_is_read_and_written() {
        let texts = ["POST /v1/embeddings", "GET /v1/models"];

        let allowed = Allowed::parse(texts).unwrap();

        assert_eq!(allowed.to_string(), texts.join(", "));
        for wrong in ["", "/v1/models", "GET v1/models", "GET /v1/models?all"] {
            assert!(Allowed::parse([wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_way_here_is_not_the_frontends_business() {
        let header = |name: &str, value: &'static str| Header {
            name: name.into(),
            value: value.into(),
        };

        let headers = headers(vec![
            header("host", "edge"),
            header("content-length", "1"),
            header("expect", "100-continue"),
            header("connection", "x-hop"),
            header("x-hop", "1"),
            header("authorization", "Bearer key"),
        ])
        .unwrap();

        assert_eq!(headers.len(), 1);
        assert_eq!(headers["authorization"], "Bearer key");
    }
}
