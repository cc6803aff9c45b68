use super::super::*;
use super::clients::{body, chat, post};
use super::fake::{Edge, FakeBody, JSON, Play, config, says};

const FINE: &str = r#"{"choices": []}"#;

#[tokio::test]
async fn a_site_that_fails_before_its_first_byte_is_passed_over() {
    let failures = || {
        let reset = FakeBody::of(&[Err("reset")]);
        [
            Play::Unreached,
            Play::Answer(200, JSON, reset),
            says(502, "x"),
            says(503, "x"),
            says(504, "x"),
            says(529, "x"),
            says(404, "no such model"),
        ]
    };
    for (index, failure) in failures().into_iter().enumerate() {
        let edge = Edge::with(vec![("fra", failure), ("iad", says(200, FINE))]);

        let answer = edge.send(chat()).await;

        assert_eq!(answer.status, 200, "failure {index}");
        assert_eq!(answer.body, FINE);
        assert_eq!(answer.header("x-kvgrid-site"), Some("iad"));
        assert_eq!(edge.asked(), ["fra", "iad"]);
    }
}

#[tokio::test]
async fn what_one_relay_can_not_take_another_of_its_site_may() {
    for failure in [Play::Busy, Play::Unreached, says(503, "x")] {
        let edge = Edge::with(vec![("fra", failure), ("fra", says(200, FINE))]);
        edge.use_relays(2);

        assert_eq!(edge.send(chat()).await.status, 200);
        assert_eq!(edge.asked(), ["fra", "fra"]);
    }
    for failure in [Play::TooLarge, says(529, "x"), says(404, "x")] {
        let edge = Edge::with(vec![("fra", failure), ("iad", says(200, FINE))]);
        edge.use_relays(2);

        assert_eq!(edge.send(chat()).await.status, 200);
        assert_eq!(edge.asked(), ["fra", "iad"]);
    }
}

#[tokio::test]
async fn each_site_is_asked_once_and_then_the_client_is_told_to_come_back() {
    let edge = Edge::with(vec![("fra", says(502, "x")), ("iad", Play::Unreached)]);

    let answer = edge.send(chat()).await;

    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "no_site_available");
    assert_eq!(error["type"], "server_error");
    assert_eq!(edge.asked(), ["fra", "iad"]);
}

#[tokio::test]
async fn when_all_sites_are_busy_the_client_gets_the_last_ones_own_words() {
    let both = vec![
        ("fra", says(529, "fra is full")),
        ("iad", says(503, "later")),
    ];
    let first = vec![("fra", says(529, "fra is full")), ("iad", Play::Unreached)];
    for (plays, status, words) in [(both, 503, "later"), (first, 529, "fra is full")] {
        let edge = Edge::with(plays);

        let answer = edge.send(chat()).await;

        assert_eq!(answer.status, status);
        assert_eq!(answer.body, words);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(edge.asked(), ["fra", "iad"]);
    }
}

#[tokio::test]
async fn no_more_sites_are_asked_than_allowed() {
    let one = ApiConfig {
        sites: 1,
        ..config()
    };
    let edge = Edge::start(one, vec![("fra", says(503, "x")), ("iad", says(200, FINE))]);

    assert_eq!(edge.send(chat()).await.status, 503);
    assert_eq!(edge.asked(), ["fra"]);
}

#[tokio::test]
async fn a_model_that_every_site_denies_does_not_exist() {
    let edge = Edge::with(vec![("fra", says(404, "x")), ("iad", says(404, "x"))]);

    let answer = edge.send(chat()).await;

    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn a_request_too_large_for_every_site_is_too_large() {
    let edge = Edge::with(vec![("fra", Play::TooLarge), ("iad", Play::TooLarge)]);
    assert_eq!(edge.send(chat()).await.status, 413);

    let edge = Edge::with(vec![("fra", Play::TooLarge), ("iad", says(503, "x"))]);
    assert_eq!(edge.send(chat()).await.status, 503);
}

#[tokio::test]
async fn what_a_site_says_of_the_request_is_for_the_client() {
    for status in [400, 401, 422, 429, 500] {
        let edge = Edge::with(vec![("fra", says(status, "the site's words"))]);

        let answer = edge.send(chat()).await;

        assert_eq!(answer.status, status);
        assert_eq!(answer.body, "the site's words");
        assert_eq!(edge.asked(), ["fra"]);
    }
}

#[tokio::test]
async fn an_answer_without_a_body_is_an_answer() {
    let edge = Edge::with(vec![("fra", Play::Answer(200, JSON, FakeBody::of(&[])))]);

    let answer = edge.send(chat()).await;

    assert_eq!(answer.status, 200);
    assert!(answer.body.is_empty());
}

#[tokio::test]
async fn a_site_that_does_not_answer_in_time_is_not_replaced() {
    let hasty = ApiConfig {
        answer_timeout: Duration::from_millis(20),
        ..config()
    };
    let edge = Edge::start(hasty, vec![("fra", Play::Silent), ("iad", says(200, FINE))]);

    let answer = edge.send(chat()).await;

    assert_eq!(answer.status, 504);
    assert_eq!(answer.json()["error"]["code"], "site_timeout");
    assert_eq!(edge.asked(), ["fra"]);
    edge.given_up().await;
}

#[tokio::test]
async fn a_panic_is_an_answer_and_the_edge_goes_on() {
    let edge = Edge::with(vec![("fra", Play::Panic), ("fra", says(200, FINE))]);

    let answer = edge.send(chat()).await;
    assert_eq!(answer.status, 500);
    assert!(answer.json()["error"]["message"].is_string());
    assert!(answer.header("x-request-id").is_some());

    assert_eq!(edge.send(chat()).await.status, 200);
}

#[tokio::test]
async fn an_edge_at_its_limit_says_so_and_recovers() {
    let narrow = ApiConfig {
        requests: 1,
        ..config()
    };
    let (open, pieces) = FakeBody::fed();
    let plays = vec![
        ("fra", Play::Answer(200, JSON, open)),
        ("fra", says(200, FINE)),
    ];
    let edge = Edge::start(narrow, plays);
    pieces.send(Ok(Bytes::from_static(b"begun"))).unwrap();
    let first = edge.begin(chat()).await;

    let second = edge.send(chat()).await;
    assert_eq!(second.status, 503);
    assert_eq!(second.json()["error"]["code"], "overloaded");
    assert_eq!(second.header("retry-after"), Some("1"));

    drop(pieces);
    http_body_util::BodyExt::collect(first).await.unwrap();
    // The place is free once the server has seen the end of its own answer.
    while edge.send(chat()).await.status == 503 {}
    assert_eq!(edge.asked(), ["fra", "fra"]);
}

#[tokio::test]
async fn a_model_that_no_site_serves_is_refused_before_any_is_asked() {
    let edge = Edge::with(vec![]);
    let mut body = body();
    body["model"] = "other".into();

    let answer = edge
        .send(post("/v1/chat/completions", body.to_string()))
        .await;

    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["param"], "model");
    assert!(edge.asked().is_empty());
}
