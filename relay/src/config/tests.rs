use super::*;
use crate::discovery::Store;
use crate::secret::Secret;
use crate::sources::dynamo_events::NatsLogin;

const IDENTITY: &str = r#"
[identity]
cert = "/k/fra-1.pem"
key = "/k/fra-1-key.pem"
ca = "/k/ca.pem"
grid_key = "/k/grid.key"
"#;

const FRONTEND: &str = "[frontend]\nurl = \"http://127.0.0.1:8000\"\n";

const CARD: &str = "[card]\nmodel = \"tiny\"\ndir = \"/models/tiny\"\nblock_size = 16\n";

const SOURCE: &str = "[[source]]\nkind = \"engine-zmq\"\n\
    endpoints = [{ events = \"tcp://127.0.0.1:5557\", replay = \"tcp://127.0.0.1:5657\" }]\n";

fn parse(tables: &[&str]) -> Result<Config, ConfigError> {
    parse_with(tables, &[])
}

fn parse_with(tables: &[&str], variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let pairs = variables.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    let environment = Environment::from_pairs(ENVIRONMENT, pairs);
    let text = tables.concat();
    config::parse::<ConfigFile>(Path::new("relay.toml"), &text, &environment)?.resolve()
}

#[track_caller]
fn assert_refused(tables: &[&str], sentence: &str) {
    let error = parse(tables).unwrap_err().to_string();
    assert!(error.contains(sentence), "{error}");
    assert!(!error.contains('\n'), "one sentence: {error}");
}

#[test]
fn the_least_that_must_be_written_is_enough() {
    let config = parse(&[IDENTITY, FRONTEND]).unwrap();

    assert_eq!(config.file.listen.quic.port(), 7440);
    assert_eq!(config.admin, "127.0.0.1:9441".parse().unwrap());
    assert!(config.card.is_none());
    assert!(config.sources.is_empty());
}

#[test]
fn a_source_takes_from_the_card_what_it_does_not_say() {
    let config = parse(&[IDENTITY, FRONTEND, CARD, SOURCE]).unwrap();

    let source = &config.sources[0];
    assert_eq!(source.name, "engine-zmq");
    assert_eq!(source.model.as_str(), "tiny");
    assert_eq!(source.shape.unwrap().block_size.get(), 16);
    let Feeds::EngineZmq(feeds) = &source.feeds else {
        panic!("{source:?}");
    };
    assert_eq!(feeds[0].gone_after, Duration::from_secs(5));
    assert_eq!(config.file.sources[0].model.as_deref(), Some("tiny"));
}

#[test]
fn a_source_without_a_card_says_all_itself() {
    let more = "model = \"m\"\nblock_size = 32\neagle = true\n";

    let config = parse(&[IDENTITY, FRONTEND, SOURCE, more]).unwrap();

    let shape = config.sources[0].shape.unwrap();
    assert_eq!(shape.block_size.get(), 32);
    assert_refused(&[IDENTITY, FRONTEND, SOURCE], "source.model: is missing");
    let nameless = "model = \"m\"\n";
    assert_refused(
        &[IDENTITY, FRONTEND, SOURCE, nameless],
        "source.block_size: is missing",
    );
}

#[test]
fn unknown_keys_are_refused_by_name() {
    assert_refused(&[IDENTITY, FRONTEND, "[gosip]\n"], "gosip");
    assert_refused(&[IDENTITY, FRONTEND, "speed = 1\n"], "speed");
    assert_refused(&[IDENTITY, FRONTEND, SOURCE, "speed = 1\n"], "speed");
    assert_refused(&[IDENTITY, "[frontend]\n"], "frontend: missing field `url`");
    assert_refused(
        &[
            IDENTITY,
            FRONTEND,
            "[[source]]\nkind = \"magic\"\nendpoints = []\n",
        ],
        "source.kind: unknown variant `magic`",
    );
}

#[test]
fn what_can_not_be_meant_is_refused_by_key() {
    let with = |more| [IDENTITY, FRONTEND, CARD, SOURCE, more].concat();
    let refused = |more, sentence| assert_refused(&[&with(more)], sentence);

    refused(
        "block_size = 8\n",
        "source.block_size: differs from the card's",
    );
    refused("eagle = true\n", "source.eagle: differs from the card's");
    refused("name = \"a b\"\n", "source.name: \"a b\" is not");
    refused("gone_after = \"0s\"\n", "source.gone_after: is shorter");
    refused(SOURCE, "source.name: two sources are called");
    refused("[limits]\nworkers = 0\n", "limits.workers: is 0");
    refused(
        "[limits]\nrequests = 0\n",
        "limits.requests: is not between",
    );
    refused("[limits]\nentries = 0\n", "limits.entries: is not between");
    refused(
        "[load]\nurls = [\"127.0.0.1\"]\n",
        "load.urls: \"127.0.0.1\" is not",
    );
    refused("[load]\ninterval = \"1ms\"\n", "load.interval: is shorter");
}

const DYNAMO: &str = "[[source]]\nkind = \"dynamo-events\"\nnamespace = \"prod\"\n\
    discovery = { kind = \"file\", root = \"/run/dynamo\" }\n";

const DYNAMO_CARD: &str = "[card]\nmodel = \"tiny\"\nfrom = \"dynamo\"\n";

#[test]
fn a_source_and_a_card_may_leave_it_to_the_sites_workers() {
    let config = parse(&[IDENTITY, FRONTEND, DYNAMO_CARD, DYNAMO]).unwrap();

    let source = &config.sources[0];
    assert_eq!(
        (source.name.as_str(), source.shape),
        ("dynamo-events", None)
    );
    let Feeds::DynamoEvents(dynamo) = &source.feeds else {
        panic!("{source:?}");
    };
    let Store::Files(files) = &dynamo.discovery.store else {
        panic!("{dynamo:?}");
    };
    assert_eq!(files.interval, Duration::from_millis(100));
    assert_eq!(files.dead_after, Duration::from_secs(10));
    assert_eq!(dynamo.discovery.scope.namespace, "prod");
    assert_eq!(dynamo.nats, None);
    let Some(CardSettings::Dynamo { source: 0, wanted }) = &config.card else {
        panic!("{:?}", config.card);
    };
    assert_eq!(wanted.state, Path::new("/var/lib/kvgrid"));
    let fixed = parse(&[IDENTITY, FRONTEND, CARD, DYNAMO]).unwrap();
    assert_eq!(fixed.sources[0].shape.unwrap().block_size.get(), 16);
}

#[test]
fn keys_of_another_kind_are_refused_by_name() {
    let refused = |tables: &[&str], sentence| {
        assert_refused(&[IDENTITY, FRONTEND, &tables.concat()], sentence);
    };

    refused(
        &[CARD, SOURCE, "namespace = \"prod\"\n"],
        "source.namespace: is for sources of kind \"dynamo-events\"",
    );
    refused(
        &[CARD, DYNAMO, "gone_after = \"1s\"\n"],
        "source.gone_after: is for sources of kind \"engine-zmq\"",
    );
    refused(
        &[CARD, DYNAMO, "endpoints = [{ events = \"tcp://a:1\" }]\n"],
        "source.endpoints: is for sources of kind \"engine-zmq\"",
    );
    refused(
        &[DYNAMO_CARD, "block_size = 16\n", DYNAMO],
        "card.block_size: is what the workers say themselves",
    );
}

#[test]
fn dynamos_relay_goes_with_a_card_from_a_directory_or_from_discovery() {
    let peer = "[[source]]\nkind = \"dynamo-relay\"\nurl = \"http://127.0.0.1:5561\"\n";
    let found = "discovery = { kind = \"file\", root = \"/d\" }\nnamespace = \"prod\"\n";

    let dir = parse(&[IDENTITY, FRONTEND, CARD, peer]).unwrap();
    let told = parse(&[IDENTITY, FRONTEND, DYNAMO_CARD, peer, found]).unwrap();

    let settings = |config: &Config| match &config.sources[0].feeds {
        Feeds::DynamoRelay(settings) => settings.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(settings(&dir).url, "http://127.0.0.1:5561");
    assert_eq!(settings(&dir).message_bytes, 8 << 20);
    assert_eq!(settings(&dir).discovery, None);
    assert!(dir.sources[0].shape.is_some(), "as the card says");
    assert_eq!(settings(&told).namespace.as_deref(), Some("prod"));
    assert!(settings(&told).discovery.is_some());
    assert_eq!(told.sources[0].shape, None);

    let refused = |more: &str, sentence| {
        assert_refused(&[IDENTITY, FRONTEND, CARD, peer, more], sentence);
    };
    refused(
        "role = \"decode\"\n",
        "source.role: is for sources of kind \"engine-zmq\"",
    );
    refused(
        "topic = \"kv\"\n",
        "source.topic: is for sources of kind \"engine-zmq\"",
    );
    refused(
        "message_bytes = 4194304\n",
        "source.message_bytes: is not between 5242880 and 268435456",
    );
    let kind = "[[source]]\nkind = \"dynamo-relay\"\n";
    assert_refused(&[IDENTITY, FRONTEND, CARD, kind], "source.url: is missing");
    let path = "url = \"http://a:1/v1\"\n";
    assert_refused(
        &[IDENTITY, FRONTEND, CARD, kind, path],
        "source.url: has a path",
    );
    assert_refused(
        &[IDENTITY, FRONTEND, DYNAMO_CARD, peer],
        "card.from: is \"dynamo\", but no source with a discovery",
    );
    assert_refused(
        &[IDENTITY, FRONTEND, CARD, SOURCE, "url = \"http://a:1\"\n"],
        "source.url: is for sources of kind \"dynamo-relay\"",
    );
}

#[test]
fn what_a_kind_needs_is_asked_for_by_name() {
    let refused = |tables: &[&str], sentence| {
        assert_refused(&[IDENTITY, FRONTEND, &tables.concat()], sentence);
    };
    let kind = "[[source]]\nkind = \"dynamo-events\"\n";

    refused(&[CARD, kind], "source.discovery: is missing");
    refused(
        &[
            CARD,
            kind,
            "discovery = { kind = \"file\", root = \"/d\" }\n",
        ],
        "source.namespace: is missing",
    );
    refused(
        &[
            CARD,
            kind,
            "discovery = { kind = \"consul\", root = \"/d\" }\n",
        ],
        "source.discovery.kind: unknown variant `consul`",
    );
    refused(&[DYNAMO_CARD], "card.from: is \"dynamo\", but no source");
    refused(
        &[DYNAMO_CARD, SOURCE],
        "source.block_size: is missing, and there is no card to tell it",
    );
    refused(&["[card]\nmodel = \"tiny\"\n"], "card.dir: is missing");
    refused(
        &[CARD, "[[source]]\nkind = \"engine-zmq\"\n"],
        "source.endpoints: is missing or empty",
    );
}

fn dynamo(keys: &str) -> String {
    format!("[[source]]\nkind = \"dynamo-events\"\nnamespace = \"prod\"\n{keys}\n")
}

#[test]
fn a_site_may_meet_by_etcd_and_nats() {
    let source = dynamo(
        "discovery = { kind = \"etcd\", endpoints = [\"https://a:2379\"], user = \"relay\", \
         password = { file = \"/s/etcd\" }, tls = { ca = \"/s/ca\" } }\n\
         nats = { servers = [\"nats://a:4222\", \"tls://b:4222\"], \
         credentials = { env = \"NATS_CREDS\" } }",
    );

    let config = parse(&[IDENTITY, FRONTEND, DYNAMO_CARD, &source]).unwrap();

    let Feeds::DynamoEvents(dynamo) = &config.sources[0].feeds else {
        panic!("{:?}", config.sources);
    };
    let Store::Etcd(etcd) = &dynamo.discovery.store else {
        panic!("{dynamo:?}");
    };
    let password = Secret::File("/s/etcd".into());
    assert_eq!(etcd.user, Some(("relay".to_owned(), password)));
    assert_eq!(etcd.stale_after, Duration::from_secs(30));
    assert_eq!(etcd.tls.as_ref().unwrap().ca, Path::new("/s/ca"));
    let nats = dynamo.nats.as_ref().unwrap();
    let login = NatsLogin::Credentials(Secret::Env("NATS_CREDS".into()));
    assert_eq!(nats.login, Some(login));
    assert_eq!(nats.servers.len(), 2);
}

#[test]
fn etcd_and_nats_are_asked_for_by_key() {
    let refused = |keys: &str, sentence| {
        assert_refused(&[IDENTITY, FRONTEND, DYNAMO_CARD, &dynamo(keys)], sentence);
    };
    let etcd = |keys: &str| format!("discovery = {{ kind = \"etcd\"{keys} }}");
    let at = "endpoints = [\"http://a:2379\"]";
    let nats = |keys: &str| {
        let discovery = etcd(&format!(", {at}"));
        format!("{discovery}\nnats = {{ {keys} }}")
    };

    refused(&etcd(""), "source.discovery.endpoints: is missing");
    for wrong in [
        "a:2379",
        "http://a",
        "http://u:p@a:2379",
        "ftp://a:1",
        "http://a:1/x",
    ] {
        let keys = format!(", endpoints = [\"{wrong}\"]");
        refused(&etcd(&keys), "source.discovery.endpoints: has one that");
    }
    refused(
        &etcd(", endpoints = [\"https://a:2379\"]"),
        "source.discovery.tls: is there without https",
    );
    refused(
        &etcd(&format!(", {at}, user = \"u\"")),
        "source.discovery.password: is there without a user",
    );
    refused(
        &etcd(&format!(", {at}, password = \"p\"")),
        "source.discovery.password: ",
    );
    refused(
        &etcd(&format!(", {at}, root = \"/d\"")),
        "source.discovery.root: is for discovery of kind \"file\"",
    );
    refused(
        "discovery = { kind = \"file\", root = \"/d\", endpoints = [\"http://a:1\"] }",
        "source.discovery.endpoints: is for discovery of kind \"etcd\"",
    );
    refused(
        "discovery = { kind = \"file\", root = \"/d\", stale_after = \"1s\" }",
        "source.discovery.stale_after: is for discovery of kind \"etcd\" or \"kubernetes\"",
    );
    refused(
        "discovery = { kind = \"kubernetes\", user = \"relay\" }",
        "source.discovery.user: is for discovery of kind \"etcd\"",
    );
    refused(&nats("servers = []"), "source.nats.servers: is missing");
    refused(
        &nats("servers = [\"http://a:1\"]"),
        "source.nats.servers: has one that",
    );
    refused(
        &nats("servers = [\"nats://a:1\"], token = { env = \"A\" }, credentials = { env = \"B\" }"),
        "source.nats: says in more than one way",
    );
    refused(
        &nats("servers = [\"nats://a:1\"], tls = { ca = \"/ca\", key = \"/key\" }"),
        "source.nats.tls: has a certificate without its key",
    );
}

#[test]
fn addresses_are_checked() {
    let frontend = |url: &str| format!("[frontend]\nurl = \"{url}\"\n");
    assert_refused(
        &[IDENTITY, FRONTEND, "allow = [\"/v1/models\"]\n"],
        "frontend.allow: ",
    );
    for url in ["https://a:1", "a:1", "http://", "http://a:1/v1"] {
        assert_refused(&[IDENTITY, &frontend(url)], "frontend.url: ");
    }
    let source = |address: &str| {
        format!("[[source]]\nkind = \"engine-zmq\"\nendpoints = [{{ events = \"{address}\" }}]\n")
    };
    for address in [
        "ipc://x",
        "tcp://*:5557",
        "tcp://a",
        "tcp://a:0",
        "tcp://:1",
    ] {
        let sentence = "source.endpoints.events: ";
        assert_refused(&[IDENTITY, FRONTEND, CARD, &source(address)], sentence);
    }
    let twice = "[[source]]\nkind = \"engine-zmq\"\nname = \"b\"\n\
        endpoints = [{ events = \"tcp://127.0.0.1:5557\" }]\n";
    assert_refused(&[IDENTITY, FRONTEND, CARD, SOURCE, twice], "is there twice");
}

#[test]
fn a_relay_dials_the_edges_it_is_given_or_none() {
    let edges = |keys: &str| format!("[edges]\n{keys}\n");
    let refused =
        |keys: &str, sentence| assert_refused(&[IDENTITY, FRONTEND, &edges(keys)], sentence);
    let two = "connect = \"relay\"\naddresses = [\"a.example:7440\", \"[::1]:1\"]";

    let dials = parse(&[IDENTITY, FRONTEND, &edges(two)]).unwrap();
    let is_dialled = parse(&[IDENTITY, FRONTEND, &edges("connect = \"edge\"")]).unwrap();

    assert_eq!(dials.file.edges.connect, Connect::Relay);
    assert_eq!(dials.file.edges.addresses, ["a.example:7440", "[::1]:1"]);
    assert_eq!(is_dialled.file.edges, EdgesTable::default());
    refused("connect = \"relay\"", "edges.addresses: names no edge");
    refused(
        "addresses = [\"a:1\"]",
        "edges.addresses: names edges, and only",
    );
    refused(
        "connect = \"both\"",
        "edges.connect: unknown variant `both`",
    );
    refused("adresses = []", "adresses");
    for wrong in ["a", "a:0", ":1"] {
        let keys = format!("connect = \"relay\"\naddresses = [\"{wrong}\"]");
        refused(&keys, "edges.addresses: ");
    }
    let many = format!("connect = \"relay\"\naddresses = {:?}", ["a:1"; 65]);
    refused(&many, "edges.addresses: has 65 entries");
}

#[test]
fn the_environment_overrides() {
    let variables = [("KVGRID_RELAY_FRONTEND__URL", "http://10.0.0.1:80")];

    let config = parse_with(&[IDENTITY, FRONTEND], &variables).unwrap();

    assert_eq!(config.frontend.host(), Some("10.0.0.1"));
}

#[test]
fn the_commented_example_is_right() {
    let example = include_str!("../../../compose/config/relay.toml");

    parse(&[example]).unwrap();
}
