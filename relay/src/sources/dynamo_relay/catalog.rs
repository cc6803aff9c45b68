//! Reads the peer's list of pools: which are ours, and whether all of each is known here.

use kvgrid_core::block::HashFormat;
use kvgrid_core::ckf::{Format, FormatError, Header};
use kvgrid_core::event::Refusal;
use thiserror::Error;

use super::RelaySettings;
use super::v1::{
    self, CkfFormat, DynamoEndpointId, KvPoolDescriptor, KvQueryHashFormat, ProducerIdentity,
    RelayIdentity, WorkerRole,
};
use crate::publish::PoolShape;

/// Version of a pool's identity.
const IDENTITY_VERSION: u32 = 1;
/// Most bytes of an endpoint's name, all parts together.
const PLACE_BYTES: usize = 180;

/// A pool that can be followed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listed {
    /// The life of the peer that has listed it.
    pub(super) relay: RelayIdentity,
    /// The life of its filter, exactly.
    pub(super) producer: ProducerIdentity,
    /// The endpoint whose workers fill it: its name here.
    pub(super) place: String,
    /// What its blocks look like.
    pub(super) shape: PoolShape,
    /// What its table looks like.
    pub(super) format: Format,
    /// The data centre that its frames name.
    pub(super) centre: u64,
}

/// Why a pool of our model is not followed.
#[derive(Debug, PartialEq, Error)]
pub(super) enum Unfit {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("the endpoint's name {0:?} is none")]
    Place(String),
    #[error("{0} is of a kind that is not known here")]
    Unknown(&'static str),
    #[error("the identity is of version {0}, not {IDENTITY_VERSION}")]
    Identity(u32),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("blocks of {found} tokens, and {wanted} are configured: no prompt would match")]
    BlockSize { found: u32, wanted: u32 },
    #[error("blocks are hashed as {found:?}, and {wanted:?} is configured: no prompt would match")]
    HashFormat {
        found: HashFormat,
        wanted: HashFormat,
    },
}

impl Unfit {
    /// As what it is counted.
    pub(super) const fn refusal(&self) -> Refusal {
        match self {
            Self::Missing(_) | Self::Place(_) => Refusal::Malformed,
            Self::Unknown(_) | Self::Identity(_) | Self::Format(_) => Refusal::Unsupported,
            Self::BlockSize { .. } => Refusal::BlockSize,
            Self::HashFormat { .. } => Refusal::HashFormat,
        }
    }
}

/// What an entry of the list is to us.
#[derive(Debug, PartialEq)]
pub(super) enum Entry {
    /// A pool to follow.
    Ours(Box<Listed>),
    /// A pool of our model that can't be followed.
    Unfit(Unfit),
    /// Another model's or another endpoint's, or of workers whose blocks spare no prefill.
    Others,
}

/// Reads an entry.
pub(super) fn read(
    pool: &KvPoolDescriptor,
    relay: &RelayIdentity,
    settings: &RelaySettings,
) -> Entry {
    if !is_ours(pool, settings) {
        return Entry::Others;
    }
    match listed(pool, relay, settings) {
        Ok(Some(listed)) => Entry::Ours(Box::new(listed)),
        Ok(None) => Entry::Others,
        Err(unfit) => Entry::Unfit(unfit),
    }
}

/// The endpoint's name, for logs too.
pub(super) fn place(pool: &KvPoolDescriptor) -> String {
    let DynamoEndpointId {
        namespace,
        component,
        endpoint,
    } = pool.serving_endpoint.clone().unwrap_or_default();
    format!("{namespace}/{component}/{endpoint}")
}

fn is_ours(pool: &KvPoolDescriptor, settings: &RelaySettings) -> bool {
    let model = settings.model.as_str();
    let registered = pool.registrations.iter().any(|registered| {
        registered.canonical_model_id == model || registered.aliases.iter().any(|a| a == model)
    });
    let at = pool.serving_endpoint.clone().unwrap_or_default();
    let peer = &settings.peer;
    let meant = |wanted: &Option<String>, found: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted == found)
    };
    registered
        && meant(&peer.namespace, &at.namespace)
        && meant(&peer.component, &at.component)
        && meant(&peer.endpoint, &at.endpoint)
}

fn listed(
    pool: &KvPoolDescriptor,
    relay: &RelayIdentity,
    settings: &RelaySettings,
) -> Result<Option<Listed>, Unfit> {
    let place = checked_place(pool)?;
    // A target without a kind is one of a later version; what it would mean is not known.
    let targets = pool.registrations.iter().map(|it| it.target.as_ref());
    if targets
        .into_iter()
        .any(|it| it.is_none_or(|it| it.target.is_none()))
    {
        return Err(Unfit::Unknown("a registration's target"));
    }
    if !spares_prefill(pool)? {
        return Ok(None);
    }
    let shape = shape(pool, settings)?;
    let producer = pool.producer.clone();
    let producer = producer.ok_or(Unfit::Missing("producer"))?;
    let id = producer.pool_id.as_ref();
    let id = id.ok_or(Unfit::Missing("producer.pool_id"))?;
    if id.identity_version != IDENTITY_VERSION {
        return Err(Unfit::Identity(id.identity_version));
    }
    let format = producer.ckf_format.as_ref();
    let format = read_format(format.ok_or(Unfit::Missing("producer.ckf_format"))?)?;
    Ok(Some(Listed {
        relay: *relay,
        place,
        shape,
        format,
        centre: id.dc_id,
        producer,
    }))
}

fn checked_place(pool: &KvPoolDescriptor) -> Result<String, Unfit> {
    let at = pool.serving_endpoint.as_ref();
    let at = at.ok_or(Unfit::Missing("serving_endpoint"))?;
    let place = place(pool);
    let parts = [&at.namespace, &at.component, &at.endpoint];
    let none = |part: &&String| part.is_empty() || part.chars().any(char::is_control);
    if place.len() > PLACE_BYTES || parts.iter().any(none) {
        let shown = place.chars().take(PLACE_BYTES).collect();
        return Err(Unfit::Place(shown));
    }
    Ok(place)
}

/// Whether a prompt that reaches its workers is prefilled by them. Who tells no roles has
/// workers that do all.
fn spares_prefill(pool: &KvPoolDescriptor) -> Result<bool, Unfit> {
    let mut spares = pool.pool_roles.is_empty();
    for role in &pool.pool_roles {
        match WorkerRole::try_from(*role) {
            Ok(WorkerRole::Prefill | WorkerRole::Aggregated | WorkerRole::Legacy) => spares = true,
            Ok(WorkerRole::Decode | WorkerRole::Encode) => {}
            Ok(WorkerRole::Unspecified) | Err(_) => return Err(Unfit::Unknown("a role")),
        }
    }
    Ok(spares)
}

fn shape(pool: &KvPoolDescriptor, settings: &RelaySettings) -> Result<PoolShape, Unfit> {
    let told = pool.query_semantics.as_ref();
    let told = told.ok_or(Unfit::Missing("query_semantics"))?;
    let format = match KvQueryHashFormat::try_from(told.hash_format) {
        Ok(KvQueryHashFormat::DynamoStandardV1) => HashFormat::Standard,
        Ok(KvQueryHashFormat::DynamoEagleV1) => HashFormat::Eagle,
        Ok(KvQueryHashFormat::Unspecified) | Err(_) => {
            return Err(Unfit::Unknown("the hash format"));
        }
    };
    let block_size = told.kv_block_size.try_into();
    let block_size = block_size.map_err(|_| Unfit::Missing("query_semantics.kv_block_size"))?;
    let found = PoolShape { block_size, format };
    match settings.shape {
        Some(wanted) if wanted.block_size != found.block_size => Err(Unfit::BlockSize {
            found: found.block_size.get(),
            wanted: wanted.block_size.get(),
        }),
        Some(wanted) if wanted.format != found.format => Err(Unfit::HashFormat {
            found: found.format,
            wanted: wanted.format,
        }),
        _ => Ok(found),
    }
}

fn read_format(format: &CkfFormat) -> Result<Format, FormatError> {
    Format::from_header(Header {
        version: format.format_version,
        seed: format.seed,
        buckets: format.bucket_count,
        fingerprint_bits: format.fingerprint_bits,
        slots: format.slots_per_bucket,
    })
}

/// The pools of a list; none at all is a list, too, but no list is none.
pub(super) fn pools(update: v1::KvPoolCatalogUpdate) -> Option<Vec<KvPoolDescriptor>> {
    update.snapshot.map(|snapshot| snapshot.pools)
}
