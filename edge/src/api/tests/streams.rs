use http_body_util::BodyExt;

use super::super::*;
use super::clients::{chat, raw, raw_chat, read_until};
use super::fake::{EVENTS, Edge, FakeBody, JSON, Play};

fn piece(text: &'static str) -> Result<Bytes, &'static str> {
    Ok(Bytes::from_static(text.as_bytes()))
}

#[tokio::test]
async fn each_event_reaches_the_client_before_the_next_one_is_there() {
    let (body, pieces) = FakeBody::fed();
    let edge = Edge::with(vec![("fra", Play::Answer(200, EVENTS, body))]);
    pieces.send(piece("data: one\n\n")).unwrap();

    let answer = edge.begin(chat()).await;
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    assert_eq!(answer.headers()["cache-control"], "no-cache");
    let mut events = answer.into_body();

    let mut next = async || {
        let frame = events.frame().await.unwrap().unwrap();
        frame.into_data().unwrap()
    };
    assert_eq!(next().await, "data: one\n\n");
    pieces.send(piece("data: two\n\n")).unwrap();
    assert_eq!(next().await, "data: two\n\n");
    drop(pieces);
    assert!(events.frame().await.is_none());
}

/// All that a client sees of a stream of these pieces.
async fn seen(pieces: &[Result<&'static str, &'static str>]) -> (String, Edge) {
    let body = FakeBody::of(pieces);
    let edge = Edge::with(vec![("fra", Play::Answer(200, EVENTS, body))]);
    let answer = edge.send(chat()).await;
    assert_eq!(answer.status, 200);
    (String::from_utf8(answer.body.to_vec()).unwrap(), edge)
}

#[tokio::test]
async fn a_stream_passes_byte_for_byte() {
    let (text, _edge) = seen(&[
        Ok("data: {\"a\": \"é\"}\r\n"),
        Ok("\r\n: a comment\n\nevent: x\ndata: y\n\nda"),
        Ok("ta: [DONE]\n\nno newline at the end"),
    ])
    .await;

    assert_eq!(
        text,
        "data: {\"a\": \"é\"}\r\n\r\n: a comment\n\nevent: x\ndata: y\n\ndata: [DONE]\n\nno newline at the end"
    );
}

#[tokio::test]
async fn a_site_that_dies_within_a_stream_leaves_one_error_event() {
    for cut in ["", "data: {\"choi", "data: half\n"] {
        let (text, edge) = seen(&[Ok("data: ONE\n\n"), Ok(cut), Err("reset")]).await;

        let events: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 2, "{text:?}");
        assert_eq!(events[0], "data: ONE");
        let error = events[1].strip_prefix("data: ").unwrap();
        let error: serde_json::Value = serde_json::from_str(error).unwrap();
        assert_eq!(error["error"]["code"], "site_failed");
        assert_eq!(edge.asked(), ["fra"]);
    }
}

#[tokio::test]
async fn a_stream_that_was_over_ends_without_an_error() {
    let (text, _edge) = seen(&[Ok("data: x\n\ndata: [DONE]\n\n"), Err("reset")]).await;

    assert_eq!(text, "data: x\n\ndata: [DONE]\n\n");
}

#[tokio::test]
async fn an_answer_that_is_no_stream_is_cut_off_with_its_site() {
    let (body, pieces) = FakeBody::fed();
    let edge = Edge::with(vec![("fra", Play::Answer(200, JSON, body))]);
    pieces.send(piece("{\"half\": ")).unwrap();

    let mut answer = edge.begin(chat()).await.into_body();
    assert!(answer.frame().await.unwrap().is_ok());
    pieces.send(Err("reset")).unwrap();

    assert!(answer.frame().await.unwrap().is_err());
    assert_eq!(edge.asked(), ["fra"]);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_byte_takes_its_request_along() {
    let edge = Edge::with(vec![("fra", Play::Silent)]);
    let client = raw(edge.address, &raw_chat()).await;
    edge.reached().await;

    drop(client);

    edge.given_up().await;
    assert_eq!(edge.asked(), ["fra"]);
}

#[tokio::test]
async fn a_client_that_leaves_within_a_stream_takes_its_request_along() {
    let (body, pieces) = FakeBody::fed();
    let edge = Edge::with(vec![("fra", Play::Answer(200, EVENTS, body))]);
    pieces.send(piece("data: one\n\n")).unwrap();
    let mut client = raw(edge.address, &raw_chat()).await;
    read_until(&mut client, "data: one").await;

    drop(client);

    edge.given_up().await;
    assert!(pieces.is_closed());
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_its_own_stream_only() {
    let (slow, pieces) = FakeBody::fed();
    let (quick, others) = FakeBody::fed();
    let plays = vec![
        ("fra", Play::Answer(200, EVENTS, slow)),
        ("fra", Play::Answer(200, EVENTS, quick)),
    ];
    let edge = Edge::with(plays);
    let event = Bytes::from([b"data: ".as_slice(), &[b'x'; 60_000], b"\n\n"].concat());
    let total = 400;
    for _ in 0..total {
        pieces.send(Ok(event.clone())).unwrap();
    }
    let client = raw(edge.address, &raw_chat()).await;
    edge.reached().await;

    others.send(piece("data: quick\n\n")).unwrap();
    let answer = edge.begin(chat()).await;
    let first = answer.into_body().frame().await.unwrap().unwrap();

    assert_eq!(first.into_data().unwrap(), "data: quick\n\n");
    drop(client);
    edge.given_up().await;
}
