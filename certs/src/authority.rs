//! The certificate authority: makes the grid's root and its nodes' certificates.
//!
//! The authority's own certificate has the trust domain as its URI, so that whoever holds it
//! knows what it may certify. Leaves are for both ends of TLS, since relays and edges may dial
//! each other; what a node may do is said by its role, not by the key usage.

use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;
use x509_parser::asn1_rs::Tag;
use x509_parser::oid_registry::OID_X509_COMMON_NAME;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::credentials::{CredentialsError, NodeCredentials};
use crate::identity::{Identity, IdentityError, TrustDomain};
use crate::inspect::uri_names;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Ten years: the root is replaced by hand, and leaves by `issue`.
const AUTHORITY_DAYS: u32 = 3653;
/// A node whose clock is a little behind must accept a fresh certificate.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Why an authority cannot be made or used, or a certificate not be issued. Nothing was written.
#[derive(Debug, Error)]
pub enum AuthorityError {
    /// The library could not make a key or a certificate.
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The authority's certificate is not PEM or not X.509.
    #[error("the authority's certificate cannot be read: {0}")]
    Certificate(String),
    /// The authority's private key cannot be read.
    #[error("the authority's key cannot be read: {0}")]
    Key(rcgen::Error),
    /// The private key belongs to another certificate.
    #[error("the authority's key does not belong to its certificate")]
    KeyMismatch,
    /// The certificate is not of the form that `kvgrid-certs init` makes.
    #[error("the certificate is no authority of kvgrid: {0}")]
    Foreign(&'static str),
    /// The authority's URI is no trust domain.
    #[error("the authority's trust domain: {0}")]
    TrustDomain(#[source] IdentityError),
    /// The node belongs to another grid than the authority.
    #[error("the authority of {authority} does not certify {node}")]
    OtherTrustDomain {
        /// The authority's trust domain.
        authority: TrustDomain,
        /// The node's identity.
        node: Box<Identity>,
    },
    /// The end of the validity is too far away for a certificate.
    #[error("{0} days are more than a certificate can last")]
    Days(u32),
}

/// From when to when a certificate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    not_before: SystemTime,
    not_after: SystemTime,
}

impl Validity {
    /// From now, less a clock's error, for `days`.
    pub fn days(days: u32) -> Result<Self, AuthorityError> {
        let now = SystemTime::now();
        // Four-digit years end in 9999; a certificate cannot say more.
        if days > 365 * 1000 {
            return Err(AuthorityError::Days(days));
        }
        Ok(Self::between(now - CLOCK_SKEW, now + DAY * days))
    }

    /// From `not_before` to `not_after`, wherever they lie.
    pub fn between(not_before: SystemTime, not_after: SystemTime) -> Self {
        Self {
            not_before,
            not_after,
        }
    }
}

/// A node's certificate and its private key, fresh and in PEM.
#[derive(Clone)]
pub struct Leaf {
    /// Who it certifies.
    pub identity: Identity,
    /// The certificate.
    pub certificate_pem: String,
    /// The private key (PKCS #8); whoever holds it is the node.
    pub key_pem: String,
}

impl std::fmt::Debug for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leaf({})", self.identity)
    }
}

/// The root of one trust domain, with its private key.
pub struct CertAuthority {
    trust_domain: TrustDomain,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for CertAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CertAuthority({})", self.trust_domain)
    }
}

impl CertAuthority {
    /// Makes a new root for `trust_domain`, good for ten years.
    pub fn generate(trust_domain: TrustDomain) -> Result<Self, AuthorityError> {
        let name = format!("kvgrid authority of {trust_domain}");
        let mut params = authority_params(&name);
        set_validity(&mut params, Validity::days(AUTHORITY_DAYS)?);
        params.subject_alt_names = vec![uri_name(&trust_domain.uri())?];
        let key = KeyPair::generate()?;
        let certificate_pem = params.self_signed(&key)?.pem();
        Ok(Self {
            trust_domain,
            certificate_pem,
            issuer: Issuer::new(params, key),
        })
    }

    /// Takes up a root that was made before.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, AuthorityError> {
        let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|e| AuthorityError::Certificate(e.to_string()))?;
        let (_, certificate) = X509Certificate::from_der(&der)
            .map_err(|e| AuthorityError::Certificate(e.to_string()))?;
        let key = KeyPair::from_pem(key_pem).map_err(AuthorityError::Key)?;
        if certificate.public_key().raw != key.subject_public_key_info() {
            return Err(AuthorityError::KeyMismatch);
        }
        let (trust_domain, name) = read_authority(&certificate)?;
        Ok(Self {
            trust_domain,
            certificate_pem: certificate_pem.to_owned(),
            issuer: Issuer::new(authority_params(&name), key),
        })
    }

    /// The realm it certifies for.
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The root certificate, which every node needs.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The root's private key (PKCS #8), which no node needs.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Certifies a node with a fresh key.
    pub fn issue(&self, identity: &Identity, validity: Validity) -> Result<Leaf, AuthorityError> {
        if identity.trust_domain() != &self.trust_domain {
            return Err(AuthorityError::OtherTrustDomain {
                authority: self.trust_domain.clone(),
                node: Box::new(identity.clone()),
            });
        }
        let (certificate_pem, key_pem) =
            self.sign(identity.name(), &[identity.uri().as_str()], validity)?;
        Ok(Leaf {
            identity: identity.clone(),
            certificate_pem,
            key_pem,
        })
    }

    /// A fresh certificate for 90 days as a node's credentials, without files.
    pub fn credentials(&self, identity: &Identity) -> Result<NodeCredentials, CredentialsError> {
        let leaf = self.issue(identity, Validity::days(90)?)?;
        NodeCredentials::from_pem(
            leaf.certificate_pem.as_bytes(),
            leaf.key_pem.as_bytes(),
            self.certificate_pem.as_bytes(),
        )
    }

    /// Signs a leaf with any URIs, so that tests can make those that must be refused.
    pub(crate) fn sign(
        &self,
        name: &str,
        uris: &[&str],
        validity: Validity,
    ) -> Result<(String, String), AuthorityError> {
        let mut params = CertificateParams::default();
        set_validity(&mut params, validity);
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.subject_alt_names = uris
            .iter()
            .map(|uri| uri_name(uri))
            .collect::<Result<_, _>>()?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// What an issuer must have; must not change, or roots made before no longer match.
fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn set_validity(params: &mut CertificateParams, validity: Validity) {
    params.not_before = validity.not_before.into();
    params.not_after = validity.not_after.into();
}

fn uri_name(uri: &str) -> Result<SanType, rcgen::Error> {
    Ok(SanType::URI(Ia5String::try_from(uri)?))
}

fn read_authority(
    certificate: &X509Certificate<'_>,
) -> Result<(TrustDomain, String), AuthorityError> {
    if !certificate.is_ca() {
        return Err(AuthorityError::Foreign("it may not sign certificates"));
    }
    let uris = uri_names(certificate);
    let [uri] = uris.as_slice() else {
        return Err(AuthorityError::Foreign("it has no single trust domain"));
    };
    let trust_domain = TrustDomain::from_uri(uri).map_err(AuthorityError::TrustDomain)?;
    // Leaves name their issuer byte for byte, so its name must be one we can write again.
    let mut names = certificate.subject().iter_attributes();
    match (names.next(), names.next()) {
        (Some(name), None)
            if *name.attr_type() == OID_X509_COMMON_NAME
                && name.attr_value().tag() == Tag::Utf8String =>
        {
            let name = name
                .as_str()
                .map_err(|_| AuthorityError::Foreign("its name is no text"))?;
            Ok((trust_domain, name.to_owned()))
        }
        _ => Err(AuthorityError::Foreign(
            "its name is not a single common name",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> CertAuthority {
        CertAuthority::generate(TrustDomain::new("grid.example").unwrap()).unwrap()
    }

    #[test]
    fn an_authority_read_back_issues_certificates_the_first_one_vouches_for() {
        let first = authority();
        let again = CertAuthority::from_pem(first.certificate_pem(), &first.key_pem()).unwrap();
        let identity = "spiffe://grid.example/region/eu/edge/eu-1".parse().unwrap();

        let leaf = again.issue(&identity, Validity::days(1).unwrap()).unwrap();

        NodeCredentials::from_pem(
            leaf.certificate_pem.as_bytes(),
            leaf.key_pem.as_bytes(),
            first.certificate_pem().as_bytes(),
        )
        .unwrap();
    }

    #[test]
    fn a_key_of_another_authority_is_refused() {
        let (one, other) = (authority(), authority());

        let error = CertAuthority::from_pem(one.certificate_pem(), &other.key_pem()).unwrap_err();

        assert!(matches!(error, AuthorityError::KeyMismatch));
    }

    #[test]
    fn a_node_is_no_authority() {
        let identity = "spiffe://grid.example/region/eu/edge/eu-1".parse().unwrap();
        let leaf = authority()
            .issue(&identity, Validity::days(1).unwrap())
            .unwrap();

        let error = CertAuthority::from_pem(&leaf.certificate_pem, &leaf.key_pem).unwrap_err();

        assert!(matches!(error, AuthorityError::Foreign(_)));
    }

    #[test]
    fn a_node_of_another_grid_is_not_certified() {
        let identity = "spiffe://other.example/region/eu/edge/eu-1"
            .parse()
            .unwrap();

        let error = authority()
            .issue(&identity, Validity::days(1).unwrap())
            .unwrap_err();

        assert_eq!(
            error.to_string(),
            "the authority of grid.example does not certify \
             spiffe://other.example/region/eu/edge/eu-1"
        );
    }

    #[test]
    fn an_endless_validity_is_refused() {
        assert!(Validity::days(u32::MAX).is_err());
    }
}
