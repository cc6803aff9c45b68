//! Dynamo sites: where they register themselves, and by what they publish.

use std::time::Duration;

use http::Uri;
use kvgrid_runtime::config::ConfigError;

use super::kubernetes::{self, InCluster};
use super::{at_most, not_shorter, wrong};
use crate::config::{DiscoveryKind, DiscoveryTable, NatsTable, SourceTable, TlsTable};
use crate::discovery::{DiscoverySettings, EtcdSettings, FileSettings, Scope, Store};
use crate::secret::{Secret, TlsFiles};
use crate::sources::dynamo_events::{NatsLogin, NatsSettings};

/// How often a store of files is read. A worker may have requests as soon as it is registered;
/// what it caches before the relay has seen it is never told again.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long entries in files may be untouched, as in Dynamo itself.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// What a store said last may be as old as it takes a dead worker's lease in etcd to end.
pub(super) const STALE_AFTER: Duration = Duration::from_secs(30);

/// Most members of an etcd, and most servers of a NATS.
const MEMBERS: usize = 64;

/// How a Dynamo site is found and heard.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DynamoSettings {
    /// Where its processes register themselves.
    pub(crate) discovery: DiscoverySettings,
    /// The NATS servers that they publish by, if they do.
    pub(crate) nats: Option<NatsSettings>,
}

/// Takes a source's word for it, and writes down what was left out.
pub(super) fn resolve(source: &mut SourceTable) -> Result<DynamoSettings, ConfigError> {
    Ok(DynamoSettings {
        discovery: discovery(source)?,
        nats: source.nats.as_ref().map(nats).transpose()?,
    })
}

/// Where the source's site meets, and which part of it is meant.
pub(super) fn discovery(source: &mut SourceTable) -> Result<DiscoverySettings, ConfigError> {
    let discovery = source.discovery.as_mut();
    let discovery = discovery.ok_or_else(|| wrong("source.discovery", "is missing"))?;
    refuse_others_keys(discovery)?;
    let store = match discovery.kind {
        DiscoveryKind::File => Store::Files(files(discovery)?),
        DiscoveryKind::Etcd => Store::Etcd(etcd(discovery)?),
        DiscoveryKind::Kubernetes => {
            Store::Kubernetes(kubernetes::resolve(discovery, &InCluster::here())?)
        }
    };
    let namespace = source.namespace.clone().filter(|name| !name.is_empty());
    let namespace = namespace.ok_or_else(|| wrong("source.namespace", "is missing or empty"))?;
    let scope = Scope {
        namespace,
        component: source.component.clone(),
        endpoint: source.endpoint.clone(),
    };
    Ok(DiscoverySettings { store, scope })
}

/// A key that another kind of discovery would read is a mistake here, not a wish.
fn refuse_others_keys(discovery: &DiscoveryTable) -> Result<(), ConfigError> {
    use DiscoveryKind::{Etcd, File, Kubernetes};
    let DiscoveryTable {
        kind,
        root,
        interval,
        dead_after,
        endpoints,
        user,
        password,
        url,
        token,
        namespace,
        mode,
        selector,
        tls,
        stale_after,
    } = discovery;
    let keys: [(&str, bool, &[DiscoveryKind]); 13] = [
        ("root", root.is_some(), &[File]),
        ("interval", interval.is_some(), &[File]),
        ("dead_after", dead_after.is_some(), &[File]),
        ("endpoints", !endpoints.is_empty(), &[Etcd]),
        ("user", user.is_some(), &[Etcd]),
        ("password", password.is_some(), &[Etcd]),
        ("url", url.is_some(), &[Kubernetes]),
        ("token", token.is_some(), &[Kubernetes]),
        ("namespace", namespace.is_some(), &[Kubernetes]),
        ("mode", mode.is_some(), &[Kubernetes]),
        ("selector", selector.is_some(), &[Kubernetes]),
        ("tls", tls.is_some(), &[Etcd, Kubernetes]),
        ("stale_after", stale_after.is_some(), &[Etcd, Kubernetes]),
    ];
    let is_others =
        |(_, written, of): &&(&str, bool, &[DiscoveryKind])| *written && !of.contains(kind);
    match keys.iter().find(is_others) {
        None => Ok(()),
        Some((key, _, of)) => {
            let of: Vec<_> = of.iter().map(|kind| format!("{:?}", kind.name())).collect();
            let reason = format!("is for discovery of kind {}", of.join(" or "));
            Err(wrong(&format!("source.discovery.{key}"), reason))
        }
    }
}

fn files(discovery: &mut DiscoveryTable) -> Result<FileSettings, ConfigError> {
    let root = discovery.root.clone();
    let settings = FileSettings {
        root: root.ok_or_else(|| wrong("source.discovery.root", "is missing"))?,
        interval: *discovery.interval.get_or_insert(INTERVAL),
        dead_after: *discovery.dead_after.get_or_insert(DEAD_AFTER),
    };
    not_shorter("source.discovery.interval", settings.interval)?;
    not_shorter("source.discovery.dead_after", settings.dead_after)?;
    Ok(settings)
}

fn etcd(discovery: &mut DiscoveryTable) -> Result<EtcdSettings, ConfigError> {
    let key = "source.discovery.endpoints";
    if discovery.endpoints.is_empty() {
        return Err(wrong(key, "is missing or empty"));
    }
    at_most(key, discovery.endpoints.len(), MEMBERS)?;
    let mut encrypted = Vec::new();
    for endpoint in &discovery.endpoints {
        encrypted.push(scheme(key, endpoint, ["http", "https"])? == "https");
    }
    let tls = tls("source.discovery.tls", discovery.tls.as_ref())?;
    if encrypted.iter().any(|is| *is != tls.is_some()) {
        return Err(wrong(
            "source.discovery.tls",
            "is there without https endpoints, or the other way round",
        ));
    }
    let stale_after = *discovery.stale_after.get_or_insert(STALE_AFTER);
    not_shorter("source.discovery.stale_after", stale_after)?;
    Ok(EtcdSettings {
        endpoints: discovery.endpoints.clone(),
        user: user(
            "source.discovery.password",
            discovery.user.as_ref(),
            discovery.password.as_ref(),
        )?,
        tls,
        stale_after,
    })
}

fn nats(table: &NatsTable) -> Result<NatsSettings, ConfigError> {
    let key = "source.nats.servers";
    if table.servers.is_empty() {
        return Err(wrong(key, "is missing or empty"));
    }
    at_most(key, table.servers.len(), MEMBERS)?;
    for server in &table.servers {
        scheme(key, server, ["nats", "tls"])?;
    }
    let user = user(
        "source.nats.password",
        table.user.as_ref(),
        table.password.as_ref(),
    )?;
    let user = user.map(|(name, password)| NatsLogin::User { name, password });
    let token = table.token.clone().map(NatsLogin::Token);
    let credentials = table.credentials.clone().map(NatsLogin::Credentials);
    let mut logins = [user, token, credentials].into_iter().flatten();
    let login = logins.next();
    if logins.next().is_some() {
        let reason = "says in more than one way who the relay is: user, token, credentials";
        return Err(wrong("source.nats", reason));
    }
    Ok(NatsSettings {
        servers: table.servers.clone(),
        login,
        tls: tls("source.nats.tls", table.tls.as_ref())?,
    })
}

fn user(
    key: &str,
    name: Option<&String>,
    password: Option<&Secret>,
) -> Result<Option<(String, Secret)>, ConfigError> {
    match (name, password) {
        (None, None) => Ok(None),
        (Some(name), Some(password)) => Ok(Some((name.clone(), password.clone()))),
        _ => Err(wrong(
            key,
            "is there without a user, or the other way round",
        )),
    }
}

pub(super) fn tls(key: &str, table: Option<&TlsTable>) -> Result<Option<TlsFiles>, ConfigError> {
    let Some(table) = table else { return Ok(None) };
    let identity = match (&table.cert, &table.key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        _ => {
            return Err(wrong(
                key,
                "has a certificate without its key, or a key alone",
            ));
        }
    };
    Ok(Some(TlsFiles {
        ca: table.ca.clone(),
        identity,
    }))
}

/// The scheme of an address that has a host and a port and nothing else; no password above all.
pub(super) fn scheme<'a>(
    key: &str,
    address: &str,
    schemes: [&'a str; 2],
) -> Result<&'a str, ConfigError> {
    let uri: Option<Uri> = address.parse().ok();
    let found = uri.as_ref().and_then(|uri| {
        let authority = uri.authority()?;
        let alone = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        let plain = !authority.as_str().contains('@') && authority.port_u16()? > 0;
        (alone && plain && !authority.host().is_empty()).then(|| uri.scheme_str())?
    });
    let found = found.and_then(|found| schemes.into_iter().find(|scheme| *scheme == found));
    found.ok_or_else(|| {
        // Not the address itself: it may have a password in it.
        let [one, other] = schemes;
        let reason =
            format!("has one that is not of the form {one}://host:port or {other}://host:port");
        wrong(key, reason)
    })
}
