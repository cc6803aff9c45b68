//! What a certificate file says, for people.

use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::files::{self, FileError};
use crate::identity::Identity;
use crate::verify::system_time;

/// Why a file cannot be shown.
#[derive(Debug, Error)]
pub enum InspectError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has no certificate, or one that is broken.
    #[error("{place} has no certificate to show: {error}")]
    Certificate {
        /// The file.
        place: String,
        /// What is wrong.
        error: String,
    },
}

/// What one certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its subject's name, which nodes don't look at.
    pub subject: String,
    /// Its issuer's name.
    pub issuer: String,
    /// Its URIs: one for a node, and for an authority its trust domain.
    pub uris: Vec<String>,
    /// Who it is for, if a node would accept the URI.
    pub identity: Option<Identity>,
    /// Whether it may sign others.
    pub is_authority: bool,
    /// Its first second.
    pub not_before: SystemTime,
    /// Its last second.
    pub not_after: SystemTime,
}

/// Reads all certificates in a PEM file.
pub fn inspect_file(path: &Path) -> Result<Vec<Certificate>, InspectError> {
    let text = files::read(path)?;
    let failed = |error: String| InspectError::Certificate {
        place: path.display().to_string(),
        error,
    };
    let certificates = CertificateDer::pem_slice_iter(&text)
        .map(|der| read(&der.map_err(|e| failed(e.to_string()))?).map_err(failed))
        .collect::<Result<Vec<_>, _>>()?;
    if certificates.is_empty() {
        return Err(failed("no PEM section is one".into()));
    }
    Ok(certificates)
}

fn read(der: &CertificateDer<'_>) -> Result<Certificate, String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|e| e.to_string())?;
    let uris = uri_names(&certificate);
    let identity = match uris.as_slice() {
        [uri] => uri.parse().ok(),
        _ => None,
    };
    Ok(Certificate {
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
        uris,
        identity,
        is_authority: certificate.is_ca(),
        not_before: system_time(certificate.validity().not_before.timestamp()),
        not_after: system_time(certificate.validity().not_after.timestamp()),
    })
}

/// All URIs among a certificate's alternative names.
pub(crate) fn uri_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(uri).collect()
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.identity {
            _ if self.is_authority => "authority".to_owned(),
            Some(identity) => match (identity.as_relay(), identity.as_edge()) {
                (Some((site, relay)), _) => format!("relay {relay} of site {site}"),
                (_, Some((region, edge))) => format!("edge {edge} of region {region}"),
                (None, None) => "node".to_owned(),
            },
            None => "no node of a grid".to_owned(),
        };
        writeln!(f, "kind:       {kind}")?;
        for uri in &self.uris {
            writeln!(f, "uri:        {uri}")?;
        }
        writeln!(f, "subject:    {}", self.subject)?;
        writeln!(f, "issuer:     {}", self.issuer)?;
        writeln!(f, "not before: {}", date(self.not_before))?;
        write!(f, "not after:  {}", date(self.not_after))
    }
}

fn date(at: SystemTime) -> String {
    OffsetDateTime::from(at)
        .format(&Rfc3339)
        .unwrap_or_else(|_| "beyond the calendar".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{CertAuthority, Validity};
    use crate::identity::TrustDomain;

    fn shown(content: &str) -> Result<String, InspectError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it.pem");
        std::fs::write(&path, content).unwrap();
        inspect_file(&path).map(|all| all[0].to_string())
    }

    #[test]
    fn a_leaf_shows_role_uri_and_dates() {
        let grid = TrustDomain::new("grid.example").unwrap();
        let uri = "spiffe://grid.example/region/eu/site/fra/relay/fra-1";
        let validity = Validity::between(system_time(0), system_time(86_400));
        let authority = CertAuthority::generate(grid).unwrap();
        let leaf = authority.issue(&uri.parse().unwrap(), validity).unwrap();

        let text = shown(&leaf.certificate_pem).unwrap();

        assert_eq!(
            text,
            "kind:       relay fra-1 of site fra\n\
             uri:        spiffe://grid.example/region/eu/site/fra/relay/fra-1\n\
             subject:    CN=fra-1\n\
             issuer:     CN=kvgrid authority of grid.example\n\
             not before: 1970-01-01T00:00:00Z\n\
             not after:  1970-01-02T00:00:00Z"
        );
    }

    #[test]
    fn a_key_has_nothing_to_show() {
        let grid = TrustDomain::new("grid.example").unwrap();
        let key = CertAuthority::generate(grid).unwrap().key_pem();

        assert!(matches!(shown(&key), Err(InspectError::Certificate { .. })));
    }
}
