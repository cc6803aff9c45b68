use std::time::Duration;

use super::*;

#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    listen: Listen,
    source: Vec<Source>,
    #[serde(with = "humantime_serde")]
    grace: Duration,
    seeds: Vec<String>,
}

#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Listen {
    quic: Option<std::net::SocketAddr>,
    name: String,
    gso: bool,
    streams: u32,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    kind: String,
}

fn parsed(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let pairs = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let environment = Environment::from_pairs("KVGRID_TEST_", pairs);
    parse(Path::new("test.toml"), text, &environment)
}

fn error(text: &str, variables: &[(&str, &str)]) -> String {
    let message = parsed(text, variables).unwrap_err().to_string();
    assert!(!message.contains('\n'), "one sentence: {message}");
    message
}

#[test]
fn a_file_is_read() {
    let text = "grace = \"250ms\"\n[listen]\nquic = \"[::1]:7440\"\n[[source]]\nkind = \"none\"\n";

    let config = parsed(text, &[]).unwrap();

    assert_eq!(config.grace, Duration::from_millis(250));
    assert_eq!(config.listen.quic, Some("[::1]:7440".parse().unwrap()));
    assert_eq!(
        config.source,
        [Source {
            kind: "none".into()
        }]
    );
}

#[test]
fn the_environment_wins_over_the_file() {
    let config = parsed(
        "grace = \"1s\"\n[listen]\nname = \"file\"\n",
        &[
            ("KVGRID_TEST_LISTEN__QUIC", "127.0.0.1:0"),
            ("KVGRID_TEST_LISTEN__NAME", "variable"),
            ("KVGRID_TEST_LISTEN__GSO", "true"),
            ("KVGRID_TEST_LISTEN__STREAMS", "12"),
            ("KVGRID_TEST_GRACE", "2s"),
            ("KVGRID_TEST_SEEDS", "[\"a:1\", \"b:2\"]"),
            ("KVGRID_TEST_SOURCE", "[{ kind = \"none\" }]"),
            ("KVGRID_OTHER_LISTEN__NAME", "not ours"),
        ],
    )
    .unwrap();

    assert_eq!(config.listen.name, "variable");
    assert_eq!(config.listen.quic, Some("127.0.0.1:0".parse().unwrap()));
    assert!(config.listen.gso);
    assert_eq!(config.listen.streams, 12);
    assert_eq!(config.grace, Duration::from_secs(2));
    assert_eq!(config.seeds, ["a:1", "b:2"]);
    assert_eq!(config.source.len(), 1);
}

#[test]
fn a_table_and_a_key_in_it_may_both_be_variables() {
    let config = parsed(
        "",
        &[
            ("KVGRID_TEST_LISTEN__NAME", "key"),
            ("KVGRID_TEST_LISTEN", "{ name = \"table\", streams = 3 }"),
        ],
    )
    .unwrap();

    assert_eq!(
        (config.listen.name.as_str(), config.listen.streams),
        ("key", 3)
    );
}

#[test]
fn a_string_may_be_quoted_and_look_like_anything() {
    for (text, meant) in [
        ("\"12\"", "12"),
        ("2026-01-01", "2026-01-01"),
        ("x = 1", "x = 1"),
        ("1\nother = 2", "1\nother = 2"),
        ("", ""),
    ] {
        let config = parsed("", &[("KVGRID_TEST_LISTEN__NAME", text)]).unwrap();
        assert_eq!(config.listen.name, meant);
    }
}

#[test]
fn an_unknown_key_is_named_with_its_table() {
    let message = error("[listen]\nqiuc = \"[::1]:7440\"\n", &[]);

    assert!(
        message.starts_with("listen: unknown field `qiuc`, "),
        "{message}"
    );
}

#[test]
fn an_unknown_table_is_named() {
    let message = error("[lisden]\nquic = 1\n", &[]);

    assert!(
        message.starts_with("top level: unknown field `lisden`"),
        "{message}"
    );
}

#[test]
fn a_wrong_value_is_named_with_its_key() {
    let message = error("", &[("KVGRID_TEST_LISTEN__STREAMS", "many")]);
    assert!(
        message.starts_with("listen.streams: invalid type"),
        "{message}"
    );

    let message = error("grace = \"soon\"", &[]);
    assert!(message.starts_with("grace: "), "{message}");

    let message = error("[listen]\nquic = \"here\"", &[]);
    assert!(message.starts_with("listen.quic: "), "{message}");
}

#[test]
fn a_missing_key_is_named_with_its_table() {
    let message = error("[[source]]\n", &[]);

    assert_eq!(message, "source: missing field `kind`");
}

#[test]
fn broken_syntax_is_told_with_its_line() {
    let message = error("grace = \"1s\"\n\n[listen\n", &[]);

    assert!(message.starts_with("test.toml, line 3: "), "{message}");
}

#[test]
fn a_variable_that_names_no_key_is_refused() {
    for name in [
        "KVGRID_TEST_",
        "KVGRID_TEST_LISTEN____NAME",
        "KVGRID_TEST___NAME",
    ] {
        let message = error("", &[(name, "x")]);
        assert!(message.starts_with(name), "{message}");
    }
    let message = error(
        "",
        &[("KVGRID_TEST_GRACE__KEY", "x"), ("KVGRID_TEST_GRACE", "1s")],
    );
    assert!(message.starts_with("KVGRID_TEST_GRACE__KEY"), "{message}");
}

#[test]
fn a_missing_file_is_named() {
    let error = load::<Config>(Path::new("no/such/file.toml"), &Environment::default());

    let message = error.unwrap_err().to_string();
    assert!(
        message.starts_with("no/such/file.toml cannot be read"),
        "{message}"
    );
}
