//! What a configuration names, read before anything starts.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use kvgrid_certs::{NodeCredentials, read_grid_key};
use kvgrid_core::filter::MixKey;
use kvgrid_core::{ModelName, RelayId};
use kvgrid_runtime::config::ConfigError;

use crate::card::SiteCard;
use crate::config::{self, CardSettings, Config};
use crate::proxy::{Frontend, FrontendSettings};

/// A relay that could start: everything that its configuration names was read.
pub(crate) struct Prepared {
    pub(crate) config: Config,
    pub(crate) credentials: NodeCredentials,
    pub(crate) key: MixKey,
    pub(crate) relay: RelayId,
    /// The configured one.
    pub(crate) card: Option<SiteCard>,
    pub(crate) frontend: Frontend,
}

impl Prepared {
    /// Reads the configuration and what it names.
    pub(crate) fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let config = config::load(path)?.resolve()?;
        let identity = &config.file.identity;
        let credentials = NodeCredentials::load(&identity.files())
            .map_err(|error| ConfigError::key("identity", &error))?;
        let who = credentials.identity();
        let Some((_, relay)) = who.as_relay() else {
            let reason = format!("{who} is no relay's");
            return Err(ConfigError::key("identity.cert", &reason));
        };
        let relay = relay.clone();
        let key = read_grid_key(&identity.grid_key)
            .map_err(|error| ConfigError::key("identity.grid_key", &error))?;
        let card = match &config.card {
            Some(CardSettings::Dir {
                model,
                dir,
                options,
            }) => Some(SiteCard::read(dir, model, options)?),
            Some(CardSettings::Dynamo { .. }) | None => None,
        };
        let frontend = Frontend::new(&FrontendSettings {
            url: config.frontend.clone(),
            connect_timeout: config.file.frontend.connect_timeout,
        });
        Ok(Self {
            frontend: frontend.map_err(|error| ConfigError::key("frontend.url", &error))?,
            key: MixKey::from_bytes(&key),
            relay,
            config,
            credentials,
            card,
        })
    }

    /// The configuration as it is meant, with what was left out.
    pub(crate) fn to_toml(&self) -> io::Result<String> {
        toml::to_string(&self.config.file).map_err(io::Error::other)
    }

    /// The models that the configuration names.
    pub(crate) fn models(&self) -> BTreeSet<ModelName> {
        let sources = self.config.sources.iter().map(|source| &source.model);
        let card = self.config.card.iter().map(CardSettings::model);
        sources.chain(card).cloned().collect()
    }
}
