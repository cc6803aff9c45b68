//! What OpenAI's own client sees of an edge with real Dynamo behind it.

use std::path::Path;

use kvgrid_tests::dynamo::{Dynamo, KvSource};
use kvgrid_tests::harness::MODEL;
use tokio::process::Command;

use crate::two_sites;

#[tokio::test]
async fn dynamo_sites_serve_openais_own_client_through_an_edge() {
    let name = "dynamo_sites_serve_openais_own_client_through_an_edge";
    let Some(dynamo) = Dynamo::for_test(name) else {
        return;
    };
    let grid = two_sites(&dynamo, KvSource::EngineZmq).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/openai_client.py");

    let output = Command::new(dynamo.installation().python())
        .arg(script)
        .args([grid.url(), MODEL])
        .output()
        .await
        .unwrap();

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(output.stdout, b"well\n", "{said}");
}
