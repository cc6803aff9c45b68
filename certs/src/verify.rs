//! The checks on a peer's certificate, for both ends of a connection.
//!
//! A peer is accepted when its chain leads to our authority now, it has exactly one URI, that
//! is a SPIFFE identity of our trust domain, and its role is one we accept there. DNS names
//! are neither needed nor looked at.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError};
use rustls::{RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use thiserror::Error;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::credentials::{NodeCredentials, algorithms};
use crate::identity::{Identity, IdentityError, Role, TrustDomain};

/// Why a peer is not accepted. The peer is at fault; the connection is not made.
#[derive(Debug, Error)]
pub enum PeerError {
    /// The peer showed no certificate.
    #[error("the peer has no certificate")]
    NoCertificate,
    /// The certificate is not X.509.
    #[error("the peer's certificate cannot be read: {0}")]
    Unreadable(String),
    /// The chain does not lead to our authority, or does not hold now.
    #[error("the peer's certificate does not hold: {0}")]
    Chain(#[source] webpki::Error),
    /// The certificate has no URI, or more than one.
    #[error("the peer's certificate has {0} URIs instead of one")]
    Uris(usize),
    /// The URI is no identity.
    #[error("the peer's identity: {0}")]
    Identity(#[source] IdentityError),
    /// The peer belongs to another grid.
    #[error("{peer} is not of the trust domain {expected}")]
    TrustDomain {
        /// Our trust domain.
        expected: TrustDomain,
        /// Who the peer is.
        peer: Box<Identity>,
    },
    /// The peer's role has no business here.
    #[error("{peer} is not {expected}")]
    Role {
        /// Who is accepted here.
        expected: Accepts,
        /// Who the peer is.
        peer: Box<Identity>,
    },
}

/// A role without its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKind {
    /// The sidecar beside a frontend.
    Relay,
    /// The router in a region.
    Edge,
}

impl Role {
    /// Which of the two it is.
    pub fn kind(&self) -> RoleKind {
        match self {
            Self::Relay { .. } => RoleKind::Relay,
            Self::Edge { .. } => RoleKind::Edge,
        }
    }
}

/// Whose connections an endpoint makes or takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// Relays alone.
    Relays,
    /// Edges alone.
    Edges,
    /// Relays and edges.
    Both,
}

impl Accepts {
    /// Whether a peer of this role is accepted.
    pub fn includes(self, role: RoleKind) -> bool {
        match self {
            Self::Relays => role == RoleKind::Relay,
            Self::Edges => role == RoleKind::Edge,
            Self::Both => true,
        }
    }
}

impl fmt::Display for Accepts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relays => "a relay",
            Self::Edges => "an edge",
            Self::Both => "a relay or an edge",
        })
    }
}

/// A peer as its certificate shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub identity: Identity,
    /// When its certificate ends, and with it the reason to talk to it.
    pub not_after: SystemTime,
}

/// Reads who the peer of an established connection is, from the chain the handshake accepted.
pub fn peer_of(chain: &[CertificateDer<'_>]) -> Result<Peer, PeerError> {
    let leaf = chain.first().ok_or(PeerError::NoCertificate)?;
    let identity = identity_of(&parse(leaf)?)?;
    let (_, certificate) =
        X509Certificate::from_der(leaf).map_err(|e| PeerError::Unreadable(e.to_string()))?;
    Ok(Peer {
        identity,
        not_after: system_time(certificate.validity().not_after.timestamp()),
    })
}

/// The time a certificate means by seconds since 1970.
pub(crate) fn system_time(seconds: i64) -> SystemTime {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn parse<'a>(leaf: &'a CertificateDer<'_>) -> Result<EndEntityCert<'a>, PeerError> {
    EndEntityCert::try_from(leaf).map_err(|e| PeerError::Unreadable(e.to_string()))
}

fn identity_of(leaf: &EndEntityCert<'_>) -> Result<Identity, PeerError> {
    let uris: Vec<&str> = leaf.valid_uri_names().collect();
    match uris.as_slice() {
        [uri] => uri.parse().map_err(PeerError::Identity),
        _ => Err(PeerError::Uris(uris.len())),
    }
}

/// Checks a chain against our authority, and the peer against what is accepted.
pub(crate) fn check(
    chain: (&CertificateDer<'_>, &[CertificateDer<'_>]),
    roots: &RootCertStore,
    trust_domain: &TrustDomain,
    (usage, accepts): (KeyUsage, Accepts),
    now: UnixTime,
) -> Result<Identity, PeerError> {
    let (leaf, intermediates) = chain;
    let leaf = parse(leaf)?;
    let algorithms = algorithms().all;
    leaf.verify_for_usage(
        algorithms,
        &roots.roots,
        intermediates,
        now,
        usage,
        None,
        None,
    )
    .map_err(PeerError::Chain)?;
    let identity = identity_of(&leaf)?;
    if identity.trust_domain() != trust_domain {
        return Err(PeerError::TrustDomain {
            expected: trust_domain.clone(),
            peer: Box::new(identity),
        });
    }
    if !accepts.includes(identity.role().kind()) {
        return Err(PeerError::Role {
            expected: accepts,
            peer: Box::new(identity),
        });
    }
    Ok(identity)
}

/// Verifies peers by the node's own authority, as it is at the time of each handshake.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) credentials: NodeCredentials,
    pub(crate) accepts: Accepts,
}

impl Verifier {
    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: KeyUsage,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let own = self.credentials.current();
        let expected = (usage, self.accepts);
        let chain = (leaf, intermediates);
        check(
            chain,
            &own.roots,
            own.identity.trust_domain(),
            expected,
            now,
        )
        .map(drop)
        .map_err(to_rustls)
    }
}

/// Keeps those kinds that TLS has an alert for, so that the peer learns what is wrong with it.
fn to_rustls(error: PeerError) -> rustls::Error {
    let kind = match &error {
        PeerError::Chain(webpki::Error::CertExpired { time, not_after }) => {
            CertificateError::ExpiredContext {
                time: *time,
                not_after: *not_after,
            }
        }
        PeerError::Chain(webpki::Error::CertNotValidYet { time, not_before }) => {
            CertificateError::NotValidYetContext {
                time: *time,
                not_before: *not_before,
            }
        }
        PeerError::Chain(webpki::Error::UnknownIssuer) => CertificateError::UnknownIssuer,
        PeerError::Chain(webpki::Error::InvalidSignatureForPublicKey) => {
            CertificateError::BadSignature
        }
        PeerError::Unreadable(_) => CertificateError::BadEncoding,
        PeerError::NoCertificate => return rustls::Error::NoCertificatesPresented,
        PeerError::Chain(_)
        | PeerError::Uris(_)
        | PeerError::Identity(_)
        | PeerError::TrustDomain { .. }
        | PeerError::Role { .. } => CertificateError::Other(OtherError(Arc::new(Refusal(error)))),
    };
    kind.into()
}

/// Prints as a sentence where rustls would print a value's insides.
#[derive(Error)]
#[error("{0}")]
struct Refusal(#[source] PeerError);

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity, intermediates, KeyUsage::server_auth(), now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity, intermediates, KeyUsage::client_auth(), now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

#[cfg(test)]
mod tests;
