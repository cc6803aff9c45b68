use http_body_util::BodyExt;
use kvgrid_certs::{Accepts, CertAuthority, TrustDomain};
use kvgrid_proto::v1::Header;
use kvgrid_runtime::{Expected, Node, NodeConfig, Protocol, Tasks};
use quinn::{Connection, SendStream};

use super::*;

/// A forwarder with a connection to a relay whose part the test plays.
struct Rig {
    forwarder: Forwarder,
    relay: RelayId,
    connection: Connection,
    tasks: Tasks,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Rig {
    async fn start() -> Self {
        let grid = CertAuthority::generate(TrustDomain::new("grid.example").unwrap()).unwrap();
        let tasks = Tasks::new();
        let node = |uri: &str| {
            let credentials = grid.credentials(&uri.parse().unwrap()).unwrap();
            NodeConfig::new("127.0.0.1:0".parse().unwrap(), credentials)
        };
        let relay = node("spiffe://grid.example/site/fra/relay/fra-1")
            .serve(Protocol::Request, Accepts::Edges);
        let relay = Node::bind(relay, &tasks).unwrap();
        let edge = Node::bind(node("spiffe://grid.example/region/eu/edge/eu-1"), &tasks).unwrap();
        let id = RelayId::new("fra-1").unwrap();
        let expected = Expected::Relay(id.clone());
        let dialled = edge
            .connect(relay.local_addr(), Protocol::Request, &expected)
            .await
            .unwrap();
        let taken = relay.accept().await.unwrap();
        let links = Links::of(id.clone(), dialled.connection);
        Self {
            forwarder: Forwarder::new(links),
            relay: id,
            connection: taken.connection,
            tasks,
        }
    }

    async fn send(&self, body: Bytes) -> Result<Upstream, ForwardError> {
        let head = RequestHead {
            method: "POST".into(),
            target: "/v1/completions".into(),
            ..RequestHead::default()
        };
        self.forwarder.send(&self.relay, head, body).await
    }

    /// Takes the next request as the relay: its head, its body and the way back.
    async fn taken(&self) -> (RequestHead, StreamBody, SendStream) {
        let (send, receive) = soon(self.connection.accept_bi()).await.unwrap();
        let (head, body) = soon(read_message(receive, HEAD_LIMIT)).await.unwrap();
        (head, body, send)
    }

    /// Sends a request, and plays the relay that answers with a head.
    async fn answered(&self, head: ResponseHead) -> Result<Upstream, ForwardError> {
        let relay = async {
            let (_, body, mut send) = self.taken().await;
            body.collect().await.unwrap();
            send.write_all(&encode(&head, HEAD_LIMIT).unwrap())
                .await
                .unwrap();
            send.finish().unwrap();
        };
        tokio::join!(self.send(Bytes::from_static(b"{}")), relay).0
    }
}

/// Fails a test that would wait for what does not come; a cancel has 250 ms.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_millis(250), future)
        .await
        .expect("it did not come soon")
}

fn ok() -> ResponseHead {
    ResponseHead {
        status: 200,
        ..ResponseHead::default()
    }
}

fn with_length(length: &'static str) -> ResponseHead {
    ResponseHead {
        headers: vec![Header {
            name: "content-length".into(),
            value: length.into(),
        }],
        ..ok()
    }
}

async fn respond(send: &mut SendStream, head: &ResponseHead) {
    let head = encode(head, HEAD_LIMIT).unwrap();
    send.write_all(&head).await.unwrap();
}

#[tokio::test]
async fn a_request_arrives_whole_and_so_does_its_answer() {
    let rig = Rig::start().await;
    let sent = Bytes::from(vec![7; 2_000_000]);
    let relay = async {
        let (head, body, mut send) = rig.taken().await;
        let body = body.collect().await.unwrap().to_bytes();
        respond(&mut send, &with_length("5")).await;
        send.write_all(b"whole").await.unwrap();
        send.finish().unwrap();
        (head, body)
    };

    let (answer, (head, body)) = tokio::join!(rig.send(sent.clone()), relay);

    assert_eq!(
        (head.method.as_str(), head.body_length),
        ("POST", Some(2_000_000))
    );
    assert!(body == sent, "the body arrived changed");
    let answer = answer.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body.size_hint().exact(), Some(5));
    assert_eq!(answer.body.collect().await.unwrap().to_bytes(), "whole");
}

#[tokio::test]
async fn an_answer_flows_as_it_comes() {
    let rig = Rig::start().await;
    let (answer, (_, _, mut send)) = tokio::join!(rig.send(Bytes::new()), async {
        let mut taken = rig.taken().await;
        respond(&mut taken.2, &ok()).await;
        taken
    });
    let mut body = answer.unwrap().body;

    for chunk in ["data: one\n\n", "data: two\n\n"] {
        send.write_all(chunk.as_bytes()).await.unwrap();
        let frame = soon(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), chunk);
    }
    send.finish().unwrap();
    assert!(soon(body.frame()).await.is_none());
}

#[tokio::test]
async fn giving_up_before_the_answer_cancels_at_the_relay() {
    let rig = Rig::start().await;

    let (_, body, send) = tokio::select! {
        _ = rig.send(Bytes::from_static(b"{}")) => panic!("nobody answered"),
        taken = rig.taken() => taken,
    };

    let stopped = soon(send.stopped()).await.unwrap();
    assert!(stopped.is_some());
    // All of it had been sent, or it ends by a reset: it never looks like another, shorter one.
    if let Ok(whole) = body.collect().await {
        assert_eq!(whole.to_bytes(), "{}");
    }
}

#[tokio::test]
async fn giving_up_within_the_upload_resets_it() {
    let rig = Rig::start().await;
    // More than the relay's window takes, so that it cannot have been sent.
    let endless = Bytes::from(vec![0; 32 << 20]);

    let (_, body, send) = tokio::select! {
        _ = rig.send(endless) => panic!("nobody answered"),
        taken = rig.taken() => taken,
    };

    let error = soon(body.collect()).await.unwrap_err();
    assert!(matches!(error, StreamBodyError::Reset(_)), "{error}");
    assert!(soon(send.stopped()).await.unwrap().is_some());
}

#[tokio::test]
async fn giving_up_within_the_answer_cancels_at_the_relay() {
    let rig = Rig::start().await;
    let (answer, (_, _, mut send)) = tokio::join!(rig.send(Bytes::new()), async {
        let mut taken = rig.taken().await;
        respond(&mut taken.2, &ok()).await;
        taken
    });
    let mut body = answer.unwrap().body;
    send.write_all(b"data: one\n\n").await.unwrap();
    soon(body.frame()).await.unwrap().unwrap();

    drop(body);

    let stopped = soon(send.stopped()).await.unwrap();
    assert_eq!(stopped, Some(StreamCode::Abandoned.code()));
}

#[tokio::test]
async fn an_early_answer_does_not_wait_for_the_upload() {
    let rig = Rig::start().await;
    let endless = Bytes::from(vec![0; 32 << 20]);
    let (answer, (_, unread, mut send)) = tokio::join!(rig.send(endless), async {
        let mut taken = rig.taken().await;
        respond(
            &mut taken.2,
            &ResponseHead {
                status: 400,
                ..ok()
            },
        )
        .await;
        taken
    });
    let answer = answer.unwrap();
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);

    // A relay that does not want the rest says so, and its answer still comes whole.
    unread.stop(StreamCode::Refused);
    send.write_all(b"bad").await.unwrap();
    send.finish().unwrap();

    assert_eq!(soon(answer.body.collect()).await.unwrap().to_bytes(), "bad");
}

#[tokio::test]
async fn the_upload_goes_on_while_the_answer_is_read() {
    let rig = Rig::start().await;
    let large = Bytes::from(vec![0; 32 << 20]);
    let relay = async {
        let (_, body, mut send) = rig.taken().await;
        respond(&mut send, &ok()).await;
        let length = body.collect().await.unwrap().to_bytes().len();
        send.finish().unwrap();
        length
    };
    let edge = async { rig.send(large).await.unwrap().body.collect().await.unwrap() };

    let (_, length) = tokio::join!(edge, relay);

    assert_eq!(length, 32 << 20);
}

#[tokio::test]
async fn an_answer_that_is_reset_or_short_is_an_error() {
    let rig = Rig::start().await;
    for finish in [false, true] {
        let (answer, (_, _, mut send)) = tokio::join!(rig.send(Bytes::new()), async {
            let mut taken = rig.taken().await;
            respond(&mut taken.2, &with_length("7")).await;
            taken
        });
        let mut body = answer.unwrap().body;
        send.write_all(b"one").await.unwrap();
        soon(body.frame()).await.unwrap().unwrap();

        match finish {
            true => send.finish().unwrap(),
            false => send.reset(StreamCode::Broken.code()).unwrap(),
        }

        let error = soon(body.frame()).await.unwrap().unwrap_err();
        match finish {
            true => assert!(matches!(error, StreamBodyError::Short(4)), "{error}"),
            false => assert!(matches!(error, StreamBodyError::Reset(_)), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_lost_connection_is_an_error_before_and_within_the_answer() {
    let rig = Rig::start().await;
    let (answer, _taken) = tokio::join!(rig.send(Bytes::new()), async {
        let mut taken = rig.taken().await;
        respond(&mut taken.2, &ok()).await;
        taken
    });
    let mut body = answer.unwrap().body;
    let (waiting, ()) = tokio::join!(rig.send(Bytes::new()), async {
        rig.taken().await;
        rig.connection.close(0_u32.into(), b"");
    });

    let waiting = waiting.unwrap_err();
    assert!(matches!(waiting, ForwardError::Broken(_)), "{waiting}");
    assert!(!waiting.never_ran());
    let within = soon(body.frame()).await.unwrap().unwrap_err();
    assert!(matches!(within, StreamBodyError::Lost(_)), "{within}");
    let after = rig.send(Bytes::new()).await.unwrap_err();
    assert!(matches!(after, ForwardError::NotSent(_)), "{after}");
    assert!(after.never_ran());
}

#[tokio::test]
async fn a_relays_fault_says_whether_the_request_may_have_run() {
    let rig = Rig::start().await;

    for (fault, never_ran) in [
        (RelayFault::Unreached as i32, true),
        (RelayFault::Busy as i32, true),
        (RelayFault::Forbidden as i32, true),
        (RelayFault::TooLarge as i32, true),
        (RelayFault::Broken as i32, false),
        (99, false),
    ] {
        let head = ResponseHead {
            status: 502,
            fault,
            ..ResponseHead::default()
        };
        let error = rig.answered(head).await.unwrap_err();
        assert_eq!(error.never_ran(), never_ran, "{error}");
    }
}

#[tokio::test]
async fn an_answer_that_is_none_is_an_error() {
    let rig = Rig::start().await;

    for head in [
        ResponseHead { status: 0, ..ok() },
        ResponseHead {
            status: 70_000,
            ..ok()
        },
        ResponseHead {
            headers: vec![Header {
                name: "a b".into(),
                value: Bytes::new(),
            }],
            ..ok()
        },
    ] {
        let error = rig.answered(head).await.unwrap_err();
        assert!(matches!(error, ForwardError::Protocol(_)), "{error}");
    }
}

#[tokio::test]
async fn a_relay_without_connection_is_passed_over_at_once() {
    let rig = Rig::start().await;
    let other = RelayId::new("iad-1").unwrap();

    let error = rig
        .forwarder
        .send(&other, RequestHead::default(), Bytes::new())
        .await
        .unwrap_err();

    assert!(matches!(error, ForwardError::NoConnection), "{error}");
}

#[tokio::test]
async fn a_relay_that_opens_no_more_streams_is_passed_over_soon() {
    let rig = Rig::start().await;
    let mut open = Vec::new();

    let error = loop {
        let sending = Box::pin(rig.send(Bytes::new()));
        match futures_util::future::select(sending, Box::pin(rig.taken())).await {
            futures_util::future::Either::Left((sent, _)) => break sent.unwrap_err(),
            futures_util::future::Either::Right((taken, sending)) => open.push((taken, sending)),
        }
    };

    assert!(matches!(error, ForwardError::NoStream), "{error}");
    assert!(open.len() >= 256, "{}", open.len());
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_its_own_stream_and_no_other() {
    let rig = Rig::start().await;
    let (slow, (_, _, mut send)) = tokio::join!(rig.send(Bytes::new()), async {
        let mut taken = rig.taken().await;
        respond(&mut taken.2, &ok()).await;
        taken
    });
    let slow = slow.unwrap();

    let mut written = 0;
    let full = async {
        loop {
            written += send.write(&[0; 4096]).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_millis(200), full)
        .await
        .expect_err("it goes on until it is full");

    assert!(written > 0 && written <= 64 * 1024, "{written}");
    rig.answered(ok()).await.unwrap();
    drop(slow);
}
