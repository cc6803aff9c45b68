//! A node's own certificate, key and authority, and the TLS configurations made of them.
//!
//! Handshakes look the credentials up when they happen, so a renewed certificate or a second
//! authority takes effect with [`NodeCredentials::reload`], without a new endpoint. Sessions
//! are never resumed: a resumed one would skip the check of a certificate that has ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use ring::hmac;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use thiserror::Error;
use webpki::KeyUsage;

use crate::authority::AuthorityError;
use crate::files::{self, FileError};
use crate::identity::Identity;
use crate::verify::{Accepts, PeerError, Verifier, check, peer_of};

/// The server name in every handshake: nodes have no host names, and TLS wants one.
pub const TLS_NAME: &str = "kvgrid";

/// Why a node's credentials cannot be used. A reload that fails keeps those in use.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A text has no PEM of the kind that was asked for.
    #[error("no {what} in {place}: {error}")]
    Pem {
        /// The kind: certificate or private key.
        what: &'static str,
        /// The file, or what the text is for.
        place: String,
        /// What the PEM reader says.
        error: String,
    },
    /// The private key is of an unknown kind, or belongs to another certificate.
    #[error("the private key does not fit the certificate: {0}")]
    Key(#[source] rustls::Error),
    /// An authority's certificate cannot anchor trust.
    #[error("the authority's certificate cannot be used: {0}")]
    Authority(#[source] rustls::Error),
    /// Our own certificate would not be accepted by our own rules.
    #[error("the node's own certificate: {0}")]
    Own(#[source] PeerError),
    /// The renewed certificate is for somebody else; a node keeps its identity while it runs.
    #[error("the certificate is now for {found}, but this node runs as {running}")]
    Changed {
        /// Who the node is.
        running: Box<Identity>,
        /// Who the new certificate is for.
        found: Box<Identity>,
    },
    /// The credentials were made in memory, and have no files to load again.
    #[error("these credentials have no files")]
    NoFiles,
    /// The authority could not issue them.
    #[error(transparent)]
    Issue(#[from] AuthorityError),
}

/// Where a node's certificate, its key and the authority's certificate are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The node's certificate, and intermediate ones after it.
    pub cert: PathBuf,
    /// The node's private key.
    pub key: PathBuf,
    /// The authority's certificates; two during its rotation.
    pub ca: PathBuf,
}

/// Which end of TLS a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The end that dials.
    Client,
    /// The end that is dialled.
    Server,
}

/// One state of the files.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) identity: Identity,
    pub(crate) roots: RootCertStore,
    key: Arc<CertifiedKey>,
    /// Keyed by the private key.
    secrets: hmac::Key,
    not_after: SystemTime,
}

#[derive(Debug)]
struct Shared {
    files: Option<IdentityFiles>,
    loaded: ArcSwap<Loaded>,
}

/// A node's credentials; clones share them, and see each reload.
#[derive(Clone, Debug)]
pub struct NodeCredentials(Arc<Shared>);

impl NodeCredentials {
    /// Reads the three files and checks that they belong together.
    pub fn load(files: &IdentityFiles) -> Result<Self, CredentialsError> {
        let loaded = load(files)?;
        Ok(Self::new(Some(files.clone()), loaded))
    }

    /// Takes certificate, key and authority as PEM texts.
    pub fn from_pem(cert: &[u8], key: &[u8], ca: &[u8]) -> Result<Self, CredentialsError> {
        let texts = [
            (cert, "the certificate".into()),
            (key, "the key".into()),
            (ca, "the authority".into()),
        ];
        Ok(Self::new(None, parse(texts)?))
    }

    fn new(files: Option<IdentityFiles>, loaded: Loaded) -> Self {
        Self(Arc::new(Shared {
            files,
            loaded: ArcSwap::from_pointee(loaded),
        }))
    }

    /// Reads the files again; handshakes from now on use what they say.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        let files = self.0.files.as_ref().ok_or(CredentialsError::NoFiles)?;
        let loaded = load(files)?;
        let running = &self.current().identity;
        if loaded.identity != *running {
            return Err(CredentialsError::Changed {
                running: Box::new(running.clone()),
                found: Box::new(loaded.identity),
            });
        }
        self.0.loaded.store(Arc::new(loaded));
        Ok(())
    }

    /// Who this node is.
    pub fn identity(&self) -> Identity {
        self.current().identity.clone()
    }

    /// When the node's certificate ends.
    pub fn not_after(&self) -> SystemTime {
        self.current().not_after
    }

    /// A secret of this node's own, the same in all its lives with the same private key.
    pub fn secret(&self, purpose: &str) -> [u8; 32] {
        let tag = hmac::sign(&self.current().secrets, purpose.as_bytes());
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    pub(crate) fn current(&self) -> Arc<Loaded> {
        self.0.loaded.load_full()
    }

    /// TLS for the end that is dialled, with the protocols it speaks.
    pub fn server_config(&self, alpn: &[&[u8]], accepts: Accepts) -> ServerConfig {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("ring has TLS 1.3")
            .with_client_cert_verifier(self.verifier(accepts))
            .with_cert_resolver(Arc::new(OwnCertificate(self.clone())));
        config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
        config.send_tls13_tickets = 0;
        config
    }

    /// TLS for the end that dials, to speak one protocol.
    pub fn client_config(&self, alpn: &[u8], accepts: Accepts) -> ClientConfig {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("ring has TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(accepts))
            .with_client_cert_resolver(Arc::new(OwnCertificate(self.clone())));
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = Resumption::disabled();
        config
    }

    fn verifier(&self, accepts: Accepts) -> Arc<Verifier> {
        Arc::new(Verifier {
            credentials: self.clone(),
            accepts,
        })
    }
}

/// Answers both ends' question for a certificate with the one in use now.
#[derive(Debug)]
struct OwnCertificate(NodeCredentials);

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current().key))
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current().key))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The signatures that certificates and handshakes may have.
pub(crate) fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::ring::default_provider().signature_verification_algorithms
}

fn load(files: &IdentityFiles) -> Result<Loaded, CredentialsError> {
    let read = |path: &Path| files::read(path).map(|text| (text, path.display().to_string()));
    let (cert, key, ca) = (read(&files.cert)?, read(&files.key)?, read(&files.ca)?);
    parse([(&cert.0, cert.1), (&key.0, key.1), (&ca.0, ca.1)])
}

/// Each text comes with the place to name when it is wrong.
fn parse([cert, key, ca]: [(&[u8], String); 3]) -> Result<Loaded, CredentialsError> {
    let chain = certificates(cert)?;
    let key =
        PrivateKeyDer::from_pem_slice(key.0).map_err(|e| pem_error("private key", key.1, &e))?;
    let secrets = hmac::Key::new(hmac::HMAC_SHA256, key.secret_der());
    let key = CertifiedKey::from_der(chain, key, &provider()).map_err(CredentialsError::Key)?;
    let mut roots = RootCertStore::empty();
    for root in certificates(ca)? {
        roots.add(root).map_err(CredentialsError::Authority)?;
    }
    let peer = peer_of(&key.cert).map_err(CredentialsError::Own)?;
    check_own(&key.cert, &roots, &peer.identity).map_err(CredentialsError::Own)?;
    Ok(Loaded {
        identity: peer.identity,
        roots,
        key: Arc::new(key),
        secrets,
        not_after: peer.not_after,
    })
}

/// A certificate that peers will refuse is better refused here, where somebody looks.
fn check_own(
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    own: &Identity,
) -> Result<(), PeerError> {
    let (leaf, rest) = chain.split_first().ok_or(PeerError::NoCertificate)?;
    for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
        let expected = (usage, Accepts::Both);
        check(
            (leaf, rest),
            roots,
            own.trust_domain(),
            expected,
            UnixTime::now(),
        )?;
    }
    Ok(())
}

fn certificates(
    (text, place): (&[u8], String),
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match certificates {
        Ok(none) if none.is_empty() => Err(CredentialsError::Pem {
            what: "certificate",
            place,
            error: "it has none".into(),
        }),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(pem_error("certificate", place, &error)),
    }
}

fn pem_error(
    what: &'static str,
    place: String,
    error: &rustls_pki_types::pem::Error,
) -> CredentialsError {
    CredentialsError::Pem {
        what,
        place,
        error: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Validity;
    use crate::directory::{init, issue};
    use crate::files::Overwrite;
    use crate::identity::TrustDomain;

    impl NodeCredentials {
        /// A certificate that breaks the rules, with the authority of a node that keeps them.
        pub(crate) fn unchecked(cert: &[u8], key: &[u8], good: &Self) -> Self {
            let chain = certificates((cert, String::new())).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key).unwrap();
            let key = CertifiedKey::from_der(chain, key, &provider()).unwrap();
            let good = good.current();
            let loaded = Loaded {
                identity: good.identity.clone(),
                roots: good.roots.clone(),
                key: Arc::new(key),
                secrets: good.secrets.clone(),
                not_after: good.not_after,
            };
            Self::new(None, loaded)
        }
    }

    const EDGE: &str = "spiffe://grid.example/region/eu/edge/eu-1";

    /// A directory with an authority and an edge's leaf, as an operator has it.
    fn node(dir: &Path) -> IdentityFiles {
        let grid = TrustDomain::new("grid.example").unwrap();
        init(dir, grid, Overwrite::Refuse).unwrap();
        renew(dir, EDGE, 10)
    }

    fn renew(dir: &Path, uri: &str, days: u32) -> IdentityFiles {
        let validity = Validity::days(days).unwrap();
        let paths = issue(dir, &uri.parse().unwrap(), validity, Overwrite::Force).unwrap();
        IdentityFiles {
            cert: paths.cert,
            key: paths.key,
            ca: dir.join("ca.pem"),
        }
    }

    #[test]
    fn a_reload_takes_up_a_renewed_certificate_in_all_clones() {
        let dir = tempfile::tempdir().unwrap();
        let credentials = NodeCredentials::load(&node(dir.path())).unwrap();
        let clone = credentials.clone();
        let before = clone.not_after();
        renew(dir.path(), EDGE, 20);

        credentials.reload().unwrap();

        assert!(clone.not_after() > before);
    }

    #[test]
    fn a_reload_that_fails_keeps_what_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let files = node(dir.path());
        let credentials = NodeCredentials::load(&files).unwrap();
        let before = credentials.not_after();
        std::fs::write(&files.cert, "half a cert").unwrap();

        let error = credentials.reload().unwrap_err().to_string();

        assert!(error.starts_with("no certificate in "), "{error}");
        assert_eq!(credentials.not_after(), before);
    }

    #[test]
    fn a_reload_does_not_make_a_node_another() {
        let dir = tempfile::tempdir().unwrap();
        let credentials = NodeCredentials::load(&node(dir.path())).unwrap();
        renew(dir.path(), "spiffe://grid.example/region/us/edge/eu-1", 10);

        let error = credentials.reload().unwrap_err();

        assert!(matches!(error, CredentialsError::Changed { .. }), "{error}");
    }

    #[test]
    fn a_secret_is_the_same_in_all_lives_of_a_node_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let files = node(dir.path());
        let secret = |purpose| NodeCredentials::load(&files).unwrap().secret(purpose);
        let one = secret("one");

        assert_eq!(secret("one"), one);
        assert_ne!(secret("two"), one);
        renew(dir.path(), EDGE, 10);
        assert_ne!(secret("one"), one);
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let files = node(dir.path());
        let other = renew(dir.path(), "spiffe://grid.example/region/eu/edge/eu-2", 10);

        let mixed = IdentityFiles {
            key: other.key,
            ..files
        };

        assert!(matches!(
            NodeCredentials::load(&mixed),
            Err(CredentialsError::Key(_))
        ));
    }
}
