//! The binary's promises: exit codes, messages, and what it leaves on disk.
#![allow(
    clippy::unwrap_used,
    reason = "the switch for tests does not reach helpers here"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn certs(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvgrid-certs"))
        .args(arguments)
        .current_dir(dir)
        .output()
        .unwrap()
}

fn succeeds(dir: &Path, arguments: &[&str]) -> String {
    let output = certs(dir, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn fails(dir: &Path, code: i32, arguments: &[&str]) -> String {
    let output = certs(dir, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

const INIT: [&str; 4] = ["init", "c", "--trust-domain", "grid.example"];

#[test]
fn a_grid_is_made_with_three_commands() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();

    succeeds(dir, &INIT);
    let relay = "issue c relay --site fra --region eu --label country=de --id fra-1";
    succeeds(dir, &relay.split(' ').collect::<Vec<_>>());
    succeeds(
        dir,
        &"issue c edge --region eu --id eu-1 --days 7"
            .split(' ')
            .collect::<Vec<_>>(),
    );

    let mut names: Vec<_> = fs::read_dir(dir.join("c"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "ca-key.pem",
            "ca.pem",
            "eu-1-key.pem",
            "eu-1.pem",
            "fra-1-key.pem",
            "fra-1.pem",
            "grid.key"
        ]
    );
    for name in ["ca-key.pem", "eu-1-key.pem", "fra-1-key.pem", "grid.key"] {
        let mode = fs::metadata(dir.join("c").join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let shown = succeeds(dir, &["inspect", "c/fra-1.pem"]);
    let uri = "uri:        spiffe://grid.example/country/de/region/eu/site/fra/relay/fra-1\n";
    assert!(shown.contains(uri), "{shown}");
}

#[test]
fn a_second_init_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    succeeds(dir.path(), &INIT);
    let key = dir.path().join("c/grid.key");
    let before = fs::read(&key).unwrap();

    let message = fails(dir.path(), 1, &INIT);

    assert_eq!(
        message,
        "kvgrid-certs: c/ca-key.pem exists; --force replaces it\n"
    );
    assert_eq!(fs::read(&key).unwrap(), before);
}

#[test]
fn a_second_leaf_takes_force() {
    let dir = tempfile::tempdir().unwrap();
    succeeds(dir.path(), &INIT);
    let issue = ["issue", "c", "edge", "--region", "eu", "--id", "eu-1"];
    succeeds(dir.path(), &issue);
    let before = fs::read(dir.path().join("c/eu-1.pem")).unwrap();

    fails(dir.path(), 1, &issue);
    assert_eq!(fs::read(dir.path().join("c/eu-1.pem")).unwrap(), before);

    succeeds(dir.path(), &[&issue[..], &["--force"]].concat());
    assert_ne!(fs::read(dir.path().join("c/eu-1.pem")).unwrap(), before);
}

#[test]
fn a_wrong_command_line_exits_64() {
    let dir = tempfile::tempdir().unwrap();

    for arguments in [
        &[][..],
        &["init", "c"],
        &["init", "c", "--trust-domain", "Grid Example"],
        &["issue", "c", "relay", "--id", "fra-1"],
        &["issue", "c", "edge", "--region", "eu", "--id", "eu/1"],
        &[
            "issue", "c", "edge", "--region", "eu", "--id", "e", "--days", "0",
        ],
        &[
            "issue", "c", "edge", "--region", "eu", "--id", "e", "--label", "country",
        ],
    ] {
        fails(dir.path(), 64, arguments);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_authority_is_named() {
    let dir = tempfile::tempdir().unwrap();

    let message = fails(
        dir.path(),
        1,
        &["issue", "c", "edge", "--region", "eu", "--id", "eu-1"],
    );

    assert!(
        message.starts_with("kvgrid-certs: c/ca.pem cannot be read: "),
        "{message}"
    );
}

#[test]
fn a_label_that_says_the_role_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    succeeds(dir.path(), &INIT);

    let issue = ["issue", "c", "edge", "--region", "eu", "--id", "eu-1"];
    let message = fails(
        dir.path(),
        1,
        &[&issue[..], &["--label", "site=fra"]].concat(),
    );

    assert!(
        message.contains("\"site\" is not free for a label"),
        "{message}"
    );
    assert!(!dir.path().join("c/eu-1.pem").exists());
}

#[test]
fn help_is_an_answer() {
    let dir = tempfile::tempdir().unwrap();

    assert!(succeeds(dir.path(), &["--help"]).contains("init"));
}
