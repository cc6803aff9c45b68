use std::fmt::Write as _;

use http::{Method, Request};
use http_body_util::Full;
use tokio::io::AsyncWriteExt;

use super::super::*;
use super::clients::{body, chat, post, raw, read_until};
use super::fake::{Edge, FakeBody, JSON, Play, config, says};

#[tokio::test]
async fn a_body_reaches_the_site_unchanged_to_the_byte() {
    // Fields nobody knows, odd spacing, odd escapes and numbers that a parser would respell.
    let mut text = String::from(
        "{ \"model\" :\t\"tiny-chat\",\r\n\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\\u0068i \\/ é\"}]}]",
    );
    for field in 0..65 {
        write!(
            text,
            ",  \"field_{field}\": [1.50e+3, {{\"n\": 12345678901234567890123}}]"
        )
        .unwrap();
    }
    text.push_str("}\n\n");
    let edge = Edge::with(vec![("fra", says(200, "{}"))]);
    let request = post("/v1/chat/completions?a=1&b=%20", text.clone());

    assert_eq!(edge.send(request).await.status, 200);

    let seen = edge.request();
    assert_eq!(seen.body, text);
    assert_eq!(seen.method, Method::POST);
    assert_eq!(seen.target, "/v1/chat/completions?a=1&b=%20");
}

#[tokio::test]
async fn headers_pass_as_the_table_says() {
    let site: &[(&str, &str)] = &[
        ("content-type", "application/json"),
        ("x-kvgrid-site", "forged"),
        ("x-request-id", "the site's"),
        ("x-vendor", "kept"),
        ("connection", "keep-alive"),
    ];
    let edge = Edge::with(vec![(
        "fra",
        Play::Answer(200, site, FakeBody::of(&[Ok("{}")])),
    )]);
    let mut request = chat();
    for (name, value) in [
        ("authorization", "Bearer k"),
        ("traceparent", "00-a-b-01"),
        ("x-request-id", "mine"),
        ("x-kvgrid-site", "forged"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }

    let answer = edge.send(request).await;

    let seen = edge.request().headers;
    assert_eq!(seen["authorization"], "Bearer k");
    assert_eq!(seen["traceparent"], "00-a-b-01");
    assert_eq!(seen["x-request-id"], "mine");
    assert!(!seen.contains_key("x-kvgrid-site"));
    assert!(!seen.contains_key("host"));
    assert_eq!(answer.header("x-request-id"), Some("mine"));
    assert_eq!(answer.header("x-kvgrid-site"), Some("fra"));
    let decision = answer.header("x-kvgrid-decision").unwrap();
    assert!(decision.starts_with("fra via "), "{decision}");
    assert_eq!(answer.header("x-vendor"), Some("kept"));
}

#[tokio::test]
async fn a_request_without_a_sound_id_gets_one() {
    let edge = Edge::with(vec![("fra", says(200, "{}")), ("fra", says(200, "{}"))]);
    let mut overlong = chat();
    let id = "x".repeat(200).parse().unwrap();
    overlong.headers_mut().insert("x-request-id", id);

    for request in [chat(), overlong] {
        let answer = edge.send(request).await;

        assert_eq!(answer.header("x-request-id").unwrap().len(), 32);
    }
    let error = edge.get("/nowhere").await;
    assert_eq!(error.header("x-request-id").unwrap().len(), 32);
}

#[tokio::test]
async fn what_the_edge_knows_is_told_only_where_it_is_allowed() {
    let quiet = ApiConfig {
        explain: false,
        ..config()
    };
    let edge = Edge::start(quiet, vec![("fra", says(200, "{}"))]);

    let answer = edge.send(chat()).await;

    let own = |name: &&http::HeaderName| name.as_str().starts_with("x-kvgrid-");
    assert_eq!(answer.headers.keys().find(own), None);
}

#[tokio::test]
async fn a_body_that_is_no_request_is_refused_with_the_reason() {
    let edge = Edge::with(vec![]);
    for (text, part) in [
        ("", "EOF"),
        ("{\"model\": \"m\"", "EOF"),
        ("[1]", "invalid type"),
        ("{\"model\": 7}", "invalid type: integer `7`"),
        ("{\"messages\": []}", "model"),
        ("{\"model\": null}", "model"),
        ("{\"model\": \"\"}", "model"),
        ("{\"model\": \"a\\u0000b\"}", "not allowed in a model name"),
        ("{\"model\": \"m\", \"x\": \u{1}}", "line 1 column"),
    ] {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let answer = edge.send(post(path, text.to_owned())).await;

            assert_eq!(answer.status, 400, "{text}");
            let error = &answer.json()["error"];
            assert_eq!(error["type"], "invalid_request_error");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(part), "{message}");
        }
    }
    let invalid = edge
        .send(post("/v1/completions", b"{\"model\": \"\xff\"}".to_vec()))
        .await;
    assert_eq!(invalid.status, 400);
}

#[tokio::test]
async fn a_body_nested_deeply_is_skipped_without_harm() {
    let edge = Edge::with(vec![("fra", says(200, "{}"))]);
    let deep = [&"[".repeat(200_000), "1", &"]".repeat(200_000)].concat();
    let text = format!("{{\"model\": \"tiny-chat\", \"x\": {deep}}}");

    let answer = edge.send(post("/v1/chat/completions", text)).await;

    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_however_it_is_announced() {
    let small = ApiConfig {
        body_bytes: 1000,
        ..config()
    };
    let edge = Edge::start(small, vec![]);

    let announced = edge.send(post("/v1/completions", vec![b' '; 1001])).await;
    assert_eq!(announced.status, 413);
    assert_eq!(announced.json()["error"]["code"], "request_too_large");

    let chunk = format!("3e9\r\n{}\r\n0\r\n\r\n", " ".repeat(1001));
    let head = "POST /v1/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut client = raw(edge.address, format!("{head}{chunk}").as_bytes()).await;
    let answer = read_until(&mut client, "request_too_large").await;
    assert!(answer.starts_with("HTTP/1.1 413 "));
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let hasty = ApiConfig {
        body_timeout: Duration::from_millis(20),
        ..config()
    };
    let edge = Edge::start(hasty, vec![]);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 100\r\n\r\n{";

    let mut client = raw(edge.address, head.as_bytes()).await;

    let answer = read_until(&mut client, "request_timeout").await;
    assert!(answer.starts_with("HTTP/1.1 408 "));
}

#[tokio::test]
async fn a_slow_client_gets_its_answer() {
    let edge = Edge::with(vec![("fra", says(200, "{\"fine\": 1}"))]);
    let body = body().to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );

    let mut client = raw(edge.address, &[]).await;
    for byte in head.bytes().chain(body.bytes()) {
        client.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }

    read_until(&mut client, "fine").await;
    assert_eq!(edge.request().body, body);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told_in_json() {
    let edge = Edge::with(vec![]);

    let unknown = edge.get("/v1/engines").await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["error"]["code"], "unknown_url");

    let wrong = edge.get("/v1/chat/completions").await;
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.header("allow"), Some("POST"));

    let wrong = edge.send(post("/v1/models", "")).await;
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.json()["error"]["code"], "method_not_allowed");
}

#[tokio::test]
async fn models_are_listed_once_though_several_sites_serve_them() {
    let edge = Edge::with(vec![]);

    let list = edge.get("/v1/models").await;

    assert_eq!(list.status, 200);
    let list = list.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    assert_eq!(list["data"][0]["id"], "tiny-chat");
    assert_eq!(list["data"][0]["object"], "model");
    assert!(list["data"][0]["created"].is_u64());
}

#[tokio::test]
async fn health_is_told_on_the_clients_port() {
    let edge = Edge::with(vec![]);

    assert_eq!(edge.get("/livez").await.status, 200);
    assert_eq!(edge.get("/readyz").await.status, 200);
    let head = Request::builder().method(Method::HEAD).uri("/readyz");
    let answer = edge.send(head.body(Full::default()).unwrap()).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let answer = || Play::Answer(200, JSON, FakeBody::of(&[Ok("{\"end\": 1}")]));
    let edge = Edge::with(vec![("fra", answer()), ("fra", answer())]);

    let mut client = raw(edge.address, &super::clients::raw_chat()).await;
    read_until(&mut client, "0\r\n\r\n").await;
    client.write_all(&super::clients::raw_chat()).await.unwrap();
    read_until(&mut client, "end").await;

    assert_eq!(edge.asked(), ["fra", "fra"]);
}
