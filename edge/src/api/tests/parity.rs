//! What answers say of prompts, and what follows for the requests after them.

use kvgrid_core::parity::{Accord, Kind, Trait};
use kvgrid_core::{ModelId, SiteId};
use serde_json::{Value, json};

use super::clients::post;
use super::fake::{EVENTS, Edge, FakeBody, Play, config, model, says};
use super::prompts::{FOX, carded, user};

/// The prompt has 65 tokens.
const SAME: &str =
    r#"{"choices":[],"usage":{"prompt_tokens":65,"prompt_tokens_details":{"cached_tokens":0}}}"#;
const OTHER: &str = r#"{"choices":[],"usage":{"prompt_tokens":67}}"#;

fn with_tools() -> Value {
    let mut body = user(FOX);
    let function = json!({"name": "f", "parameters": {"type": "object"}});
    body["tools"] = json!([{"type": "function", "function": function}]);
    body
}

/// The prompt's length as the client is told, if it is believed.
async fn told(edge: &Edge, body: &Value) -> Option<String> {
    let answer = edge
        .send(post("/v1/chat/completions", body.to_string()))
        .await;
    assert_eq!(answer.status, 200);
    answer.header("x-kvgrid-prompt-tokens").map(str::to_owned)
}

fn known(edge: &Edge, kind: Kind) -> Option<(Accord, u64)> {
    let (site, model): (SiteId, ModelId) = (SiteId::new("fra").unwrap(), model().id());
    edge.router.parity(|parity| {
        let mut kinds = parity.kinds(&site, model);
        let (_, entry) = kinds.find(|(of, _)| *of == kind)?;
        Some((entry.tokens.accord(), entry.tokens.compared()))
    })
}

#[tokio::test]
async fn a_kind_that_a_site_counts_otherwise_is_set_aside_alone_and_comes_back() {
    let answers = [OTHER, OTHER, OTHER, SAME].into_iter();
    let plays = answers.chain([SAME; 9]);
    let plays = plays.map(|text| ("fra", says(200, text))).collect();
    let edge = carded(config(), plays).await;

    for _ in 0..3 {
        assert_eq!(told(&edge, &with_tools()).await.as_deref(), Some("65"));
    }
    assert_eq!(told(&edge, &user(FOX)).await.as_deref(), Some("65"));
    for _ in 0..8 {
        assert_eq!(told(&edge, &with_tools()).await, None);
    }
    assert_eq!(told(&edge, &with_tools()).await.as_deref(), Some("65"));

    let tools = Kind::PLAIN.with(Trait::Tools);
    assert_eq!(known(&edge, tools), Some((Accord::Agrees, 12)));
    assert_eq!(known(&edge, Kind::PLAIN), Some((Accord::Unknown, 1)));
}

#[tokio::test]
async fn a_streams_last_event_tells_usage() {
    let events = FakeBody::of(&[
        Ok("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\nda"),
        Ok("ta: {\"choices\":[],\"usage\":{\"prompt_tokens\":65}}\n"),
        Ok("\ndata: [DONE]\n\n"),
    ]);
    let edge = carded(config(), vec![("fra", Play::Answer(200, EVENTS, events))]).await;

    told(&edge, &user(FOX)).await;

    assert_eq!(known(&edge, Kind::PLAIN), Some((Accord::Unknown, 1)));
}

#[tokio::test]
async fn what_is_compressed_or_refused_or_silent_tells_nothing() {
    const GZIP: &[(&str, &str)] = &[("content-encoding", "gzip")];
    for (status, headers, text) in [
        (200, GZIP, SAME),
        (400, &[][..], SAME),
        (200, &[][..], r#"{"usage":null}"#),
    ] {
        let body = FakeBody::of(&[Ok(text)]);
        let edge = carded(config(), vec![("fra", Play::Answer(status, headers, body))]).await;

        edge.send(post("/v1/chat/completions", user(FOX).to_string()))
            .await;

        assert_eq!(known(&edge, Kind::PLAIN), None, "{status} {text}");
    }
}

#[tokio::test]
async fn a_clients_own_ids_are_a_kind_of_their_own() {
    let edge = carded(config(), vec![("fra", says(200, OTHER))]).await;
    let body = json!({"model": "tiny-chat", "prompt": [5, 6, 7]});

    edge.send(post("/v1/completions", body.to_string())).await;

    let ids = Kind::PLAIN.with(Trait::Text).with(Trait::Ids);
    assert_eq!(known(&edge, ids), Some((Accord::Unknown, 1)));
}
