//! Nodes as processes of the demo's binary: how they are started, refused and ended.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

fn node(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    command.arg("node").args(arguments);
    command
}

fn config(text: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path.display().to_string())
}

fn last_words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_unknown_kind_of_node_is_a_wrong_command_line() {
    let output = node(&["router"]).output().unwrap();

    assert_eq!(output.status.code(), Some(64));
    assert!(last_words(&output).starts_with("usage: "));
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    let (_dir, path) = config("[engine]\nslotz = 3\n");

    let output = node(&["emulator", "--config", &path]).output().unwrap();

    assert_eq!(output.status.code(), Some(64));
    assert!(last_words(&output).contains("slotz"), "{output:?}");
}

#[test]
fn a_check_prints_the_configuration_as_it_is_understood() {
    let (_dir, path) = config(
        "[[link]]\nname = \"a\"\nlisten = \"127.0.0.1:0\"\ntarget = \"127.0.0.1:9\"\n\
         link.delay = \"45ms\"\n",
    );

    let output = node(&["link", "--config", &path, "--check"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("delay = \"45ms\""), "{shown}");
    assert!(shown.contains("reorder_delay = \"1ms\""), "{shown}");
}

#[tokio::test]
async fn a_node_on_a_leash_ends_with_its_owner() {
    let (dir, path) = config("");
    let ready = dir.path().join("ready.json");
    let text = format!("ready_file = {:?}\n", ready.display().to_string());
    std::fs::write(&path, text).unwrap();
    let mut child = node(&["emulator", "--config", &path])
        .env("KVGRID_NODE_LEASH", "1")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    until_exists(&ready, &mut child).await;

    drop(child.stdin.take());

    assert_eq!(child.wait().unwrap().code(), Some(1));
}

async fn until_exists(path: &Path, child: &mut std::process::Child) {
    while !path.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended at its start");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
