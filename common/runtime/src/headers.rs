//! Headers between HTTP and the wire.

use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue};
use kvgrid_proto::v1::Header;
use thiserror::Error;

/// Headers of one message; hyper itself reads no more than a hundred.
const LIMIT: usize = 128;

/// Headers that speak of one hop (RFC 9110, section 7.6.1), besides what `connection` names.
const HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Why headers from the wire are none. The peer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// There are more than a message may have.
    #[error("{0} headers are too many")]
    TooMany(usize),
    /// A name has characters that it may not have.
    #[error("{0:?} is no header's name")]
    Name(String),
    /// A value has control characters.
    #[error("the value of {0} is no header's value")]
    Value(HeaderName),
}

/// Headers as the wire has them, in their order.
pub fn to_wire(headers: &HeaderMap) -> Vec<Header> {
    let header = |(name, value): (&HeaderName, &HeaderValue)| Header {
        name: name.as_str().to_owned(),
        value: value.as_bytes().to_vec().into(),
    };
    headers.iter().map(header).collect()
}

/// Headers from the wire, checked.
pub fn from_wire(headers: Vec<Header>) -> Result<HeaderMap, HeaderError> {
    if headers.len() > LIMIT {
        return Err(HeaderError::TooMany(headers.len()));
    }
    let mut map = HeaderMap::with_capacity(headers.len());
    for Header { name, value } in headers {
        let Ok(known) = HeaderName::try_from(&name) else {
            return Err(HeaderError::Name(name));
        };
        match HeaderValue::from_maybe_shared(value) {
            Ok(value) => map.append(known, value),
            Err(_) => return Err(HeaderError::Value(known)),
        };
    }
    Ok(map)
}

/// Removes what speaks of one hop only.
pub fn strip_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP {
        headers.remove(name);
    }
    for name in named {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &[u8]) -> Header {
        Header {
            name: name.to_owned(),
            value: value.to_vec().into(),
        }
    }

    #[test]
    fn headers_cross_the_wire_in_order_and_with_repeats() {
        let wire = vec![
            header("set-cookie", b"a"),
            header("content-type", b"text/event-stream"),
            header("set-cookie", "bä".as_bytes()),
        ];

        let map = from_wire(wire).unwrap();

        let cookies: Vec<_> = map.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a".as_bytes(), "bä".as_bytes()]);
        assert_eq!(from_wire(to_wire(&map)).unwrap(), map);
    }

    #[test]
    fn headers_that_would_split_a_message_are_refused() {
        assert_eq!(
            from_wire(vec![header("a b", b"")]),
            Err(HeaderError::Name("a b".into()))
        );
        assert_eq!(
            from_wire(vec![header("a", b"x\r\nhost: evil")]),
            Err(HeaderError::Value(HeaderName::from_static("a")))
        );
        let many = vec![header("a", b""); LIMIT + 1];
        assert_eq!(from_wire(many), Err(HeaderError::TooMany(LIMIT + 1)));
    }

    #[test]
    fn what_speaks_of_one_hop_is_removed() {
        let mut map = from_wire(vec![
            header("connection", b"close, X-Hop"),
            header("x-hop", b"1"),
            header("keep-alive", b"timeout=5"),
            header("transfer-encoding", b"chunked"),
            header("content-type", b"application/json"),
        ])
        .unwrap();

        strip_hop(&mut map);

        assert_eq!(map.len(), 1);
        assert!(map.contains_key("content-type"));
    }
}
