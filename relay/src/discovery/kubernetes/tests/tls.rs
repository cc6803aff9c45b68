//! A server that is reached over TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use super::*;

/// Who certifies, and what it has certified.
struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&key).unwrap().pem();
        std::fs::write(directory.path().join("ca"), own).unwrap();
        Self {
            directory,
            issuer: Issuer::new(params, key),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Certifies a name, and writes certificate and key to files.
    fn certify(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (certificate_path, key_path) = (self.path(name), self.path("key"));
        std::fs::write(&certificate_path, certificate.pem()).unwrap();
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        (certificate_path, key_path)
    }

    /// A server's side of TLS, certified for an address. It may want to know its clients.
    fn acceptor(&self, address: &str, knows_clients: bool) -> TlsAcceptor {
        let (certificate, key) = self.certify(address);
        let provider = Arc::new(crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.path("ca")).unwrap())
            .unwrap();
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = match knows_clients {
            true => config.with_client_cert_verifier(clients.build().unwrap()),
            false => config.with_no_client_auth(),
        };
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_file(key).unwrap();
        TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()))
    }
}

fn over_tls(server: &ApiServer, ca: &Path) -> KubernetesSettings {
    KubernetesSettings {
        url: format!("https://{}", server.address),
        tls: Some(TlsFiles {
            ca: ca.to_owned(),
            identity: None,
        }),
        ..settings(server)
    }
}

#[tokio::test]
async fn a_certified_server_is_followed_over_tls() {
    let authority = Authority::new();
    let server = ApiServer::start(Some(authority.acceptor("127.0.0.1", false))).await;
    serve(&server, &["a", "b"]);
    let settings = over_tls(&server, &authority.path("ca"));

    let mut rig = Rig::start(server, settings);
    rig.until_served(&["a", "b"]).await;
    rig.server.watched(WORKERS, 1).await;
    rig.server.delete(WORKERS, "a");

    rig.until_served(&["b"]).await;
}

#[tokio::test]
async fn a_server_may_want_a_certificate() {
    let authority = Authority::new();
    let server = ApiServer::start(Some(authority.acceptor("127.0.0.1", true))).await;
    serve(&server, &["a"]);
    let mut settings = over_tls(&server, &authority.path("ca"));
    let tls = settings.tls.as_mut().unwrap();
    tls.identity = Some(authority.certify("relay"));

    let mut rig = Rig::start(server, settings);

    rig.until_served(&["a"]).await;
}

#[tokio::test]
async fn a_server_that_is_not_certified_is_told_nothing() {
    let (right, wrong) = (Authority::new(), Authority::new());
    for (ca, address, reason) in [
        (&wrong, "127.0.0.1", "invalid peer certificate"),
        (&right, "10.0.0.1", "not valid for name"),
    ] {
        let server = ApiServer::start(Some(right.acceptor(address, false))).await;
        serve(&server, &["a"]);
        let settings = over_tls(&server, &ca.path("ca"));

        let mut rig = Rig::start(server, settings);
        rig.until(|rig| rig.losses == 2).await;

        let lost = rig.lost.clone().unwrap();
        assert!(lost.contains(reason), "{lost}");
        assert!(rig.server.contents().seen.is_empty());
    }
}

#[tokio::test]
async fn a_file_without_a_certificate_is_named() {
    let authority = Authority::new();
    let other = authority.path("other");
    for (text, reason) in [("", "no certificate"), ("-----BEGIN NOTHING-----\n", "end")] {
        std::fs::write(&other, text).unwrap();
        let server = ApiServer::start(Some(authority.acceptor("127.0.0.1", false))).await;
        let settings = over_tls(&server, &other);

        let mut rig = Rig::start(server, settings);
        rig.until(|rig| rig.lost.is_some()).await;

        let lost = rig.lost.clone().unwrap();
        let (_, said) = lost.split_once(&format!("{}: ", other.display())).unwrap();
        assert!(said.contains(reason), "{lost}");
    }
}
