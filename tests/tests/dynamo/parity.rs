//! What real sites say of prompts is what the edge expected, and operators see it.

use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use kvgrid_tests::dynamo::{Dynamo, Grid, KvSource, SiteOptions};
use kvgrid_tests::harness::{Conversation, Known, MODEL};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const WORDS: &str = "the quick brown fox jumps over the lazy dog again and again and again";

async fn one_site(dynamo: &Dynamo, source: KvSource, edge: &str) -> Grid {
    let options = SiteOptions {
        source,
        ..SiteOptions::named("fra")
    };
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    let grid = Grid::start_with(dynamo, vec![options], program, edge);
    grid.await.unwrap()
}

fn chat(number: usize, change: impl FnOnce(&mut Value)) -> Value {
    let content = format!("{number} {}", WORDS.repeat(8));
    let mut body = json!({
        "model": MODEL,
        "max_tokens": 2,
        "messages": [{"role": "user", "content": content}],
    });
    change(&mut body);
    body
}

fn offer_tools(body: &mut Value) {
    let parameters = json!({"type": "object", "properties": {"word": {"type": "string"}}});
    let function = json!({"name": "look_up", "parameters": parameters});
    body["tools"] = json!([{"type": "function", "function": function}]);
}

fn as_array(body: &mut Value) {
    let text = body["messages"][0]["content"].take();
    body["messages"][0]["content"] = json!([{"type": "text", "text": text}]);
}

/// So many answers told of this kind, and all as expected.
fn agrees(known: &Known, kind: &str, compared: u64) -> bool {
    known.parity("fra", kind).is_some_and(|parity| {
        let tokens = &parity.tokens;
        tokens.compared >= compared && tokens.different == 0 && tokens.state == "agrees"
    })
}

#[tokio::test]
async fn dynamo_usage_tells_that_prompts_and_caches_are_what_was_expected() {
    let test = "dynamo_usage_tells_that_prompts_and_caches_are_what_was_expected";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = one_site(&dynamo, KvSource::DynamoEvents, "").await;
    let path = "/v1/chat/completions";

    for number in 0..4 {
        for body in [chat(number, offer_tools), chat(number, as_array)] {
            grid.until_applied().await.unwrap();
            let answer = grid.post(path, &body).await.unwrap();
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        }
    }
    // Streamed, with usage in the last event.
    let mut conversation = Conversation::new(40, 1000).unwrap();
    for _ in 0..6 {
        grid.until_applied().await.unwrap();
        grid.turn(&mut conversation).await.unwrap();
    }

    let known = grid.known().await.unwrap();
    for (kind, compared) in [("plain", 6), ("tools", 4), ("arrays", 4)] {
        assert!(agrees(&known, kind, compared), "{kind}: {known:#?}");
    }
    let plain = known.parity("fra", "plain").unwrap();
    assert_eq!(plain.caches.len(), 1, "{plain:?}");
    assert_eq!(
        (plain.caches[0].compared, plain.caches[0].different),
        (6, 0)
    );
    assert_eq!(plain.caches[0].state, "agrees");
    let pool = &known.site("fra").unwrap().pools[0];
    let matching = pool.matching.as_ref().unwrap();
    assert!(matching.matched >= 5, "{matching:?}");
    assert_eq!(matching.warning, None);

    let is_fed = |known: &Known| {
        let facts = known
            .site("fra")
            .and_then(|site| site.pools[0].facts.clone());
        facts.is_some_and(|facts| {
            // Dynamo's plane tells no copies, and nothing again.
            facts.accepted_blocks.is_some_and(|blocks| blocks > 60)
                && facts.refused_events.is_empty()
                && (facts.copies, facts.repairs) == (None, None)
                && (facts.gaps, facts.orphans) == (Some(0), Some(0))
                && facts.last_event_age_ms.is_some()
        })
    };
    grid.until("the pool's facts are told", PATIENCE, is_fed)
        .await
        .unwrap();
}

#[tokio::test]
async fn dynamo_canaries_tell_what_clients_answers_do_not() {
    let test = "dynamo_canaries_tell_what_clients_answers_do_not";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let canary = "[canary]\nenabled = true\nevery = \"100ms\"\nrenew_after = \"1s\"\n";
    let grid = one_site(&dynamo, KvSource::EngineZmq, canary).await;

    // Three of a kind are two canaries.
    let all = |known: &Known| {
        ["plain", "tools", "arrays"]
            .iter()
            .all(|kind| agrees(known, kind, 4))
    };
    let known = grid.until("all kinds agree", PATIENCE, all).await.unwrap();

    for kind in ["plain", "tools", "arrays"] {
        let caches = &known.parity("fra", kind).unwrap().caches;
        assert!(
            caches.iter().all(|cache| cache.different == 0),
            "{kind}: {caches:?}"
        );
    }
    let matching = known.site("fra").unwrap().pools[0]
        .matching
        .clone()
        .unwrap();
    assert!(matching.matched >= 3, "{matching:?}");
    let page = grid.edge_metrics().await.unwrap();
    let told = "kvgrid_edge_canaries_total{site=\"fra\",outcome=\"ids_equal\"} ";
    assert!(page.contains(told), "{page}");
    for wrong in ["refused", "ids_differ"] {
        let outcome = format!("outcome=\"{wrong}\"");
        assert!(!page.contains(&outcome), "{page}");
    }
}
