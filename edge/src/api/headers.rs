//! Which headers pass, in one place.
//!
//! | headers | from clients to sites | from sites to clients |
//! |---|---|---|
//! | hop-by-hop: `connection` and what it names, `keep-alive`, `te`, `trailer`, `transfer-encoding`, `upgrade`, `proxy-*` | dropped | dropped |
//! | `host` | dropped: the relay sets its frontend's | |
//! | `content-length` | dropped: the body's own length is sent | kept |
//! | `expect` | dropped: the edge has read the body | |
//! | `x-kvgrid-*` | dropped: ours alone | dropped |
//! | `x-request-id` | the client's if it is sound, else a new one | dropped: the client gets the one that the site got |
//! | headers that pin a worker (`x-dynamo-worker-instance-id` and its like) | dropped: a client must not choose what the site's router decides | |
//! | all others, `authorization`, `traceparent` and vendors' own among them | kept | kept |

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tower_http::request_id::{MakeRequestId, RequestId};

/// Names the request in every log on its way.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id taken over from a client.
const REQUEST_ID_LIMIT: usize = 128;

/// Where our own headers begin.
const OWN_PREFIX: &str = "x-kvgrid-";

const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];

const TRANSFER_ENCODING: &str = "transfer-encoding";

const PINS: [&str; 8] = [
    "x-dynamo-worker-instance-id",
    "x-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-prefill-instance-id",
    "x-dynamo-dp-rank",
    "x-dp-rank",
    "x-data-parallel-rank",
    "x-dynamo-prefill-dp-rank",
];

/// The client's headers that the site sees, in their order.
pub(crate) fn to_site(headers: &HeaderMap) -> HeaderMap {
    let named = named_by_connection(headers);
    pass(headers, |name| {
        let text = name.as_str();
        passes_hop(name, &named)
            && !PINS.contains(&text)
            && name != HOST
            && name != CONTENT_LENGTH
            && name != EXPECT
    })
}

/// The site's headers that the client sees, in their order.
pub(crate) fn to_client(headers: &HeaderMap) -> HeaderMap {
    let named = named_by_connection(headers);
    pass(headers, |name| {
        passes_hop(name, &named) && name != REQUEST_ID
    })
}

/// Makes ids for requests that come without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRequestId;

impl MakeRequestId for NewRequestId {
    fn make_request_id<B>(&mut self, _: &Request<B>) -> Option<RequestId> {
        let id = format!("{:032x}", rand::random::<u128>());
        HeaderValue::try_from(id).ok().map(RequestId::new)
    }
}

/// The request without its id if that is overlong or not printable.
pub(crate) fn without_unsound_id<B>(mut request: Request<B>) -> Request<B> {
    let sound = |id: &HeaderValue| {
        let text = id.to_str();
        text.is_ok_and(|text| (1..=REQUEST_ID_LIMIT).contains(&text.len()))
    };
    if !request.headers().get(REQUEST_ID).is_some_and(sound) {
        request.headers_mut().remove(REQUEST_ID);
    }
    request
}

fn pass(headers: &HeaderMap, keep: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| keep(name));
    kept.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn passes_hop(name: &HeaderName, named: &[String]) -> bool {
    let text = name.as_str();
    !HOP_BY_HOP.contains(&text)
        && text != TRANSFER_ENCODING
        && !text.starts_with(OWN_PREFIX)
        && !named.iter().any(|named| named == text)
}

fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(CONNECTION).iter();
    let names = values.filter_map(|value| value.to_str().ok());
    names
        .flat_map(|names| names.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        pairs.iter().map(pair).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        headers.keys().map(HeaderName::as_str).collect()
    }

    #[test]
    fn a_site_sees_no_hop_headers_and_none_that_steer_it() {
        let client = headers(&[
            ("host", "edge"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("x-kvgrid-site", "fra"),
            ("x-dynamo-worker-instance-id", "7"),
            ("authorization", "Bearer k"),
            ("traceparent", "00-a-b-01"),
            ("x-dynamo-session-id", "s"),
        ]);

        let seen = to_site(&client);

        assert_eq!(
            names(&seen),
            ["authorization", "traceparent", "x-dynamo-session-id"]
        );
    }

    #[test]
    fn a_header_that_comes_twice_passes_twice() {
        let mut site = headers(&[("content-type", "text/event-stream"), ("te", "trailers")]);
        site.append("set-cookie", HeaderValue::from_static("a"));
        site.append("set-cookie", HeaderValue::from_static("b"));

        let seen = to_client(&site);

        assert_eq!(seen.get_all("set-cookie").iter().count(), 2);
        assert!(!seen.contains_key("te"));
    }

    #[test]
    fn an_unreasonable_request_id_is_not_taken_over() {
        let kept = |id: &str| {
            let mut request = Request::new(());
            let id = HeaderValue::from_bytes(id.as_bytes()).unwrap();
            request.headers_mut().insert(REQUEST_ID, id);
            let request = without_unsound_id(request);
            request.headers().contains_key(REQUEST_ID)
        };

        assert!(kept("mine"));
        assert!(!kept(&"a".repeat(129)));
        assert!(!kept(""));
        assert!(!kept("caf\u{e9}"));
    }

    #[test]
    fn new_request_ids_differ() {
        let id = || NewRequestId.make_request_id(&Request::new(())).unwrap();

        let (one, other) = (id(), id());

        assert_eq!(one.header_value().len(), 32);
        assert_ne!(one.header_value(), other.header_value());
    }
}
