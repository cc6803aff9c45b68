use std::io;

use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, Connection, ProtocolVersion, ServerConnection};

use super::*;
use crate::authority::{CertAuthority, Validity};
use crate::credentials::{CredentialsError, TLS_NAME};

const RELAY: &str = "spiffe://grid.example/region/eu/site/fra/relay/fra-1";
const EDGE: &str = "spiffe://grid.example/region/eu/edge/eu-1";
const ALPN: &[u8] = b"kvgrid-test/1";

fn authority(domain: &str) -> CertAuthority {
    CertAuthority::generate(TrustDomain::new(domain).unwrap()).unwrap()
}

fn node(authority: &CertAuthority, uri: &str) -> NodeCredentials {
    authority.credentials(&uri.parse().unwrap()).unwrap()
}

fn server(credentials: &NodeCredentials, accepts: Accepts) -> Connection {
    let config = credentials.server_config(&[ALPN], accepts);
    ServerConnection::new(Arc::new(config)).unwrap().into()
}

fn client(credentials: &NodeCredentials, accepts: Accepts) -> Connection {
    client_of(credentials.client_config(ALPN, accepts))
}

fn client_of(config: ClientConfig) -> Connection {
    let name = TLS_NAME.try_into().unwrap();
    ClientConnection::new(Arc::new(config), name)
        .unwrap()
        .into()
}

/// Carries messages both ways until neither end has any, or one end objects.
fn handshake(client: &mut Connection, server: &mut Connection) -> Result<(), rustls::Error> {
    while client.wants_write() || server.wants_write() {
        pass(client, server)?;
        pass(server, client)?;
    }
    Ok(())
}

fn pass(from: &mut Connection, to: &mut Connection) -> Result<(), rustls::Error> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut bytes = io::Cursor::new(bytes);
    while to.read_tls(&mut bytes).unwrap() > 0 {
        to.process_new_packets()?;
    }
    Ok(())
}

/// A node that shows a certificate which no node would take as its own.
fn client_showing(authority: &CertAuthority, uris: &[&str], validity: Validity) -> Connection {
    let good = node(authority, EDGE);
    let (cert, key) = authority.sign("eu-1", uris, validity).unwrap();
    let forged = NodeCredentials::unchecked(cert.as_bytes(), key.as_bytes(), &good);
    client(&forged, Accepts::Both)
}

fn refusal(mut client: Connection, mut server: Connection) -> String {
    handshake(&mut client, &mut server).unwrap_err().to_string()
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

fn one_day() -> Validity {
    Validity::days(1).unwrap()
}

#[test]
fn a_relay_and_an_edge_of_one_grid_know_each_other() {
    let authority = authority("grid.example");
    let mut server = server(&node(&authority, RELAY), Accepts::Edges);
    let mut client = client(&node(&authority, EDGE), Accepts::Relays);

    handshake(&mut client, &mut server).unwrap();

    assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(client.alpn_protocol(), Some(ALPN));
    let relay = peer_of(client.peer_certificates().unwrap()).unwrap();
    assert_eq!(relay.identity.uri(), RELAY);
    let edge = peer_of(server.peer_certificates().unwrap()).unwrap();
    assert_eq!(edge.identity.uri(), EDGE);
    assert!(edge.not_after > SystemTime::now());
}

#[test]
fn a_client_of_another_authority_is_refused() {
    let ours = authority("grid.example");
    let theirs = authority("grid.example");
    let server = server(&node(&ours, RELAY), Accepts::Edges);

    // It trusts our relay, so that its own certificate is what fails.
    let (cert, key) = theirs.sign("eu-1", &[EDGE], one_day()).unwrap();
    let stranger = NodeCredentials::unchecked(cert.as_bytes(), key.as_bytes(), &node(&ours, EDGE));

    let error = refusal(client(&stranger, Accepts::Relays), server);
    assert!(error.contains("BadSignature"), "{error}");
}

#[test]
fn a_server_of_another_authority_is_refused() {
    let server = server(&node(&authority("grid.example"), RELAY), Accepts::Edges);
    let client = client(
        &node(
            &authority("other.example"),
            "spiffe://other.example/region/eu/edge/eu-1",
        ),
        Accepts::Relays,
    );

    let error = refusal(client, server);

    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[test]
fn another_trust_domain_is_refused_even_from_our_authority() {
    let authority = authority("grid.example");
    let server = server(&node(&authority, RELAY), Accepts::Edges);

    let other = "spiffe://other.example/region/eu/edge/eu-1";
    let error = refusal(client_showing(&authority, &[other], one_day()), server);

    assert!(
        error.contains("is not of the trust domain grid.example"),
        "{error}"
    );
}

#[test]
fn a_server_refuses_a_role_it_does_not_serve() {
    let authority = authority("grid.example");
    let server = server(&node(&authority, RELAY), Accepts::Edges);

    let relay = "spiffe://grid.example/site/iad/relay/iad-1";
    let error = refusal(client(&node(&authority, relay), Accepts::Relays), server);

    assert!(error.contains("is not an edge"), "{error}");
}

#[test]
fn a_client_refuses_a_role_it_did_not_dial() {
    let authority = authority("grid.example");
    let server = server(&node(&authority, EDGE), Accepts::Both);

    let error = refusal(client(&node(&authority, RELAY), Accepts::Relays), server);

    assert!(error.contains("is not a relay"), "{error}");
}

#[test]
fn two_uris_and_none_are_refused() {
    let authority = authority("grid.example");

    for uris in [&[EDGE, RELAY][..], &[]] {
        let server = server(&node(&authority, RELAY), Accepts::Both);
        let error = refusal(client_showing(&authority, uris, one_day()), server);
        let count = format!("has {} URIs instead of one", uris.len());
        assert!(error.contains(&count), "{error}");
    }
}

#[test]
fn an_expired_and_an_early_certificate_are_refused() {
    let authority = authority("grid.example");
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 60 * 60);
    let past = Validity::between(now - 2 * day, now - day);
    let future = Validity::between(now + day, now + 2 * day);

    for (validity, reason) in [(past, "expired"), (future, "not valid yet")] {
        let server = server(&node(&authority, RELAY), Accepts::Edges);
        let error = refusal(client_showing(&authority, &[EDGE], validity), server);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_client_without_certificate_is_refused() {
    let authority = authority("grid.example");
    let server = server(&node(&authority, RELAY), Accepts::Edges);
    let mut config = node(&authority, EDGE).client_config(ALPN, Accepts::Relays);
    config.client_auth_cert_resolver = Arc::new(NoCertificate);

    let error = refusal(client_of(config), server);

    assert!(error.contains("peer sent no certificates"), "{error}");
}

#[test]
fn another_protocol_is_refused() {
    let authority = authority("grid.example");
    let mut client = client(&node(&authority, EDGE), Accepts::Relays);
    let config = node(&authority, RELAY).server_config(&[b"kvgrid-other/1"], Accepts::Edges);
    let mut server = ServerConnection::new(Arc::new(config)).unwrap().into();

    assert!(handshake(&mut client, &mut server).is_err());
}

#[test]
fn a_node_does_not_start_with_a_certificate_others_would_refuse() {
    let authority = authority("grid.example");
    let ca = authority.certificate_pem().as_bytes();
    let past = Validity::between(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
    let (cert, key) = authority.sign("eu-1", &[EDGE], past).unwrap();

    let error = NodeCredentials::from_pem(cert.as_bytes(), key.as_bytes(), ca).unwrap_err();

    assert!(matches!(
        error,
        CredentialsError::Own(PeerError::Chain(webpki::Error::CertExpired { .. }))
    ));
}
