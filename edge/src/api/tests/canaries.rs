//! The edge's own requests.

use kvgrid_core::SiteId;
use kvgrid_core::parity::Kind;
use serde_json::Value;
use tokio::task::JoinSet;

use super::super::sites::SiteRequest;
use super::super::*;
use super::clients::post;
use super::fake::{Edge, Play, config, model, says};
use super::prompts::{FOX, carded, user};
use crate::config::CanaryTable;

const TABLE: CanaryTable = CanaryTable {
    enabled: true,
    every: Duration::from_millis(1),
    renew_after: Duration::from_secs(3600),
};

/// An edge whose sites do all the same, and its canaries, which end with the set.
async fn sending(play: fn() -> Play) -> (Edge, JoinSet<()>) {
    let plays = ["fra", "iad"].map(|site| (0..16).map(move |_| (site, play())));
    let edge = carded(config(), plays.into_iter().flatten().collect()).await;
    let mut canaries = JoinSet::new();
    canaries.spawn(edge.api.clone().run_canaries(TABLE));
    (edge, canaries)
}

async fn until_asked(edge: &Edge, requests: usize) {
    while edge.asked().len() < requests {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_canary_is_sent_twice_and_marked_and_says_nothing_of_clients() {
    let (edge, _canaries) = sending(|| says(200, r#"{"usage":{"prompt_tokens":65}}"#)).await;

    until_asked(&edge, 2).await;

    let asked = edge.requests();
    assert_eq!(asked[0].body, asked[1].body);
    assert_eq!(asked[0].headers["x-kvgrid-canary"], "1");
    assert_eq!(asked[0].headers["x-dynamo-request-priority"], "-1");
    let body: Value = serde_json::from_slice(&asked[0].body).unwrap();
    assert_eq!(
        (&body["max_tokens"], &body["stream"]),
        (&1.into(), &false.into())
    );
    let site = SiteId::new(&edge.asked()[0]).unwrap();
    let compared = edge.router.parity(|parity| {
        let mut kinds = parity.kinds(&site, model().id());
        kinds
            .find(|(kind, _)| *kind == Kind::PLAIN)
            .map(|(_, entry)| entry.tokens.compared())
    });
    assert!(
        compared.is_some_and(|compared| compared >= 1),
        "{compared:?}"
    );
}

#[tokio::test]
async fn a_site_that_is_strict_about_fields_is_asked_without_them() {
    let (edge, _canaries) = sending(|| says(400, "{}")).await;

    until_asked(&edge, 2).await;

    let asked = edge.requests();
    let has_nvext = |request: &SiteRequest| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        body.get("nvext").is_some()
    };
    assert!(has_nvext(&asked[0]));
    assert!(!has_nvext(&asked[1]));
}

#[tokio::test]
async fn ids_that_are_not_ours_differ_however_many_they_are() {
    // It says nothing of how many they are.
    const IDS: &str = r#"{"nvext":{"prompt_token_ids":[1,2]},"usage":{"prompt_tokens":null}}"#;
    let (edge, _canaries) = sending(|| says(200, IDS)).await;

    until_asked(&edge, 1).await;
    let site = SiteId::new(&edge.asked()[0]).unwrap();
    let different = || {
        edge.router.parity(|parity| {
            let mut kinds = parity.kinds(&site, model().id());
            kinds
                .next()
                .map_or(0, |(_, entry)| entry.tokens.different())
        })
    };
    while different() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_canarys_tokens_are_not_counted_as_clients() {
    let (edge, _canaries) = sending(|| says(200, r#"{"usage":{"prompt_tokens":65}}"#)).await;

    until_asked(&edge, 1).await;

    assert!(edge.requests()[0].prompt_tokens > 0);
    let counted = || {
        let page = edge.metrics();
        page.contains("kvgrid_edge_prompt_tokens_total{")
    };
    assert!(!counted());
    let body = user(FOX).to_string();
    edge.send(post("/v1/chat/completions", body)).await;
    assert!(counted());
}

#[tokio::test]
async fn canaries_that_fail_open_no_breaker() {
    let (edge, _canaries) = sending(|| Play::Unreached).await;

    // Each kind at each site once; reasoning changes nothing in this model's prompts.
    until_asked(&edge, 6).await;

    let breakers = edge.router.breakers();
    for relay in ["fra-1", "iad-1"] {
        let relay = kvgrid_core::RelayId::new(relay).unwrap();
        assert_eq!(breakers.until(&relay, model().id()), None);
    }
}
