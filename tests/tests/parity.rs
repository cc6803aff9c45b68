//! Grids of real processes whose sites make other tokens of some prompts than their edge.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use http::StatusCode;
use kvgrid_tests::emulator::{Fault, FaultKind};
use kvgrid_tests::harness::{Conversation, Grid, GridPlan, Known, MODEL};
use serde_json::{Value, json};

async fn start(plan: GridPlan) -> Grid {
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    Grid::start_alone(plan, program).await.unwrap()
}

fn with_tools(number: usize) -> Value {
    let function = json!({"name": "look_up", "parameters": {"type": "object"}});
    let content = format!("{number} {}", "the lazy dog ".repeat(40));
    json!({
        "model": MODEL,
        "max_tokens": 2,
        "messages": [{"role": "user", "content": content}],
        "tools": [{"type": "function", "function": function}],
    })
}

/// Asks the edge; gives the prompt's length as it is told, which it is if it is believed.
async fn ask(grid: &Grid, body: &Value) -> Option<String> {
    let url = format!("{}/v1/chat/completions", grid.url("eu-1").unwrap());
    let answer = grid.client().post(&url, body).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let told = answer.headers.get("x-kvgrid-prompt-tokens")?;
    Some(told.to_str().unwrap().to_owned())
}

fn set_aside(known: &Known, kind: &str) -> Option<bool> {
    Some(known.parity("fra", kind)?.set_aside)
}

#[tokio::test]
async fn a_site_with_another_template_for_tools_loses_their_tokens_until_it_has_ours() {
    let plan = GridPlan::default()
        .site("fra", "eu")
        .edge("eu-1", "eu", &[("fra", 4)]);
    let grid = start(plan).await;
    let mut talk = Conversation::new(1, 500).unwrap();
    let fault = Fault {
        kind: FaultKind::ToolTokens(2),
        times: None,
    };
    grid.set_fault("fra", Some(fault)).await.unwrap();

    for number in 0..3 {
        assert!(ask(&grid, &with_tools(number)).await.is_some());
        grid.turn("eu-1", &mut talk).await.unwrap();
    }
    assert_eq!(ask(&grid, &with_tools(3)).await, None);
    let known = grid.known("eu-1").await.unwrap();
    assert_eq!(set_aside(&known, "tools"), Some(true), "{known:#?}");
    assert_eq!(set_aside(&known, "plain"), Some(false));
    grid.until_applied("fra").await.unwrap();
    let plain = grid.turn("eu-1", &mut talk).await.unwrap();
    assert!(plain.overlap_tokens > 500, "{plain:?}");

    grid.set_fault("fra", None).await.unwrap();
    for number in 0..8 {
        assert_eq!(ask(&grid, &with_tools(number)).await, None);
    }
    assert!(ask(&grid, &with_tools(8)).await.is_some());
    let known = grid.known("eu-1").await.unwrap();
    assert_eq!(set_aside(&known, "tools"), Some(false));
    grid.stop().await.unwrap();
}

/// What is wrong with the site's pool, as the edge says.
fn warning(known: &Known) -> Option<String> {
    let pool = &known.site("fra")?.pools[0];
    pool.matching.as_ref()?.warning.clone()
}

#[tokio::test]
async fn a_pool_that_never_matches_is_warned_of_with_what_is_wrong() {
    let plan = GridPlan::default()
        .site("fra", "eu")
        .mistaken(32.try_into().unwrap())
        .edge("eu-1", "eu", &[("fra", 4)]);
    let grid = start(plan).await;
    let mut talk = Conversation::new(2, 500).unwrap();
    let begun = Instant::now();

    let warned = loop {
        let turn = grid.turn("eu-1", &mut talk).await.unwrap();
        if let Some(warning) = warning(&grid.known("eu-1").await.unwrap()) {
            break warning;
        }
        assert!(begun.elapsed() < Duration::from_secs(90), "{turn:?}");
    };

    assert!(warned.contains("another size than 32 tokens"), "{warned}");
    let known = grid.known("eu-1").await.unwrap();
    let facts = known.site("fra").unwrap().pools[0].facts.clone().unwrap();
    assert_eq!(facts.accepted_blocks, Some(0));
    assert!(facts.refused_events["block_size"] >= 20, "{facts:?}");
    let url = format!("{}/metrics", grid.admin_url("eu-1").unwrap());
    let page = grid.client().get(&url).await.unwrap().text();
    assert!(
        page.contains("kvgrid_edge_pool_unmatched{site=\"fra\""),
        "{page}"
    );
    grid.stop().await.unwrap();
}
