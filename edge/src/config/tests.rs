use super::*;

const LEAST: &str = r#"
[identity]
cert = "eu-1.pem"
key = "eu-1-key.pem"
ca = "ca.pem"
grid_key = "grid.key"
[relays]
seeds = ["localhost:7440"]
"#;

fn resolve(more: &str) -> Result<Config, String> {
    let text = format!("{LEAST}{more}");
    let parsed: Result<ConfigFile, _> =
        config::parse(Path::new("edge.toml"), &text, &Environment::default());
    parsed
        .and_then(|file| file.resolve())
        .map_err(|error| error.to_string())
}

fn example() -> ConfigFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compose/config/edge.toml");
    config::load(&path, &Environment::default()).unwrap()
}

#[test]
fn the_example_shows_the_defaults() {
    let example = example();
    let shown = serde_json::to_value(&example).unwrap();
    let text = format!("{LEAST}quorum = 1\n");
    let least: ConfigFile =
        config::parse(Path::new("edge.toml"), &text, &Environment::default()).unwrap();
    let mut defaults = serde_json::to_value(least.complete()).unwrap();

    for own in ["identity", "relays"] {
        defaults[own] = shown[own].clone();
    }
    assert_eq!(shown, defaults);
    assert!(example.resolve().is_ok());
}

#[test]
fn wrong_values_are_refused_by_key() {
    let wrong = [
        ("quorum = 0", "relays.quorum: at least 1 site"),
        (
            "[canary]\nevery = \"0s\"",
            "canary.every: must be longer than 0",
        ),
        (
            "[policy]\nband_share = 2.0",
            "policy.band_share: 2 is not between 0 and 1",
        ),
        (
            "[policy]\nregions = [\"e/u\"]",
            "policy.regions: '/' is not allowed in a region",
        ),
        (
            "[policy]\nload_stale_after = \"0s\"",
            "policy.load_stale_after: must be longer than 0",
        ),
        (
            "[policy.weights]\nrtt = nan",
            "policy.weights.rtt: NaN is not between 0 and 1000",
        ),
        (
            "[limits]\nbody_bytes = 0",
            "limits.body_bytes: must be at least 1",
        ),
        (
            "[retry]\nbreaker_max = \"1ms\"",
            "retry.breaker_max: must not be shorter than retry.breaker_min",
        ),
    ];

    for (more, error) in wrong {
        assert_eq!(resolve(more).err().as_deref(), Some(error), "{more}");
    }
}

#[test]
fn a_label_rule_that_is_none_is_refused_by_key() {
    let error = resolve("[policy]\nlabels = [\"country\"]").unwrap_err();

    assert!(error.starts_with("policy.labels: "), "{error}");
}

#[test]
fn a_seed_needs_a_host_and_a_port() {
    for seed in ["", "host", ":7440", "host:0", "host:many"] {
        let text = LEAST.replace("localhost:7440", seed);
        let file: ConfigFile =
            config::parse(Path::new("edge.toml"), &text, &Environment::default()).unwrap();
        let error = file.resolve().unwrap_err().to_string();
        assert!(error.starts_with("relays.seeds: "), "{error}");
    }
}

#[test]
fn an_empty_list_of_regions_allows_no_site() {
    let config = resolve("[policy]\nregions = []").unwrap();

    assert_eq!(config.policy.rules.regions, Some([].into()));
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    let error = resolve("[limits]\nbodies = 1").unwrap_err();

    assert!(error.contains("bodies"), "{error}");
}

#[test]
fn the_view_is_of_filters_unless_whole_hashes_are_asked_for() {
    let form = |more| resolve(more).map(|config| config.form);

    assert_eq!(form(""), Ok(Form::Filter));
    assert_eq!(form("[view]\nform = \"exact\""), Ok(Form::Exact));
    let error = form("[view]\nform = \"radix\"").unwrap_err();
    assert!(error.contains("`filter` or `exact`"), "{error}");
}
