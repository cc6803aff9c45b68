//! From what is written to what is meant.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use kvgrid_core::ModelName;
use kvgrid_core::block::HashFormat;
use kvgrid_core::event::engine::DecoderConfig;
use kvgrid_core::membership::{Addresses, Scope};
use kvgrid_prompt::{CardOptions, ChatRules};
use kvgrid_runtime::config::ConfigError;

use super::{CardTable, ConfigFile, EndpointTable, SourceTable};
use crate::proxy::Allowed;
use crate::sources::engine_zmq::FeedConfig;

/// Most endpoints of one source.
const ENDPOINTS: usize = 4096;

/// Most sources.
const SOURCES: usize = 64;

/// Most seeds; all other relays are learnt from one that is alive.
const SEEDS: usize = 64;

/// Most metrics pages.
const PAGES: usize = 1024;

/// Most requests at a time that may be configured.
const MAX_REQUESTS: usize = 1 << 20;

/// Most bytes of a source's name.
const NAME_BYTES: usize = 63;

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

/// The card that the relay makes.
#[derive(Clone, Debug)]
pub(crate) struct CardSettings {
    /// The name clients ask for.
    pub(crate) model: ModelName,
    /// What the model's directory doesn't say.
    pub(crate) options: CardOptions,
}

/// A source and the pool it feeds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SourceSettings {
    /// Unique among the relay's sources.
    pub(crate) name: String,
    /// The model whose blocks it tells of.
    pub(crate) model: ModelName,
    /// Tokens per block.
    pub(crate) block_size: NonZeroU32,
    /// How its blocks are hashed.
    pub(crate) format: HashFormat,
    /// Its publishers.
    pub(crate) feeds: Vec<FeedConfig>,
}

impl ConfigFile {
    /// Checks everything that can be checked without touching the system, and fills in what
    /// was left out.
    pub(crate) fn resolve(self) -> Result<Config, ConfigError> {
        let mut file = self;
        file.check_waits()?;
        let (addresses, scopes) = file.reach()?;
        let frontend = http_uri("frontend.url", &file.frontend.url)?;
        if !matches!(frontend.path(), "" | "/") || frontend.query().is_some() {
            return Err(wrong("frontend.url", "has a path, which requests bring"));
        }
        let allowed = match &file.frontend.allow {
            None => Ok(Allowed::default()),
            Some(texts) => Allowed::parse(texts.iter().map(String::as_str)),
        };
        let allowed = allowed.map_err(|error| wrong("frontend.allow", error))?;
        let card = file.card.as_ref().map(CardSettings::of).transpose()?;
        let sources = resolve_sources(&mut file)?;
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
        for source in &self.sources {
            not_shorter("source.gone_after", source.gone_after)?;
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

impl CardSettings {
    /// What a table means.
    pub(crate) fn of(table: &CardTable) -> Result<Self, ConfigError> {
        let model = model_name("card.model", &table.model)?;
        let mut options = CardOptions::new(model.as_str(), table.block_size);
        options.eagle = table.eagle;
        options.capacity_blocks = table.capacity_blocks.unwrap_or(0);
        options.context_length = table.context_length;
        options.lora.clone_from(&table.lora);
        options.tokenizer_backend = table.tokenizer;
        options.time_zone.clone_from(&table.time_zone);
        options.chat_template.clone_from(&table.chat_template);
        options.chat = ChatRules {
            reasoning_parser: table.reasoning_parser.clone(),
            tool_call_parser: table.tool_call_parser.clone(),
            ..ChatRules::default()
        };
        Ok(Self { model, options })
    }
}

fn resolve_sources(file: &mut ConfigFile) -> Result<Vec<SourceSettings>, ConfigError> {
    at_most("source", file.sources.len(), SOURCES)?;
    let mut names = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    let mut resolved = Vec::new();
    let entries = file.limits.entries;
    for source in &mut file.sources {
        let settings = resolve_source(source, file.card.as_ref(), entries)?;
        if !names.insert(settings.name.clone()) {
            let reason = format!("two sources are called {:?}", settings.name);
            return Err(wrong("source.name", reason));
        }
        for feed in &settings.feeds {
            if !addresses.insert(feed.events.clone()) {
                let reason = format!("{} is there twice", feed.events);
                return Err(wrong("source.endpoints.events", reason));
            }
        }
        resolved.push(settings);
    }
    Ok(resolved)
}

fn resolve_source(
    source: &mut SourceTable,
    card: Option<&CardTable>,
    entries: usize,
) -> Result<SourceSettings, ConfigError> {
    let missing = |key: &str| wrong(key, "is missing, and there is no card to tell it");
    let name = source
        .name
        .get_or_insert_with(|| source.kind.name().to_owned());
    check_name(name)?;
    let model = source
        .model
        .get_or_insert_with(|| card.map_or_else(String::new, |c| c.model.clone()));
    if model.is_empty() {
        return Err(missing("source.model"));
    }
    let model = model_name("source.model", model)?;
    let card = card.filter(|card| card.model == model.as_str());
    let block_size = source.block_size.or(card.map(|card| card.block_size));
    let block_size = block_size.ok_or_else(|| missing("source.block_size"))?;
    let eagle = source
        .eagle
        .or(card.map(|card| card.eagle))
        .unwrap_or(false);
    if card.is_some_and(|card| card.block_size != block_size || card.eagle != eagle) {
        let reason = "differs from the card's, so no prompt would match";
        let key = if card.is_some_and(|card| card.eagle != eagle) {
            "source.eagle"
        } else {
            "source.block_size"
        };
        return Err(wrong(key, reason));
    }
    (source.block_size, source.eagle) = (Some(block_size), Some(eagle));
    let format = if eagle {
        HashFormat::Eagle
    } else {
        HashFormat::Standard
    };
    let decoder = DecoderConfig {
        block_size,
        format,
        max_salted: entries,
    };
    Ok(SourceSettings {
        name: name.clone(),
        model,
        block_size,
        format,
        feeds: feeds(source, decoder)?,
    })
}

fn feeds(source: &SourceTable, decoder: DecoderConfig) -> Result<Vec<FeedConfig>, ConfigError> {
    if source.endpoints.is_empty() {
        return Err(wrong("source.endpoints", "is empty"));
    }
    at_most("source.endpoints", source.endpoints.len(), ENDPOINTS)?;
    let feed = |endpoint: &EndpointTable| {
        zmq_address("source.endpoints.events", &endpoint.events)?;
        if let Some(replay) = &endpoint.replay {
            zmq_address("source.endpoints.replay", replay)?;
        }
        Ok(FeedConfig {
            events: endpoint.events.clone(),
            replay: endpoint.replay.clone(),
            topic: source.topic.clone(),
            rank: endpoint.rank,
            gone_after: source.gone_after,
            decoder,
        })
    };
    source.endpoints.iter().map(feed).collect()
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

fn check_name(name: &str) -> Result<(), ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES || !name.chars().all(allowed) {
        let reason = format!(
            "{name:?} is not 1 to {NAME_BYTES} letters, digits, dots, dashes and underscores"
        );
        return Err(wrong("source.name", reason));
    }
    Ok(())
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
    Ok(uri)
}

fn zmq_address(key: &str, text: &str) -> Result<(), ConfigError> {
    let port = text
        .strip_prefix("tcp://")
        .and_then(|address| address.rsplit_once(':'))
        .filter(|(host, _)| !host.is_empty() && *host != "*")
        .and_then(|(_, port)| port.parse::<u16>().ok())
        .filter(|port| *port > 0);
    if port.is_none() {
        let reason = format!("{text:?} is not of the form tcp://host:port");
        return Err(wrong(key, reason));
    }
    Ok(())
}

fn wrong(key: &str, reason: impl std::fmt::Display) -> ConfigError {
    ConfigError::key(key, &reason)
}
