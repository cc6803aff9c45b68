use std::num::NonZeroU32;
use std::path::Path;

use kvgrid_core::block::HashFormat;
use kvgrid_core::view::{CardDigest, CardInfo};
use kvgrid_prompt::{Card, CardOptions};
use serde_json::{Value, json};

use super::super::*;
use super::clients::{body, post};
use super::fake::{Edge, Play, config, says};

pub(super) const FOX: &str =
    "the quick brown fox number 1 jumps over the lazy dog again and again and again and again";

/// An edge that has the card of the model that its sites serve.
async fn with_card(config: ApiConfig) -> Edge {
    carded(config, vec![("fra", says(200, "{}"))]).await
}

/// The same with other answers.
pub(super) async fn carded(config: ApiConfig, plays: Vec<(&str, Play)>) -> Edge {
    let edge = Edge::start(config, plays);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-chat");
    let block_size = NonZeroU32::new(16).unwrap();
    let options = CardOptions::new("tiny-chat", block_size);
    let bytes = Card::from_model_dir(&dir, options).unwrap().encode();
    let digest = Card::digest_of(&bytes);
    edge.cards.offer(digest, bytes);
    while edge.cards.get(&digest).is_none() {
        tokio::task::yield_now().await;
    }
    edge.use_card(&CardInfo {
        digest: CardDigest(digest),
        block_size,
        format: HashFormat::Standard,
        capacity_blocks: None,
        context_length: None,
        usable: true,
    });
    edge
}

pub(super) fn user(content: &str) -> Value {
    let mut body = body();
    body["messages"][0]["content"] = content.into();
    body
}

/// What a site is told of a prompt's length, and the client.
async fn told(edge: &Edge, path: &str, body: &Value) -> (u32, Option<String>) {
    let answer = edge.send(post(path, body.to_string())).await;
    assert_eq!(answer.status, 200);
    let header = answer.header("x-kvgrid-prompt-tokens");
    (edge.request().prompt_tokens, header.map(str::to_owned))
}

#[tokio::test]
async fn a_prompts_tokens_are_known_once_the_card_is() {
    let edge = with_card(config()).await;

    let told = told(&edge, "/v1/chat/completions", &user(FOX)).await;

    assert_eq!(told, (65, Some("65".into())));
}

#[tokio::test]
async fn a_large_body_is_tokenised_on_another_thread() {
    let edge = with_card(config()).await;
    let long = FOX.repeat(1000);

    let (tokens, _) = told(&edge, "/v1/chat/completions", &user(&long)).await;

    assert!(tokens > 40_000, "{tokens}");
}

#[tokio::test]
async fn a_prompt_that_is_late_is_routed_without_tokens() {
    let hasty = ApiConfig {
        prompt_deadline: Duration::ZERO,
        ..config()
    };
    let edge = with_card(hasty).await;

    // Long enough that no machine has done it at the first look.
    let told = told(&edge, "/v1/chat/completions", &user(&FOX.repeat(10_000))).await;

    assert_eq!(told, (0, None));
}

#[tokio::test]
async fn a_clients_own_ids_are_taken_as_the_prompt() {
    for (path, body) in [
        (
            "/v1/completions",
            json!({"model": "tiny-chat", "prompt": [5, 6, 7]}),
        ),
        (
            "/v1/completions",
            json!({"model": "tiny-chat", "prompt": "abc", "nvext": {"token_data": [5, 6, 7]}}),
        ),
        ("/v1/chat/completions", {
            let mut body = user("ignored");
            body["nvext"] = json!({"token_data": [5, 6, 7]});
            body
        }),
    ] {
        let edge = with_card(config()).await;

        assert_eq!(told(&edge, path, &body).await, (3, Some("3".into())));
    }
}

#[tokio::test]
async fn a_prompt_of_unknown_length_is_not_told_to_the_client() {
    let edge = with_card(config()).await;
    let mut body = user("x");
    body["messages"][0]["content"] = json!([
        {"type": "text", "text": FOX},
        {"type": "image_url", "image_url": {"url": "http://a.example/x.png"}}
    ]);

    let (_, header) = told(&edge, "/v1/chat/completions", &body).await;

    assert_eq!(header, None);
}

#[tokio::test]
async fn a_request_that_the_card_can_not_read_is_for_the_site_to_judge() {
    let edge = with_card(config()).await;

    let told = told(
        &edge,
        "/v1/chat/completions",
        &json!({"model": "tiny-chat", "messages": 7}),
    )
    .await;

    assert_eq!(told, (0, None));
}
