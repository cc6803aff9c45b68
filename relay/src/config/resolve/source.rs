//! Sources: what each kind of them must and may be told.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use http::Uri;
use kvgrid_core::ModelName;
use kvgrid_core::block::HashFormat;
use kvgrid_core::event::Tier;
use kvgrid_core::event::engine::DecoderConfig;
use kvgrid_core::residency::Copies;
use kvgrid_runtime::config::ConfigError;

use super::dynamo::{self, DynamoSettings};
use super::{at_most, http_uri, model_name, not_shorter, wrong};
use crate::config::{
    CardTable, ConfigFile, EndpointTable, SourceKind, SourceRole, SourceTable, TierName,
};
use crate::discovery::DiscoverySettings;
use crate::publish::PoolShape;
use crate::sources::engine_zmq::FeedConfig;

/// Most endpoints of one source.
const ENDPOINTS: usize = 4096;

/// Most sources.
const SOURCES: usize = 64;

/// Most bytes of a source's name.
const NAME_BYTES: usize = 63;

/// How long a publisher of raw events may be disconnected, unless told otherwise.
const GONE_AFTER: Duration = Duration::from_secs(5);

/// Most bytes of a message of Dynamo's own relay, unless told otherwise: its own bound.
const MESSAGE_BYTES: usize = 8 << 20;

/// Bytes that its messages may need at least, and the most that make sense.
const MESSAGE_RANGE: std::ops::RangeInclusive<usize> = (5 << 20)..=(256 << 20);

/// A source and the pools it feeds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SourceSettings {
    /// Unique among the relay's sources.
    pub(crate) name: String,
    /// The model whose blocks it tells of.
    pub(crate) model: ModelName,
    /// What its blocks look like; absent where only the workers say it.
    pub(crate) shape: Option<PoolShape>,
    /// Which part of requests its workers do, where only the configuration says it.
    pub(crate) role: SourceRole,
    /// Which tiers it tells of, a pool each.
    pub(crate) tiers: Vec<Tier>,
    /// Where it comes by its events.
    pub(crate) feeds: Feeds,
}

/// Where a source comes by its events.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Feeds {
    /// Publishers of raw engine events.
    EngineZmq(Vec<FeedConfig>),
    /// The publishers that a Dynamo site's discovery shows.
    DynamoEvents(Box<DynamoSettings>),
    /// Dynamo's own relay.
    DynamoRelay(Box<PeerSettings>),
}

/// Dynamo's own relay, and which of its pools are meant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeerSettings {
    /// Where it listens, without a path.
    pub(crate) url: Uri,
    /// Most bytes of one message.
    pub(crate) message_bytes: usize,
    /// The workers' namespace; any if absent.
    pub(crate) namespace: Option<String>,
    /// Their component; any if absent.
    pub(crate) component: Option<String>,
    /// Their endpoint; any if absent.
    pub(crate) endpoint: Option<String>,
    /// Where the workers say their card, if that is wanted from them.
    pub(crate) discovery: Option<DiscoverySettings>,
}

impl Feeds {
    /// The publishers that this discovery shows.
    #[cfg(test)]
    pub(crate) fn of_discovery(discovery: DiscoverySettings) -> Self {
        let nats = None;
        Self::DynamoEvents(Box::new(DynamoSettings { discovery, nats }))
    }

    /// Feeds that are there from the start; discovery counts as one until it was read, and so
    /// does a peer's catalog.
    pub(crate) const fn known(&self) -> usize {
        match self {
            Self::EngineZmq(feeds) => feeds.len(),
            Self::DynamoEvents(_) | Self::DynamoRelay(_) => 1,
        }
    }

    /// The site's discovery, where it is read.
    pub(crate) const fn discovery(&self) -> Option<&DiscoverySettings> {
        match self {
            Self::EngineZmq(_) => None,
            Self::DynamoEvents(dynamo) => Some(&dynamo.discovery),
            Self::DynamoRelay(peer) => peer.discovery.as_ref(),
        }
    }

    /// What it means here that a block is stored again. Dynamo tells only the removal of the
    /// last copy.
    pub(crate) const fn copies(&self) -> Copies {
        match self {
            Self::EngineZmq(_) => Copies::Counted,
            Self::DynamoEvents(_) | Self::DynamoRelay(_) => Copies::Once,
        }
    }
}

pub(super) fn resolve_all(file: &mut ConfigFile) -> Result<Vec<SourceSettings>, ConfigError> {
    at_most("source", file.sources.len(), SOURCES)?;
    let mut names = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    let mut resolved = Vec::new();
    let entries = file.limits.entries;
    for source in &mut file.sources {
        let settings = resolve(source, file.card.as_ref(), entries)?;
        if !names.insert(settings.name.clone()) {
            let reason = format!("two sources are called {:?}", settings.name);
            return Err(wrong("source.name", reason));
        }
        if let Feeds::EngineZmq(feeds) = &settings.feeds {
            for feed in feeds {
                if !addresses.insert(feed.events.clone()) {
                    let reason = format!("{} is there twice", feed.events);
                    return Err(wrong("source.endpoints.events", reason));
                }
            }
        }
        resolved.push(settings);
    }
    Ok(resolved)
}

fn resolve(
    source: &mut SourceTable,
    card: Option<&CardTable>,
    entries: usize,
) -> Result<SourceSettings, ConfigError> {
    refuse_others_keys(source)?;
    let name = source
        .name
        .get_or_insert_with(|| source.kind.name().to_owned());
    check_name(name)?;
    let name = name.clone();
    let model = source
        .model
        .get_or_insert_with(|| card.map_or_else(String::new, |c| c.model.clone()));
    if model.is_empty() {
        return Err(missing("source.model"));
    }
    let model = model_name("source.model", model)?;
    let card = card.filter(|card| card.model == model.as_str());
    let shape = shape(source, card)?;
    if source.tiers.is_empty() {
        source.tiers.push(TierName::Device);
    }
    if source.kind == SourceKind::DynamoRelay && source.tiers != [TierName::Device] {
        return Err(wrong(
            "source.tiers",
            "Dynamo's relay tells of the device alone",
        ));
    }
    let tiers: BTreeSet<Tier> = source.tiers.iter().map(|name| (*name).into()).collect();
    if tiers.len() < source.tiers.len() {
        return Err(wrong("source.tiers", "names one twice"));
    }
    let tiers = tiers.into_iter().collect();
    let feeds = match source.kind {
        SourceKind::EngineZmq => {
            let shape = shape.ok_or_else(|| missing("source.block_size"))?;
            Feeds::EngineZmq(feeds(source, shape, entries)?)
        }
        SourceKind::DynamoEvents => Feeds::DynamoEvents(Box::new(dynamo::resolve(source)?)),
        SourceKind::DynamoRelay => Feeds::DynamoRelay(Box::new(peer(source)?)),
    };
    Ok(SourceSettings {
        name,
        model,
        shape,
        role: source.role.unwrap_or_default(),
        tiers,
        feeds,
    })
}

fn missing(key: &str) -> ConfigError {
    wrong(key, "is missing, and there is no card to tell it")
}

/// A key that only other kinds of sources read is a mistake here, not a wish.
fn refuse_others_keys(source: &SourceTable) -> Result<(), ConfigError> {
    use SourceKind::{DynamoEvents, DynamoRelay, EngineZmq};
    let dynamo = &[DynamoEvents, DynamoRelay][..];
    let keys = [
        ("source.role", source.role.is_some(), &[EngineZmq][..]),
        ("source.topic", source.topic.is_some(), &[EngineZmq]),
        (
            "source.gone_after",
            source.gone_after.is_some(),
            &[EngineZmq],
        ),
        (
            "source.endpoints",
            !source.endpoints.is_empty(),
            &[EngineZmq],
        ),
        ("source.discovery", source.discovery.is_some(), dynamo),
        ("source.nats", source.nats.is_some(), &[DynamoEvents]),
        ("source.namespace", source.namespace.is_some(), dynamo),
        ("source.component", source.component.is_some(), dynamo),
        ("source.endpoint", source.endpoint.is_some(), dynamo),
        ("source.url", source.url.is_some(), &[DynamoRelay]),
        (
            "source.message_bytes",
            source.message_bytes.is_some(),
            &[DynamoRelay],
        ),
    ];
    let written = keys.into_iter().filter(|(_, written, _)| *written);
    for (key, _, kinds) in written {
        if !kinds.contains(&source.kind) {
            let reason = format!("is for sources of kind {:?}", kinds[0].name());
            return Err(wrong(key, reason));
        }
    }
    Ok(())
}

/// What the source's blocks look like, as far as it is written.
fn shape(
    source: &mut SourceTable,
    card: Option<&CardTable>,
) -> Result<Option<PoolShape>, ConfigError> {
    let of_card = card.and_then(|card| Some((card.block_size?, card.eagle.unwrap_or(false))));
    let block_size: Option<NonZeroU32> = source.block_size.or(of_card.map(|(size, _)| size));
    let Some(block_size) = block_size else {
        return match source.eagle {
            None => Ok(None),
            Some(_) => Err(wrong("source.eagle", "is there without source.block_size")),
        };
    };
    let eagle = source.eagle.or(of_card.map(|(_, eagle)| eagle));
    let eagle = eagle.unwrap_or(false);
    let differs = "differs from the card's, so no prompt would match";
    match of_card {
        Some((_, other)) if other != eagle => return Err(wrong("source.eagle", differs)),
        Some((other, _)) if other != block_size => {
            return Err(wrong("source.block_size", differs));
        }
        _ => {}
    }
    (source.block_size, source.eagle) = (Some(block_size), Some(eagle));
    let format = if eagle {
        HashFormat::Eagle
    } else {
        HashFormat::Standard
    };
    Ok(Some(PoolShape { block_size, format }))
}

fn feeds(
    source: &mut SourceTable,
    shape: PoolShape,
    entries: usize,
) -> Result<Vec<FeedConfig>, ConfigError> {
    if source.endpoints.is_empty() {
        return Err(wrong("source.endpoints", "is missing or empty"));
    }
    at_most("source.endpoints", source.endpoints.len(), ENDPOINTS)?;
    let gone_after = *source.gone_after.get_or_insert(GONE_AFTER);
    not_shorter("source.gone_after", gone_after)?;
    let topic = source.topic.get_or_insert_default();
    let feed = |endpoint: &EndpointTable| {
        zmq_address("source.endpoints.events", &endpoint.events)?;
        if let Some(replay) = &endpoint.replay {
            zmq_address("source.endpoints.replay", replay)?;
        }
        Ok(FeedConfig {
            events: endpoint.events.clone(),
            replay: endpoint.replay.clone(),
            topic: topic.clone(),
            rank: endpoint.rank,
            gone_after,
            decoder: DecoderConfig {
                block_size: shape.block_size,
                format: shape.format,
                max_salted: entries,
            },
        })
    };
    source.endpoints.iter().map(feed).collect()
}

fn peer(source: &mut SourceTable) -> Result<PeerSettings, ConfigError> {
    let key = "source.url";
    let url = source.url.as_deref();
    let url = http_uri(key, url.ok_or_else(|| wrong(key, "is missing"))?)?;
    if !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(wrong(key, "has a path, and nothing is served below one"));
    }
    let message_bytes = *source.message_bytes.get_or_insert(MESSAGE_BYTES);
    if !MESSAGE_RANGE.contains(&message_bytes) {
        let (least, most) = (MESSAGE_RANGE.start(), MESSAGE_RANGE.end());
        let reason = format!("is not between {least} and {most}");
        return Err(wrong("source.message_bytes", reason));
    }
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    Ok(PeerSettings {
        url,
        message_bytes,
        namespace: some(&source.namespace),
        component: some(&source.component),
        endpoint: some(&source.endpoint),
        discovery: source
            .discovery
            .is_some()
            .then(|| dynamo::discovery(source))
            .transpose()?,
    })
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
