use http_body_util::BodyExt;
use kvgrid_proto::frame::{CONTROL_LIMIT, encode};
use kvgrid_proto::v1::RequestHead;
use quinn::Connection;

use super::*;
use crate::node::tests::Pair;
use crate::{Expected, Protocol};

/// Both ends of a request connection.
async fn connected() -> (Pair, Connection, Connection) {
    let pair = Pair::start();
    let dialled = pair.dial(Protocol::Request, &Expected::AnyRelay).await;
    let taken = pair.relay.accept().await.unwrap();
    (pair, dialled.connection, taken.connection)
}

fn head() -> Bytes {
    let head = RequestHead {
        target: "/v1/models".into(),
        ..RequestHead::default()
    };
    encode(&head, CONTROL_LIMIT).unwrap()
}

/// Sends a head and `body` one way, ends as `end` says, and gives what the other end reads.
async fn sent(
    body: &'static [u8],
    length: Option<u64>,
    end: impl FnOnce(GuardedSend),
) -> Result<Bytes, StreamBodyError> {
    let (_pair, here, there) = connected().await;
    let (send, _receive) = here.open_bi().await.unwrap();
    let mut send = GuardedSend::new(send);
    send.write(head()).await.unwrap();
    send.write(Bytes::from_static(body)).await.unwrap();
    let (_send, receive) = there.accept_bi().await.unwrap();
    let (read, mut body) = read_message::<RequestHead>(receive, CONTROL_LIMIT)
        .await
        .unwrap();
    assert_eq!(read.target, "/v1/models");

    // Something must be read before a reset, which may overtake what was sent.
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(!first.is_empty());
    end(send);
    let rest = body.with_length(length).collect().await?.to_bytes();
    Ok([first, rest].concat().into())
}

#[tokio::test]
async fn a_message_and_its_body_arrive_as_sent() {
    let body = sent(b"the body", Some(0), GuardedSend::finish)
        .await
        .unwrap();

    assert_eq!(body, "the body");
}

#[tokio::test]
async fn a_sender_dropped_unfinished_resets_the_stream() {
    let error = sent(b"the bo", None, drop).await.unwrap_err();

    assert!(matches!(error, StreamBodyError::Reset(code) if code == StreamCode::Abandoned.code()));
}

#[tokio::test]
async fn a_reset_tells_its_reason() {
    let error = sent(b"the bo", None, |send| send.reset(StreamCode::Broken))
        .await
        .unwrap_err();

    assert!(matches!(error, StreamBodyError::Reset(code) if code == StreamCode::Broken.code()));
}

#[tokio::test]
async fn a_body_shorter_than_announced_is_an_error() {
    let error = sent(b"the bo", Some(2), GuardedSend::finish)
        .await
        .unwrap_err();

    assert!(matches!(error, StreamBodyError::Short(2)), "{error}");
}

#[tokio::test]
async fn a_body_over_its_limit_is_stopped() {
    let (_pair, here, there) = connected().await;
    let (send, _receive) = here.open_bi().await.unwrap();
    let mut send = GuardedSend::new(send);
    send.write(head()).await.unwrap();
    send.write(Bytes::from_static(b"too long")).await.unwrap();
    let (_send, receive) = there.accept_bi().await.unwrap();
    let (_, body) = read_message::<RequestHead>(receive, CONTROL_LIMIT)
        .await
        .unwrap();

    let error = body.with_limit(7).collect().await.unwrap_err();

    assert!(matches!(error, StreamBodyError::Long), "{error}");
    let stopped = send.stopped().await.unwrap();
    assert_eq!(stopped, Some(StreamCode::Refused.code()));
}

#[tokio::test]
async fn a_body_that_is_dropped_stops_its_sender() {
    let (_pair, here, there) = connected().await;
    let (send, _receive) = here.open_bi().await.unwrap();
    let mut send = GuardedSend::new(send);
    send.write(head()).await.unwrap();
    let (_send, receive) = there.accept_bi().await.unwrap();

    let read = read_message::<RequestHead>(receive, CONTROL_LIMIT).await;
    drop(read.unwrap());

    let stopped = send.stopped().await.unwrap();
    assert_eq!(stopped, Some(StreamCode::Abandoned.code()));
}

#[tokio::test]
async fn a_stream_that_ends_within_its_message_is_refused() {
    let (_pair, here, there) = connected().await;
    let (send, _receive) = here.open_bi().await.unwrap();
    let mut send = GuardedSend::new(send);
    let head = head();
    send.write(head.slice(..head.len() - 1)).await.unwrap();
    send.finish();
    let (_send, receive) = there.accept_bi().await.unwrap();

    let error = read_message::<RequestHead>(receive, CONTROL_LIMIT)
        .await
        .unwrap_err();

    assert!(
        matches!(
            error,
            ReadFrameError::Frame(FrameError::Truncated { missing: 1 })
        ),
        "{error}"
    );
}
