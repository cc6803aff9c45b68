//! The true binary: exit codes, `--check`, start and stop.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Output};

use kvgrid_certs::{Identity, Overwrite, TrustDomain, Validity};
use kvgrid_core::{EdgeId, Region};

const EDGE: &str = env!("CARGO_BIN_EXE_kvgrid-edge");

fn edge(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(EDGE)
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn example() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compose/config/edge.toml");
    path.to_str().unwrap().to_owned()
}

/// Makes an edge's certificate and keys, and the variables that say where they are.
fn identity(dir: &Path) -> Vec<(&'static str, String)> {
    let trust_domain = TrustDomain::new("grid.example").unwrap();
    kvgrid_certs::init(dir, trust_domain.clone(), Overwrite::Refuse).unwrap();
    let (region, edge) = (Region::new("eu").unwrap(), EdgeId::new("eu-1").unwrap());
    let edge = Identity::edge(trust_domain, region, edge);
    kvgrid_certs::issue(dir, &edge, Validity::days(1).unwrap(), Overwrite::Refuse).unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    vec![
        ("KVGRID_EDGE_IDENTITY__CERT", at("eu-1.pem")),
        ("KVGRID_EDGE_IDENTITY__KEY", at("eu-1-key.pem")),
        ("KVGRID_EDGE_IDENTITY__CA", at("ca.pem")),
        ("KVGRID_EDGE_IDENTITY__GRID_KEY", at("grid.key")),
    ]
}

/// Checks the example with a real identity.
fn check_example(dir: &Path, more: &[(&str, &str)]) -> Output {
    let identity = identity(dir);
    let own = identity.iter().map(|(name, value)| (*name, value.as_str()));
    let all: Vec<_> = own.chain(more.iter().copied()).collect();
    edge(&["--config", &example(), "--check"], &all)
}

/// A configuration whose files are looked for in an empty directory.
fn written(dir: &Path, more: &str) -> String {
    let path = dir.join("edge.toml");
    let at = |name: &str| dir.join(name).display().to_string();
    let text = format!(
        "[identity]\ncert = {:?}\nkey = {:?}\nca = {:?}\ngrid_key = {:?}\n\
         [relays]\nseeds = [\"127.0.0.1:1\"]\n{more}",
        at("eu-1.pem"),
        at("eu-1-key.pem"),
        at("ca.pem"),
        at("grid.key"),
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn check_prints_the_configuration_with_its_defaults() {
    let dir = tempfile::tempdir().unwrap();

    let output = check_example(dir.path(), &[]);

    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("[listen]\nquic = \"0.0.0.0:7440\"\n"),
        "{shown}"
    );
    assert!(shown.contains("stale_half_life = \"1m\"\n"), "{shown}");
}

#[test]
fn what_check_prints_is_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("printed.toml");
    let first = check_example(dir.path(), &[]);
    std::fs::write(&path, &first.stdout).unwrap();

    let second = edge(&["--config", path.to_str().unwrap(), "--check"], &[]);

    assert_eq!(code(&second), 0);
    assert_eq!(text(&second.stdout), text(&first.stdout));
}

#[test]
fn the_environment_overrides_the_file() {
    let set = [("KVGRID_EDGE_LISTEN__CLIENT", "127.0.0.1:9999")];

    let dir = tempfile::tempdir().unwrap();
    let output = check_example(dir.path(), &set);

    let shown = text(&output.stdout);
    assert!(shown.contains("client = \"127.0.0.1:9999\"\n"), "{shown}");
}

#[test]
fn a_wrong_configuration_ends_with_64_and_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = [
        ("[limits]\nbodies = 1\n", "bodies"),
        ("[policy]\nband_share = 7.0\n", "policy.band_share"),
        ("[retry]\nsites = 0\n", "retry.sites"),
    ];

    for (more, key) in wrong {
        let output = edge(&["--config", &written(dir.path(), more), "--check"], &[]);
        let complaint = text(&output.stderr);
        assert_eq!(code(&output), 64, "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(complaint.contains(key), "{complaint}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_identity_that_cannot_be_used_is_found_by_the_check() {
    let dir = tempfile::tempdir().unwrap();

    let output = edge(&["--config", &written(dir.path(), ""), "--check"], &[]);

    let complaint = text(&output.stderr);
    assert_eq!(code(&output), 64, "{complaint}");
    assert!(complaint.contains("identity: "), "{complaint}");
}

#[test]
fn a_missing_file_or_argument_ends_with_64() {
    for arguments in [
        &["--config", "/nonexistent/edge.toml"][..],
        &[],
        &["--loud"],
    ] {
        let output = edge(arguments, &[]);
        assert_eq!(code(&output), 64, "{}", text(&output.stderr));
    }
}

#[test]
fn a_missing_certificate_ends_with_64_and_its_name() {
    let dir = tempfile::tempdir().unwrap();

    let output = edge(
        &["--config", &written(dir.path(), "")],
        &[("KVGRID_LOG", "error")],
    );

    assert_eq!(code(&output), 64);
    assert!(
        text(&output.stderr).contains("eu-1.pem"),
        "{}",
        text(&output.stderr)
    );
}
