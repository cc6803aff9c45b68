//! An emulated site as clients and relays see it.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use bytes::Bytes;
use http::{Method, StatusCode};
use kvgrid_tests::client::{Answer, Client};
use kvgrid_tests::emulator::{Emulator, EmulatorConfig, EventForm, Fault, FaultKind};
use kvgrid_tests::node::Daemon;
use serde_json::{Value, json};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

async fn emulator(change: impl FnOnce(&mut EmulatorConfig)) -> Emulator {
    let mut config = EmulatorConfig::default();
    config.engine.factor = 0.0;
    change(&mut config);
    Emulator::start(&config).await.unwrap()
}

fn url(emulator: &Emulator, path: &str) -> String {
    format!("http://{}{path}", emulator.http())
}

fn prompt(tokens: impl IntoIterator<Item = u32>) -> Value {
    json!({
        "model": "tiny-chat",
        "prompt": tokens.into_iter().collect::<Vec<_>>(),
        "max_tokens": 4,
    })
}

async fn complete(emulator: &Emulator, body: &Value) -> Answer {
    let url = url(emulator, "/v1/completions");
    Client::default().post(&url, body).await.unwrap()
}

async fn cached_tokens(emulator: &Emulator, body: &Value) -> u64 {
    let answer = complete(emulator, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json().unwrap()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

#[tokio::test]
async fn usage_says_what_was_cached() {
    let emulator = emulator(|_| {}).await;

    assert_eq!(cached_tokens(&emulator, &prompt(0..80)).await, 0);
    assert_eq!(cached_tokens(&emulator, &prompt(0..80)).await, 64);
    assert_eq!(cached_tokens(&emulator, &prompt(0..90)).await, 80);
    assert_eq!(cached_tokens(&emulator, &prompt(1..80)).await, 0);
}

#[tokio::test]
async fn a_cache_salt_keeps_prompts_apart() {
    let emulator = emulator(|_| {}).await;
    let mut salted = prompt(0..80);
    salted["cache_salt"] = json!("tenant-a");
    cached_tokens(&emulator, &prompt(0..80)).await;

    assert_eq!(cached_tokens(&emulator, &salted).await, 0);
    assert_eq!(cached_tokens(&emulator, &salted).await, 64);
}

#[tokio::test]
async fn a_stream_ends_with_usage_and_done() {
    let emulator = emulator(|_| {}).await;
    let mut body = prompt(0..20);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});

    let url = url(&emulator, "/v1/completions");
    let mut stream = Client::default().stream(&url, &body).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = stream.next().await.unwrap() {
        events.push(event);
    }

    assert_eq!(stream.headers["content-type"], "text/event-stream");
    assert_eq!(events.len(), 4 + 1 + 1 + 1, "{events:?}");
    assert_eq!(events.last().unwrap(), "[DONE]");
    let usage: Value = serde_json::from_str(&events[5]).unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], 4);
    assert_eq!(usage["choices"], json!([]));
}

#[tokio::test]
async fn a_request_id_comes_back_and_an_unknown_model_is_not_found() {
    let emulator = emulator(|_| {}).await;
    let mut body = prompt(0..20);
    body["model"] = json!("other");

    let url = url(&emulator, "/v1/completions");
    let answer = Client::default()
        .call(Method::POST, &url, &[("x-request-id", "r-1")], &body)
        .await
        .unwrap();

    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(answer.headers["x-request-id"], "r-1");
    let message = answer.json().unwrap()["error"]["message"].clone();
    assert_eq!(message, "the model other does not exist");
}

#[tokio::test]
async fn a_broken_body_is_a_bad_request() {
    let emulator = emulator(|_| {}).await;

    let answer = complete(
        &emulator,
        &json!({"model": "tiny-chat", "prompt": [[1], [2]]}),
    )
    .await;

    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
}

fn with_model(config: &mut EmulatorConfig) {
    config.model_dir = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tiny-chat").into());
}

async fn chat(emulator: &Emulator, messages: &Value) -> Value {
    let url = url(emulator, "/v1/chat/completions");
    let body = json!({
        "model": "tiny-chat",
        "messages": messages,
        "max_tokens": 33,
        "nvext": {"extra_fields": ["prompt_token_ids"]},
    });
    let answer = Client::default().post(&url, &body).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json().unwrap()
}

#[tokio::test]
async fn the_next_turn_of_a_chat_finds_the_answer_cached() {
    let emulator = emulator(with_model).await;
    let mut messages = json!([{"role": "user", "content": "the quick brown fox"}]);
    let first = chat(&emulator, &messages).await;
    let turns = messages.as_array_mut().unwrap();
    turns.push(first["choices"][0]["message"].clone());
    turns.push(json!({"role": "user", "content": "and again"}));

    let second = chat(&emulator, &messages).await;

    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let ids = first["nvext"]["prompt_token_ids"].as_array().unwrap();
    assert_eq!(prompt, ids.len() as u64);
    // The last of the answer's 33 tokens was never fed back.
    let cached = (prompt + 32) / 16 * 16;
    assert_eq!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"],
        cached
    );
}

#[tokio::test]
async fn text_and_its_ids_are_the_same_prompt() {
    let emulator = emulator(with_model).await;
    let text = "the quick brown fox jumps over the lazy dog ".repeat(20);
    let body = json!({
        "model": "tiny-chat", "prompt": text, "max_tokens": 1,
        "nvext": {"extra_fields": ["prompt_token_ids"]},
    });
    let answer = complete(&emulator, &body).await.json().unwrap();
    let ids: Vec<u32> =
        serde_json::from_value(answer["nvext"]["prompt_token_ids"].clone()).unwrap();

    let cached = cached_tokens(&emulator, &prompt(ids.iter().copied())).await;

    assert_eq!(cached, (ids.len() as u64 - 1) / 16 * 16);
}

#[tokio::test]
async fn text_for_a_site_without_a_tokenizer_is_a_bad_request() {
    let emulator = emulator(|_| {}).await;

    let answer = complete(&emulator, &json!({"model": "tiny-chat", "prompt": "hello"})).await;

    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let error = answer.json().unwrap()["error"]["message"].clone();
    assert_eq!(
        error,
        "this site has no tokenizer: send one prompt of token ids"
    );
}

async fn subscriber(emulator: &Emulator) -> SubSocket {
    let mut socket = SubSocket::new();
    let address = emulator.addresses()["publish"];
    socket.connect(&format!("tcp://{address}")).await.unwrap();
    socket.subscribe("").await.unwrap();
    socket
}

/// The next message that is no probe: a fresh subscription takes a moment to reach the
/// publisher, so the caller sends prompts until one is heard.
async fn first_message(emulator: &Emulator, socket: &mut SubSocket) -> Vec<Bytes> {
    let mut tokens = 1_000..;
    loop {
        let next = tokens.next().unwrap();
        cached_tokens(emulator, &prompt(vec![next; 16])).await;
        let patience = std::time::Duration::from_millis(100);
        if let Ok(message) = tokio::time::timeout(patience, socket.recv()).await {
            return message.unwrap().into_vec();
        }
    }
}

fn decode(batch: &[u8]) -> Value {
    rmp_serde::from_slice(batch).unwrap()
}

fn sequence(frame: &Bytes) -> u64 {
    u64::from_be_bytes(frame.as_ref().try_into().unwrap())
}

#[tokio::test]
async fn events_are_published_and_can_be_replayed() {
    let emulator = emulator(|_| {}).await;
    let mut socket = subscriber(&emulator).await;
    let first = first_message(&emulator, &mut socket).await;
    cached_tokens(&emulator, &prompt(0..32)).await;
    let stored = socket.recv().await.unwrap().into_vec();
    assert_eq!(stored.len(), 3);
    assert_eq!(sequence(&stored[1]), sequence(&first[1]) + 1);
    let event = decode(&stored[2])[1][0].clone();
    assert_eq!(event["type"], "BlockStored");
    assert_eq!(event["token_ids"], json!((0..32).collect::<Vec<_>>()));
    assert_eq!(event["block_hashes"].as_array().unwrap().len(), 2);

    let mut dealer = DealerSocket::new();
    let address = emulator.addresses()["replay"];
    dealer.connect(&format!("tcp://{address}")).await.unwrap();
    let question = vec![Bytes::new(), stored[1].clone()];
    dealer
        .send(ZmqMessage::try_from(question).unwrap())
        .await
        .unwrap();
    let replayed = dealer.recv().await.unwrap().into_vec();
    let end = dealer.recv().await.unwrap().into_vec();

    assert_eq!(replayed[1..], [stored[1].clone(), stored[2].clone()]);
    assert_eq!(end[1..], [Bytes::from_static(&[0xff; 8]), Bytes::new()]);
}

#[tokio::test]
async fn a_full_cache_removes_what_it_stored() {
    let emulator = emulator(|config| {
        config.engine.capacity_blocks = 4;
        config.events.form = EventForm::Array;
    })
    .await;
    let mut socket = subscriber(&emulator).await;
    first_message(&emulator, &mut socket).await;

    let mut kinds = Vec::new();
    while !kinds.contains(&json!("BlockRemoved")) {
        let next = u32::try_from(kinds.len()).unwrap();
        cached_tokens(&emulator, &prompt(vec![next; 33])).await;
        let message = socket.recv().await.unwrap().into_vec();
        let batch = decode(&message[2]);
        kinds.extend(
            batch[1]
                .as_array()
                .unwrap()
                .iter()
                .map(|event| event[0].clone()),
        );
    }

    assert!(kinds.contains(&json!("BlockStored")));
}

#[tokio::test]
async fn metrics_count_what_was_served() {
    let emulator = emulator(|_| {}).await;
    cached_tokens(&emulator, &prompt(0..80)).await;
    cached_tokens(&emulator, &prompt(0..80)).await;

    let page = Client::default()
        .get(&url(&emulator, "/metrics"))
        .await
        .unwrap()
        .text();

    let labels = r#"{engine="0",model_name="tiny-chat"}"#;
    for (metric, value) in [
        ("num_requests_running", 0),
        ("num_requests_waiting", 0),
        ("prefix_cache_queries_total", 160),
        ("prefix_cache_hits_total", 64),
        ("request_success_total", 2),
    ] {
        let line = format!("vllm:{metric}{labels} {value}\n");
        assert!(page.contains(&line), "no {line} in {page}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot() {
    let emulator = emulator(|config| {
        config.engine.factor = 1.0;
        config.engine.slots = 1;
    })
    .await;
    let mut long = prompt(0..20);
    long["max_tokens"] = json!(10_000);
    long["stream"] = json!(true);
    let url = url(&emulator, "/v1/completions");
    let mut stream = Client::default().stream(&url, &long).await.unwrap();
    stream.next().await.unwrap().unwrap();

    drop(stream);

    assert_eq!(cached_tokens(&emulator, &prompt(40..60)).await, 0);
}

#[tokio::test]
async fn a_site_fails_as_it_is_told() {
    let emulator = emulator(|_| {}).await;
    let client = Client::default();
    let fault_url = url(&emulator, "/emulator/fault");
    let fault = json!({"kind": {"status": 529}, "times": 1});
    let told = client
        .call(Method::PUT, &fault_url, &[], &fault)
        .await
        .unwrap();
    assert_eq!(told.status, StatusCode::OK);

    assert_eq!(
        complete(&emulator, &prompt(0..20)).await.status.as_u16(),
        529
    );
    assert_eq!(
        complete(&emulator, &prompt(0..20)).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn an_answer_breaks_off_in_the_middle_when_told() {
    let emulator = emulator(|_| {}).await;
    emulator.faults().set(Some(Fault {
        kind: FaultKind::Break(2),
        times: None,
    }));
    let mut body = prompt(0..20);
    body["stream"] = json!(true);
    let url = url(&emulator, "/v1/completions");

    let mut stream = Client::default().stream(&url, &body).await.unwrap();
    let mut events = 0;
    let broken = loop {
        match stream.next().await {
            Ok(Some(_)) => events += 1,
            Ok(None) => break false,
            Err(_) => break true,
        }
    };

    assert_eq!((events, broken), (2, true));
}
