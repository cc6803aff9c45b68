use super::*;

const RELAY: &str = "spiffe://grid.example/country/de/region/eu/site/fra/relay/fra-1";
const EDGE: &str = "spiffe://grid.example/region/eu/edge/eu-1";

fn parse(uri: &str) -> Result<Identity, IdentityError> {
    uri.parse()
}

#[test]
fn a_relay_has_site_region_and_labels() {
    let identity = parse(RELAY).unwrap();

    let (site, relay) = identity.as_relay().unwrap();
    assert_eq!((site.as_str(), relay.as_str()), ("fra", "fra-1"));
    assert_eq!(identity.region().unwrap().as_str(), "eu");
    assert_eq!(identity.labels().get("country"), Some("de"));
    assert_eq!(identity.name(), "fra-1");
    assert_eq!(identity.as_edge(), None);
}

#[test]
fn an_edge_has_region_and_id() {
    let identity = parse(EDGE).unwrap();

    let (region, edge) = identity.as_edge().unwrap();
    assert_eq!((region.as_str(), edge.as_str()), ("eu", "eu-1"));
    assert_eq!(identity.as_relay(), None);
}

#[test]
fn an_identity_is_written_as_it_was_read() {
    assert_eq!(parse(RELAY).unwrap().uri(), RELAY);
    assert_eq!(parse(EDGE).unwrap().uri(), EDGE);
}

#[test]
fn pairs_in_another_order_say_the_same() {
    let shuffled = "spiffe://grid.example/relay/fra-1/region/eu/country/de/site/fra";

    assert_eq!(parse(shuffled).unwrap(), parse(RELAY).unwrap());
}

#[test]
fn a_built_identity_reads_back() {
    let built = Identity::relay(
        TrustDomain::new("grid.example").unwrap(),
        SiteId::new("fra").unwrap(),
        RelayId::new("fra-1").unwrap(),
    )
    .with_region(Region::new("eu").unwrap())
    .with_label("country", "de")
    .unwrap();

    assert_eq!(parse(&built.uri()).unwrap(), built);
}

#[test]
fn malformed_paths_are_refused() {
    for path in [
        "",
        "/",
        "/site",
        "/site/fra/relay",
        "/site/fra/relay/fra-1/",
        "//site/fra",
    ] {
        let uri = format!("spiffe://grid.example{path}");
        assert!(matches!(parse(&uri), Err(IdentityError::Pairs(_))), "{uri}");
    }
    let dots = "spiffe://grid.example/zone/../site/fra/relay/fra-1";
    assert!(matches!(parse(dots), Err(IdentityError::Pairs(_))));
}

#[test]
fn half_a_role_is_refused() {
    for path in [
        "/site/fra",
        "/relay/fra-1",
        "/edge/eu-1",
        "/region/eu",
        "/country/de",
    ] {
        let uri = format!("spiffe://grid.example{path}");
        assert_eq!(parse(&uri), Err(IdentityError::NoRole), "{uri}");
    }
}

#[test]
fn two_roles_are_refused() {
    for path in [
        "/region/eu/edge/e/site/s/relay/r",
        "/region/eu/edge/e/site/s",
    ] {
        let uri = format!("spiffe://grid.example{path}");
        assert_eq!(parse(&uri), Err(IdentityError::TwoRoles), "{uri}");
    }
}

#[test]
fn a_key_twice_is_refused() {
    let uri = "spiffe://grid.example/site/fra/site/iad/relay/fra-1";

    assert_eq!(parse(uri), Err(IdentityError::Repeated("site".into())));
}

#[test]
fn names_and_labels_keep_to_their_characters() {
    let name = "spiffe://grid.example/site/fra%2f/relay/fra-1";
    assert!(matches!(
        parse(name),
        Err(IdentityError::Name { key: "site", .. })
    ));
    let label = "spiffe://grid.example/zone/a b/site/fra/relay/fra-1";
    assert_eq!(
        parse(label),
        Err(IdentityError::Label(LabelError::Text("a b".into())))
    );
}

#[test]
fn a_trust_domain_is_lower_case_and_without_port_or_user() {
    for domain in ["", "Grid.example", "grid.example:443", "me@grid.example"] {
        let uri = format!("spiffe://{domain}/region/eu/edge/eu-1");
        assert!(
            matches!(parse(&uri), Err(IdentityError::TrustDomain(_))),
            "{uri}"
        );
    }
}

#[test]
fn another_scheme_and_an_endless_uri_are_refused() {
    assert!(matches!(
        parse("https://grid.example/region/eu/edge/eu-1"),
        Err(IdentityError::Scheme(_))
    ));
    let long = format!("spiffe://grid.example/{}", "a".repeat(3000));
    assert_eq!(parse(&long), Err(IdentityError::TooLong(long.len())));
}

#[test]
fn labels_have_a_limit_and_reserved_keys() {
    let edge = parse(EDGE).unwrap();
    let full = (0..32).fold(edge, |edge, n| {
        edge.with_label(&format!("k{n}"), "v").unwrap()
    });

    assert_eq!(
        full.clone().with_label("one-more", "v"),
        Err(IdentityError::Label(LabelError::TooMany))
    );
    assert_eq!(
        full.with_label("region", "us"),
        Err(IdentityError::ReservedLabel("region".into()))
    );
}

#[test]
fn the_authority_has_a_uri_without_path() {
    let domain = TrustDomain::new("grid.example").unwrap();

    assert_eq!(TrustDomain::from_uri(&domain.uri()), Ok(domain));
    assert!(TrustDomain::from_uri(EDGE).is_err());
}
