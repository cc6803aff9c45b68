use bytes::Bytes;
use std::sync::atomic::Ordering;

use http_body_util::BodyExt;
use kvgrid_core::ModelId;
use kvgrid_proto::v1::{Header, RelayFault};
use kvgrid_runtime::stream::StreamBodyError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use self::rig::{Answer, Rig, answer_of, prompt_head, rest_of, soon};
use super::*;

mod rig;

/// Bytes that no shift, loss or repetition leaves as they were.
fn noise(length: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..length).map(byte).collect()
}

#[tokio::test]
async fn a_request_reaches_the_frontend_as_it_was_sent() {
    let rig = Rig::echoing().await;
    let body = noise(3_000_000);
    let head = RequestHead {
        target: "/v1/completions?beta=true".into(),
        headers: vec![
            Header {
                name: "authorization".into(),
                value: "Bearer key".into(),
            },
            Header {
                name: "connection".into(),
                value: "keep-alive".into(),
            },
        ],
        body_length: Some(3_000_000),
        ..prompt_head()
    };

    let answer = rig.ask(&head, body.clone()).await;

    let (head, answer) = answer_of(answer).await.unwrap();
    assert_eq!(head.status, 200);
    let header = |name: &str| {
        let found = head.headers.iter().find(|h| h.name == name);
        String::from_utf8(found.unwrap().value.to_vec()).unwrap()
    };
    assert_eq!(header("x-seen"), "POST /v1/completions?beta=true");
    assert_eq!(header("x-seen-host"), rig.frontend.to_string());
    assert_eq!(header("x-seen-length"), "3000000");
    assert_eq!(
        header("x-seen-headers"),
        "authorization,content-length,host"
    );
    assert!(
        rest_of(answer).await.unwrap() == body,
        "the body came back changed"
    );
}

#[tokio::test]
async fn an_answer_flows_chunk_by_chunk() {
    let (rig, chunks, _gone) = Rig::streaming().await;
    let (_, mut body) = answer_of(rig.ask(&prompt_head(), Bytes::new()).await)
        .await
        .unwrap();

    for chunk in ["data: one\n\n", "data: two\n\n", "data: [DONE]\n\n"] {
        chunks
            .send(Bytes::from_static(chunk.as_bytes()))
            .await
            .unwrap();
        // The next one is sent only once this one is here.
        let frame = soon(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), chunk);
    }
    drop(chunks);
    assert!(soon(body.frame()).await.is_none());
}

#[tokio::test]
async fn an_edge_that_gives_up_before_the_answer_cancels_the_request() {
    let (rig, requests) = Rig::silent().await;
    let (send, receive) = rig.open(&prompt_head(), Bytes::new()).await;
    send.finish();
    soon(requests.begun.notified()).await;

    drop(receive);

    soon(requests.gone.notified()).await;
    rig.until_idle().await;
}

#[tokio::test]
async fn an_edge_that_gives_up_while_the_frontend_is_silent_cancels_the_request() {
    let (rig, chunks, gone) = Rig::streaming().await;
    let (_, mut body) = answer_of(rig.ask(&prompt_head(), Bytes::new()).await)
        .await
        .unwrap();
    chunks
        .send(Bytes::from_static(b"data: one\n\n"))
        .await
        .unwrap();
    soon(body.frame()).await.unwrap().unwrap();

    drop(body);

    soon(gone.notified()).await;
    rig.until_idle().await;
}

#[tokio::test]
async fn an_edge_that_vanishes_cancels_its_requests() {
    let (rig, chunks, gone) = Rig::streaming().await;
    let (_, mut body) = answer_of(rig.ask(&prompt_head(), Bytes::new()).await)
        .await
        .unwrap();
    chunks
        .send(Bytes::from_static(b"data: one\n\n"))
        .await
        .unwrap();
    soon(body.frame()).await.unwrap().unwrap();

    rig.connection.close(0_u32.into(), b"");

    soon(gone.notified()).await;
    rig.until_idle().await;
}

#[tokio::test]
async fn an_edge_that_resets_its_upload_breaks_the_request_off() {
    let (rig, requests) = Rig::silent().await;
    let (mut send, receive) = rig
        .open(&prompt_head(), Bytes::from_static(b"{\"pro"))
        .await;
    soon(requests.begun.notified()).await;
    send.write(Bytes::from_static(b"mpt\":")).await.unwrap();

    send.reset(StreamCode::Abandoned);

    soon(requests.gone.notified()).await;
    let error = answer_of(receive).await.unwrap_err();
    assert!(error.contains("reset"), "{error}");
}

#[tokio::test]
async fn an_early_answer_is_passed_on_while_the_upload_goes_on() {
    let rig = Rig::raw(|mut stream| async move {
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 3\r\n\r\nbad";
        stream.write_all(answer).await.unwrap();
        // Closed only when the client is done, or the rest of the upload would reset it.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let head = RequestHead {
        body_length: Some(1_000_000),
        ..prompt_head()
    };

    let (_send, receive) = rig.open(&head, Bytes::from_static(b"{\"prompt\":")).await;

    let (head, body) = answer_of(receive).await.unwrap();
    assert_eq!((head.status, head.fault()), (400, RelayFault::None));
    assert_eq!(rest_of(body).await.unwrap(), "bad");
}

#[tokio::test]
async fn a_frontend_that_refuses_was_not_reached() {
    let rig = Rig::refusing().await;

    let (head, _) = answer_of(rig.ask(&prompt_head(), noise(100)).await)
        .await
        .unwrap();

    assert_eq!((head.status, head.fault()), (502, RelayFault::Unreached));
}

#[tokio::test]
async fn a_frontend_that_hangs_up_may_have_begun() {
    let rig = Rig::raw(|mut stream| async move {
        let mut head = [0; 16];
        stream.read_exact(&mut head).await.unwrap();
    })
    .await;

    let (head, _) = answer_of(rig.ask(&prompt_head(), noise(100)).await)
        .await
        .unwrap();

    assert_eq!((head.status, head.fault()), (502, RelayFault::Broken));
}

#[tokio::test]
async fn an_answer_that_breaks_off_never_looks_whole() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n";
    let counted = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\none";
    for beginning in [chunked, counted] {
        let read = Arc::new(Notify::new());
        let breaks = Arc::clone(&read);
        let rig = Rig::raw(move |mut stream| {
            let breaks = Arc::clone(&breaks);
            async move {
                let mut head = [0; 16];
                stream.read_exact(&mut head).await.unwrap();
                stream.write_all(beginning.as_bytes()).await.unwrap();
                breaks.notified().await;
            }
        })
        .await;
        let (head, mut body) = answer_of(rig.ask(&prompt_head(), Bytes::new()).await)
            .await
            .unwrap();
        let first = soon(body.frame()).await.unwrap().unwrap();

        // A reset may overtake what was sent before it, so it comes after that was read.
        read.notify_one();

        assert_eq!(head.status, 200);
        assert_eq!(first.into_data().unwrap(), "one");
        let error = rest_of(body).await.unwrap_err();
        let broken = StreamCode::Broken.code();
        assert!(
            matches!(error, StreamBodyError::Reset(code) if code == broken),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_announced_or_not() {
    let limits = ProxyLimits {
        body_bytes: 1000,
        ..ProxyLimits::default()
    };
    let rig = Rig::start(Answer::Echo, Allowed::default(), limits).await;

    for body_length in [Some(1001), None] {
        let head = RequestHead {
            body_length,
            ..prompt_head()
        };
        let (head, _) = answer_of(rig.ask(&head, noise(1001)).await).await.unwrap();
        assert_eq!((head.status, head.fault()), (413, RelayFault::TooLarge));
    }
    let (head, _) = answer_of(rig.ask(&prompt_head(), noise(1000)).await)
        .await
        .unwrap();
    assert_eq!(head.status, 200);
}

#[tokio::test]
async fn a_path_that_is_not_allowed_does_not_reach_the_frontend() {
    let rig = Rig::echoing().await;
    let head = RequestHead {
        target: "/metrics".into(),
        ..prompt_head()
    };

    let (head, _) = answer_of(rig.ask(&head, Bytes::new()).await).await.unwrap();

    assert_eq!((head.status, head.fault()), (403, RelayFault::Forbidden));
    assert_eq!(rig.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_relay_at_its_limit_is_busy() {
    let limits = ProxyLimits {
        requests: 1,
        ..ProxyLimits::default()
    };
    let (answer, chunks, _gone) = Answer::streamed();
    let rig = Rig::start(answer, Allowed::default(), limits).await;
    let first = answer_of(rig.ask(&prompt_head(), Bytes::new()).await).await;

    let (head, _) = answer_of(rig.ask(&prompt_head(), Bytes::new()).await)
        .await
        .unwrap();

    assert_eq!((head.status, head.fault()), (503, RelayFault::Busy));
    drop((first, chunks));
}

#[tokio::test]
async fn a_head_that_is_none_is_refused() {
    let rig = Rig::echoing().await;
    let (mut send, receive) = rig.open_raw().await;

    send.write(Bytes::from_static(&[0xff; 64])).await.unwrap();

    let error = answer_of(receive).await.unwrap_err();
    assert!(error.contains("reset"), "{error}");
    assert_eq!(rig.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn requests_are_counted_from_their_head_to_their_end() {
    let (rig, chunks, _gone) = Rig::streaming().await;
    let head = RequestHead {
        number: 9,
        model_id: 7,
        prompt_tokens: 1000,
        overlap_tokens: 400,
        ..prompt_head()
    };
    let (_, mut body) = answer_of(rig.ask(&head, Bytes::new()).await).await.unwrap();
    let load = || {
        let (model, load) = rig.gateway.load(rig.clock.now())[0];
        (model, load.in_flight, load.queued_tokens)
    };

    assert_eq!(load(), (ModelId(7), 1, 600));
    assert_eq!(rig.gateway.echo(&rig.edge, rig.clock.now()), 9);
    chunks
        .send(Bytes::from_static(b"data: one\n\n"))
        .await
        .unwrap();
    soon(body.frame()).await.unwrap().unwrap();
    assert_eq!(load(), (ModelId(7), 1, 0));
    drop(chunks);
    assert!(soon(body.frame()).await.is_none());

    rig.until_idle().await;
}

/// A frontend that writes as Dynamo's does: in small pieces, and without TCP_NODELAY, so that
/// the token is held back until the head is acknowledged.
async fn head_and_token(mut stream: tokio::net::TcpStream) {
    stream.set_nodelay(false).unwrap();
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut request = [0; 1024];
    while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
        stream.write_all(head).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        stream.write_all(b"5\r\ntoken\r\n0\r\n\r\n").await.unwrap();
    }
}

#[tokio::test]
async fn a_token_does_not_wait_for_a_delayed_acknowledgement() {
    let rig = Rig::raw(head_and_token).await;

    // On a connection that is kept the kernel acknowledges after 40 ms, unless told otherwise.
    let mut waits = Vec::new();
    for _ in 0..11 {
        let answer = rig.ask(&prompt_head(), noise(10)).await;
        let (_, body) = answer_of(answer).await.unwrap();
        let head_came = std::time::Instant::now();
        rest_of(body).await.unwrap();
        waits.push(head_came.elapsed());
        rig.until_idle().await;
    }

    waits.sort();
    assert!(
        waits[waits.len() / 2] < Duration::from_millis(20),
        "{waits:?}"
    );
}

#[tokio::test]
async fn a_connection_to_the_frontend_serves_one_request_after_the_other() {
    let rig = Rig::echoing().await;

    for _ in 0..5 {
        let (_, body) = answer_of(rig.ask(&prompt_head(), noise(10)).await)
            .await
            .unwrap();
        rest_of(body).await.unwrap();
        rig.until_idle().await;
    }

    assert_eq!(rig.connections.load(Ordering::SeqCst), 1);
}
