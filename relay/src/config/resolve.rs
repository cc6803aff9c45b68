//! From what is written to what is meant.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use kvgrid_core::ModelName;
use kvgrid_core::membership::{Addresses, Scope};
use kvgrid_runtime::config::ConfigError;

use super::{ConfigFile, Connect, EdgesTable};
use crate::proxy::Allowed;

pub(crate) use card::CardSettings;
pub(crate) use source::{Feeds, PeerSettings, SourceSettings};

mod card;
mod dynamo;
mod kubernetes;
mod source;

/// Most seeds; all other relays are learnt from one that is alive.
const SEEDS: usize = 64;

/// Most addresses of edges.
const EDGES: usize = 64;

/// Most metrics pages.
const PAGES: usize = 1024;

/// Most requests at a time that may be configured.
const MAX_REQUESTS: usize = 1 << 20;

/// The shortest of all intervals and waits: below it a relay would do little else.
const SHORTEST: Duration = Duration::from_millis(10);

/// The configuration, checked. What it was read from is in it, completed.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// What was written, with what was left out.
    pub(crate) file: ConfigFile,
    /// Where others reach it.
    pub(crate) addresses: Addresses,
    /// Networks that it reaches, the best first.
    pub(crate) scopes: Vec<Scope>,
    /// The frontend's address, without a path.
    pub(crate) frontend: Uri,
    /// What edges may ask of it.
    pub(crate) allowed: Allowed,
    /// How to make the card, if there is one.
    pub(crate) card: Option<CardSettings>,
    /// The sources, in the order written.
    pub(crate) sources: Vec<SourceSettings>,
    /// Metrics pages.
    pub(crate) load_pages: Vec<Uri>,
    /// Where the admin server listens.
    pub(crate) admin: SocketAddr,
}

impl ConfigFile {
    /// Checks everything that can be checked without touching the system, and fills in what
    /// was left out.
    pub(crate) fn resolve(self) -> Result<Config, ConfigError> {
        let mut file = self;
        file.check_waits()?;
        let (addresses, scopes) = file.reach()?;
        file.edges.check()?;
        file.transport.checked()?;
        let frontend = http_uri("frontend.url", &file.frontend.url)?;
        if !matches!(frontend.path(), "" | "/") || frontend.query().is_some() {
            return Err(wrong("frontend.url", "has a path, which requests bring"));
        }
        let allowed = match &file.frontend.allow {
            None => Ok(Allowed::default()),
            Some(texts) => Allowed::parse(texts.iter().map(String::as_str)),
        };
        let allowed = allowed.map_err(|error| wrong("frontend.allow", error))?;
        let sources = source::resolve_all(&mut file)?;
        let card = file.card.as_mut();
        let card = card.map(|table| CardSettings::of(table, &sources, &file.state));
        let card = card.transpose()?;
        at_most("load.urls", file.load.urls.len(), PAGES)?;
        let pages = file.load.urls.iter();
        let load_pages = pages
            .map(|url| http_uri("load.urls", url))
            .collect::<Result<_, _>>()?;
        let default = SocketAddr::from((Ipv4Addr::LOCALHOST, 9441));
        let admin = *file.admin.listen.get_or_insert(default);
        Ok(Config {
            file,
            addresses,
            scopes,
            frontend,
            allowed,
            card,
            sources,
            load_pages,
            admin,
        })
    }

    /// Where others reach the relay, and whom it reaches.
    fn reach(&self) -> Result<(Addresses, Vec<Scope>), ConfigError> {
        let advertised = self.advertise.iter().flat_map(|(scope, addresses)| {
            let address = |address| (scope.as_str(), String::as_str(address));
            addresses.iter().map(address)
        });
        let addresses = Addresses::new(advertised).map_err(|error| wrong("advertise", error))?;
        let scopes = self.gossip.scopes.iter().map(|name| Scope::new(name));
        let scopes: Result<_, _> = scopes.collect();
        let scopes = scopes.map_err(|error| wrong("gossip.scopes", error))?;
        at_most("gossip.seeds", self.gossip.seeds.len(), SEEDS)?;
        for seed in &self.gossip.seeds {
            let checked = Addresses::new([("seed", seed.as_str())]);
            checked.map_err(|error| wrong("gossip.seeds", error))?;
        }
        Ok((addresses, scopes))
    }

    fn check_waits(&self) -> Result<(), ConfigError> {
        not_shorter("frontend.check_interval", self.frontend.check_interval)?;
        not_shorter("frontend.connect_timeout", self.frontend.connect_timeout)?;
        not_shorter("load.interval", self.load.interval)?;
        if self.load.max_requests == Some(0) {
            return Err(wrong("load.max_requests", "must be above 0"));
        }
        if self.limits.entries == 0 || u32::try_from(self.limits.entries).is_err() {
            return Err(wrong("limits.entries", "is not between 1 and 4294967295"));
        }
        if self.limits.requests == 0 || self.limits.requests > MAX_REQUESTS {
            let reason = format!("is not between 1 and {MAX_REQUESTS}");
            return Err(wrong("limits.requests", reason));
        }
        if self.limits.workers == 0 {
            return Err(wrong("limits.workers", "is 0, so nothing would be learned"));
        }
        Ok(())
    }
}

impl EdgesTable {
    fn check(&self) -> Result<(), ConfigError> {
        let key = "edges.addresses";
        match (self.connect, self.addresses.is_empty()) {
            (Connect::Edge, false) => {
                let reason =
                    "names edges, and only with edges.connect = \"relay\" are they dialled";
                return Err(wrong(key, reason));
            }
            (Connect::Relay, true) => {
                let reason =
                    "names no edge, and with edges.connect = \"relay\" none is found otherwise";
                return Err(wrong(key, reason));
            }
            (Connect::Edge, true) | (Connect::Relay, false) => {}
        }
        at_most(key, self.addresses.len(), EDGES)?;
        for address in &self.addresses {
            Addresses::new([("edge", address.as_str())]).map_err(|error| wrong(key, error))?;
        }
        Ok(())
    }
}

fn at_most(key: &str, found: usize, limit: usize) -> Result<(), ConfigError> {
    if found <= limit {
        return Ok(());
    }
    let reason = format!("has {found} entries, and at most {limit} are allowed");
    Err(wrong(key, reason))
}

fn not_shorter(key: &str, wait: Duration) -> Result<(), ConfigError> {
    if wait >= SHORTEST {
        return Ok(());
    }
    Err(wrong(key, format!("is shorter than {SHORTEST:?}")))
}

fn model_name(key: &str, name: &str) -> Result<ModelName, ConfigError> {
    ModelName::new(name).map_err(|error| wrong(key, error))
}

fn http_uri(key: &str, text: &str) -> Result<Uri, ConfigError> {
    let uri: Uri = text
        .parse()
        .map_err(|error| wrong(key, format!("{text:?}: {error}")))?;
    if uri.scheme() != Some(&Scheme::HTTP) || uri.host().is_none_or(str::is_empty) {
        let reason = format!("{text:?} is not of the form http://host:port");
        return Err(wrong(key, reason));
    }
    // It would be printed with everything that goes wrong there.
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return Err(wrong(
            key,
            "has a user's name or password in it, which is not used",
        ));
    }
    Ok(uri)
}

fn wrong(key: &str, reason: impl std::fmt::Display) -> ConfigError {
    ConfigError::key(key, &reason)
}
