//! A node's identity: the SPIFFE URI in its certificate, read strictly.
//!
//! The path is key/value pairs: `spiffe://grid.example/country/de/region/eu/site/fra/relay/fra-1`
//! or `spiffe://grid.example/region/eu/edge/eu-1`. `site` and `relay`, or `region` and `edge`,
//! are required and say the role; a relay may have a `region`; every other pair is a label.
//! Pairs may come in any order, and are written labels first, in the order of their keys.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use kvgrid_core::label::{LabelError, Labels};
use kvgrid_core::{EdgeId, NameError, Region, RelayId, SiteId};
use thiserror::Error;

const SCHEME: &str = "spiffe://";
/// The SPIFFE standard's limit for the whole URI.
const MAX_URI_BYTES: usize = 2048;
const MAX_TRUST_DOMAIN_BYTES: usize = 255;

/// Why a text is no identity. Whoever issued the certificate is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// The text does not begin with `spiffe://`.
    #[error("{0:?} is no SPIFFE URI: it must begin with spiffe://")]
    Scheme(String),
    /// The text is longer than the SPIFFE standard allows.
    #[error("{0} bytes are too many for a SPIFFE URI, which has at most 2048")]
    TooLong(usize),
    /// The trust domain is empty, too long or has a character it may not have.
    #[error("{0:?} is no trust domain: it has 1 to 255 of a-z, 0-9, '.', '-' and '_'")]
    TrustDomain(String),
    /// The path has no segments, an empty one, or a key without a value.
    #[error("the path {0:?} is not made of /key/value pairs")]
    Pairs(String),
    /// A key stands twice in the path.
    #[error("the key {0:?} stands twice")]
    Repeated(String),
    /// Neither role's keys are there, or one of a role's two is missing.
    #[error("the path names no role: it needs site and relay, or region and edge")]
    NoRole,
    /// Keys of both roles are there.
    #[error("the path names two roles: it has keys of a relay and of an edge")]
    TwoRoles,
    /// A name in the path breaks the rules for its kind.
    #[error("{key}: {error}")]
    Name {
        /// The path's key.
        key: &'static str,
        /// What is wrong with its value.
        error: NameError,
    },
    /// A label's key or value breaks the rules for labels, or there are too many.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// A label has the name of a key that says the role.
    #[error("{0:?} is not free for a label: it says who the node is")]
    ReservedLabel(String),
}

/// The authority's realm: nodes of one grid share it, and nodes of another have none here.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TrustDomain(Arc<str>);

impl TrustDomain {
    /// Checks that `text` can be a trust domain.
    pub fn new(text: &str) -> Result<Self, IdentityError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-_".contains(&b);
        let length = 1..=MAX_TRUST_DOMAIN_BYTES;
        if length.contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(IdentityError::TrustDomain(text.to_owned()))
        }
    }

    /// The trust domain as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The URI that stands for the trust domain itself, as its authority's certificate has it.
    pub fn uri(&self) -> String {
        format!("{SCHEME}{self}")
    }

    /// Reads the trust domain out of an authority's URI, which has no path.
    pub fn from_uri(uri: &str) -> Result<Self, IdentityError> {
        match split(uri)? {
            (domain, "") => Self::new(domain),
            (_, path) => Err(IdentityError::Pairs(path.to_owned())),
        }
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrustDomain({self})")
    }
}

/// What a node does, and its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The sidecar beside a frontend.
    Relay {
        /// The site it speaks for.
        site: SiteId,
        /// Its own name, unique in the grid.
        relay: RelayId,
        /// Where the site is, if its certificate says so.
        region: Option<Region>,
    },
    /// The router in a region.
    Edge {
        /// The region it serves.
        region: Region,
        /// Its own name, unique in the grid.
        edge: EdgeId,
    },
}

/// Who a node is: what its certificate says, and all that others may believe of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    trust_domain: TrustDomain,
    role: Role,
    labels: Labels,
}

impl Identity {
    /// A relay of `site`, without region or labels.
    pub fn relay(trust_domain: TrustDomain, site: SiteId, relay: RelayId) -> Self {
        let role = Role::Relay {
            site,
            relay,
            region: None,
        };
        Self::checked(trust_domain, role)
    }

    /// An edge of `region`, without labels.
    pub fn edge(trust_domain: TrustDomain, region: Region, edge: EdgeId) -> Self {
        Self::checked(trust_domain, Role::Edge { region, edge })
    }

    fn checked(trust_domain: TrustDomain, role: Role) -> Self {
        Self {
            trust_domain,
            role,
            labels: Labels::new(),
        }
    }

    /// The same node in `region`.
    pub fn with_region(mut self, region: Region) -> Self {
        match &mut self.role {
            Role::Relay { region: place, .. } => *place = Some(region),
            Role::Edge { region: place, .. } => *place = region,
        }
        self
    }

    /// The same node with one more label, whose key and value are checked.
    pub fn with_label(mut self, key: &str, value: &str) -> Result<Self, IdentityError> {
        insert_label(&mut self.labels, key, value)?;
        Ok(self)
    }

    /// The grid it belongs to.
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// What it does, and its names.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Its own name: the relay's or the edge's id.
    pub fn name(&self) -> &str {
        match &self.role {
            Role::Relay { relay, .. } => relay.as_str(),
            Role::Edge { edge, .. } => edge.as_str(),
        }
    }

    /// Where it is, as far as its certificate says.
    pub fn region(&self) -> Option<&Region> {
        match &self.role {
            Role::Relay { region, .. } => region.as_ref(),
            Role::Edge { region, .. } => Some(region),
        }
    }

    /// The site and the relay's id, if it is a relay.
    pub fn as_relay(&self) -> Option<(&SiteId, &RelayId)> {
        match &self.role {
            Role::Relay { site, relay, .. } => Some((site, relay)),
            Role::Edge { .. } => None,
        }
    }

    /// The region and the edge's id, if it is an edge.
    pub fn as_edge(&self) -> Option<(&Region, &EdgeId)> {
        match &self.role {
            Role::Relay { .. } => None,
            Role::Edge { region, edge } => Some((region, edge)),
        }
    }

    /// All pairs that don't say the role; a relay's region is not among them.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The SPIFFE URI, as it stands in the certificate.
    pub fn uri(&self) -> String {
        self.to_string()
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(uri: &str) -> Result<Self, IdentityError> {
        let (domain, path) = split(uri)?;
        let trust_domain = TrustDomain::new(domain)?;
        let mut pairs = pairs(path)?;
        let role = take_role(&mut pairs)?;
        let mut labels = Labels::new();
        for (key, value) in pairs {
            insert_label(&mut labels, key, value)?;
        }
        Ok(Self {
            trust_domain,
            role,
            labels,
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.trust_domain)?;
        for (key, value) in self.labels.iter() {
            write!(f, "/{key}/{value}")?;
        }
        if let Some(region) = self.region() {
            write!(f, "/region/{region}")?;
        }
        match &self.role {
            Role::Relay { site, relay, .. } => write!(f, "/site/{site}/relay/{relay}"),
            Role::Edge { edge, .. } => write!(f, "/edge/{edge}"),
        }
    }
}

/// Cuts a URI into trust domain and path, the latter empty or with its leading slash.
fn split(uri: &str) -> Result<(&str, &str), IdentityError> {
    if uri.len() > MAX_URI_BYTES {
        return Err(IdentityError::TooLong(uri.len()));
    }
    let rest = uri
        .strip_prefix(SCHEME)
        .ok_or_else(|| IdentityError::Scheme(uri.to_owned()))?;
    Ok(rest.split_at(rest.find('/').unwrap_or(rest.len())))
}

fn pairs(path: &str) -> Result<BTreeMap<&str, &str>, IdentityError> {
    let malformed = || IdentityError::Pairs(path.to_owned());
    let mut segments = path.strip_prefix('/').ok_or_else(malformed)?.split('/');
    let mut pairs = BTreeMap::new();
    while let Some(key) = segments.next() {
        let value = segments.next().ok_or_else(malformed)?;
        // SPIFFE forbids the dot segments, which would pass as names below.
        if [key, value].iter().any(|s| s.is_empty() || is_dots(s)) {
            return Err(malformed());
        }
        if pairs.insert(key, value).is_some() {
            return Err(IdentityError::Repeated(key.to_owned()));
        }
    }
    Ok(pairs)
}

fn is_dots(segment: &str) -> bool {
    [".", ".."].contains(&segment)
}

fn take_role(pairs: &mut BTreeMap<&str, &str>) -> Result<Role, IdentityError> {
    let region = take(pairs, "region", Region::new)?;
    let edge = take(pairs, "edge", EdgeId::new)?;
    let site = take(pairs, "site", SiteId::new)?;
    let relay = take(pairs, "relay", RelayId::new)?;
    match (edge, site, relay) {
        (None, Some(site), Some(relay)) => Ok(Role::Relay {
            site,
            relay,
            region,
        }),
        (Some(edge), None, None) => {
            let region = region.ok_or(IdentityError::NoRole)?;
            Ok(Role::Edge { region, edge })
        }
        (Some(_), ..) => Err(IdentityError::TwoRoles),
        (None, ..) => Err(IdentityError::NoRole),
    }
}

fn take<T>(
    pairs: &mut BTreeMap<&str, &str>,
    key: &'static str,
    parse: fn(&str) -> Result<T, NameError>,
) -> Result<Option<T>, IdentityError> {
    pairs
        .remove(key)
        .map(parse)
        .transpose()
        .map_err(|error| IdentityError::Name { key, error })
}

fn insert_label(labels: &mut Labels, key: &str, value: &str) -> Result<(), IdentityError> {
    if ["site", "relay", "region", "edge"].contains(&key) {
        return Err(IdentityError::ReservedLabel(key.to_owned()));
    }
    if labels.get(key).is_some() {
        return Err(IdentityError::Repeated(key.to_owned()));
    }
    // A dot segment is a label's text, but would change the meaning of a path.
    if let Some(dots) = [key, value].into_iter().find(|text| is_dots(text)) {
        return Err(LabelError::Text(dots.to_owned()).into());
    }
    labels.insert(key, value)?;
    Ok(())
}

#[cfg(test)]
mod tests;
