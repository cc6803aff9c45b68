//! A relay's catalog on the wire: its models and its pools.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use kvgrid_core::block::HashFormat;
use kvgrid_core::ckf::{Format, Naming};
use kvgrid_core::event::Tier;
use kvgrid_core::replication::ReplicaView;
use kvgrid_core::view::{CardDigest, CardInfo, ModelView, PoolView, WorkersApart};
use kvgrid_core::{ModelId, ModelName, PoolId};

use crate::convert::{ConvertError, required};
use crate::v1;

/// Longest name of a source, or of another part of a site.
const SOURCE_LIMIT: usize = 256;

/// Most names of a model beside its own.
const ALIAS_LIMIT: usize = 64;

/// Most groups of workers that a model's card isn't of, and most fields that differ.
const APART_LIMIT: usize = 64;

/// A model, as the relay writes it.
pub fn model_to_wire(model: &ModelView) -> v1::Model {
    let wire = v1::Model {
        name: model.name.as_str().into(),
        ready: model.ready,
        aliases: model
            .aliases
            .iter()
            .map(|alias| alias.as_str().into())
            .collect(),
        apart: model.apart.iter().map(apart_to_wire).collect(),
        ..v1::Model::default()
    };
    let Some(card) = &model.card else {
        return wire;
    };
    v1::Model {
        card_digest: Bytes::copy_from_slice(&card.digest.0),
        block_size: card.block_size.get(),
        hash_format: format_to_wire(card.format).into(),
        capacity_blocks: card.capacity_blocks.unwrap_or(0),
        context_length: card.context_length.map_or(0, NonZeroU32::get),
        ..wire
    }
}

/// A model, as the edge reads it. Whether its card can be used is for the edge to say.
pub fn model_from_wire(wire: &v1::Model) -> Result<ModelView, ConvertError> {
    let name = |field, name: &String| {
        ModelName::new(name).map_err(|error| ConvertError::invalid(field, error))
    };
    at_most("model.aliases", wire.aliases.len(), ALIAS_LIMIT)?;
    at_most("model.apart", wire.apart.len(), APART_LIMIT)?;
    let aliases = wire
        .aliases
        .iter()
        .map(|alias| name("model.aliases", alias));
    let aliases = aliases.collect::<Result<_, _>>()?;
    let name = name("model.name", &wire.name)?;
    let card = if wire.card_digest.is_empty() {
        None
    } else {
        Some(CardInfo {
            digest: card_digest_from_wire(&wire.card_digest)?,
            block_size: block_size(wire.block_size, "model.block_size")?,
            format: format_from_wire(wire.hash_format(), "model.hash_format")?,
            capacity_blocks: Some(wire.capacity_blocks).filter(|blocks| *blocks > 0),
            context_length: NonZeroU32::new(wire.context_length),
            usable: false,
        })
    };
    Ok(ModelView {
        id: name.id(),
        name,
        aliases,
        ready: wire.ready,
        card,
        apart: wire
            .apart
            .iter()
            .map(apart_from_wire)
            .collect::<Result<_, _>>()?,
    })
}

fn apart_to_wire(apart: &WorkersApart) -> v1::WorkersApart {
    v1::WorkersApart {
        place: apart.place.as_ref().into(),
        workers: apart.workers,
        differs: apart
            .differs
            .iter()
            .map(|field| field.as_ref().into())
            .collect(),
    }
}

fn apart_from_wire(wire: &v1::WorkersApart) -> Result<WorkersApart, ConvertError> {
    at_most("model.apart.differs", wire.differs.len(), APART_LIMIT)?;
    for text in wire.differs.iter().chain([&wire.place]) {
        not_longer("model.apart", text)?;
    }
    Ok(WorkersApart {
        place: wire.place.as_str().into(),
        workers: wire.workers,
        differs: wire
            .differs
            .iter()
            .map(|field| field.as_str().into())
            .collect(),
    })
}

fn at_most(field: &'static str, count: usize, limit: usize) -> Result<(), ConvertError> {
    if count > limit {
        let why = format!("{count} of them, more than {limit}");
        return Err(ConvertError::invalid(field, why));
    }
    Ok(())
}

fn not_longer(field: &'static str, text: &str) -> Result<(), ConvertError> {
    if text.len() > SOURCE_LIMIT {
        let why = format!("{} bytes, more than {SOURCE_LIMIT}", text.len());
        return Err(ConvertError::invalid(field, why));
    }
    Ok(())
}

/// A pool, as the relay writes it; its replica is not part of it.
pub fn pool_to_wire(pool: &PoolView) -> v1::Pool {
    v1::Pool {
        pool_id: pool.id.0,
        model_id: pool.model.0,
        source: pool.source.as_ref().into(),
        block_size: pool.block_size.get(),
        hash_format: format_to_wire(pool.format).into(),
        tier: tier_to_wire(pool.tier).into(),
        closed: pool.closed,
        naming: naming_to_wire(pool.naming),
        ckf: match pool.naming {
            Naming::Ckf(format) => Some(v1::CkfNaming {
                seed: format.seed(),
                buckets: format.buckets(),
            }),
            Naming::Chain | Naming::Unknown => None,
        },
        eviction_age_millis: pool.eviction_age.map(millis),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A pool, as the edge reads it, with an empty replica.
pub fn pool_from_wire(wire: &v1::Pool) -> Result<PoolView, ConvertError> {
    not_longer("pool.source", &wire.source)?;
    Ok(PoolView {
        id: PoolId(wire.pool_id),
        model: ModelId(wire.model_id),
        source: wire.source.as_str().into(),
        block_size: block_size(wire.block_size, "pool.block_size")?,
        format: format_from_wire(wire.hash_format(), "pool.hash_format")?,
        naming: naming_from_wire(wire)?,
        tier: tier_from_wire(wire.tier())?,
        closed: wire.closed,
        eviction_age: wire.eviction_age_millis.map(Duration::from_millis),
        replica: ReplicaView::default(),
        facts: None,
    })
}

/// The name of a card, as either end reads it.
pub fn card_digest_from_wire(bytes: &[u8]) -> Result<CardDigest, ConvertError> {
    CardDigest::from_slice(bytes).ok_or_else(|| {
        let why = format!("{} bytes instead of 32", bytes.len());
        ConvertError::invalid("card digest", why)
    })
}

fn block_size(wire: u32, field: &'static str) -> Result<NonZeroU32, ConvertError> {
    NonZeroU32::new(wire).ok_or_else(|| ConvertError::invalid(field, "0 tokens make no block"))
}

fn format_to_wire(format: HashFormat) -> v1::HashFormat {
    match format {
        HashFormat::Standard => v1::HashFormat::Standard,
        HashFormat::Eagle => v1::HashFormat::Eagle,
    }
}

fn format_from_wire(wire: v1::HashFormat, field: &'static str) -> Result<HashFormat, ConvertError> {
    match wire {
        v1::HashFormat::Standard => Ok(HashFormat::Standard),
        v1::HashFormat::Eagle => Ok(HashFormat::Eagle),
        v1::HashFormat::Unspecified => Err(ConvertError::invalid(
            field,
            "a format that is not known here",
        )),
    }
}

/// What stands for a naming that is not known here; no version will give it a meaning.
const UNKNOWN_NAMING: i32 = -1;

fn naming_to_wire(naming: Naming) -> i32 {
    match naming {
        Naming::Chain => v1::Naming::Chain.into(),
        Naming::Ckf(_) => v1::Naming::CkfV1.into(),
        Naming::Unknown => UNKNOWN_NAMING,
    }
}

/// A naming of a later version makes the pool one that can't be searched, and no error: the
/// relay's other pools can.
fn naming_from_wire(wire: &v1::Pool) -> Result<Naming, ConvertError> {
    match v1::Naming::try_from(wire.naming) {
        Ok(v1::Naming::Chain) => Ok(Naming::Chain),
        Ok(v1::Naming::CkfV1) => {
            let ckf = required(wire.ckf.as_ref(), "pool.ckf")?;
            let format = Format::new(ckf.seed, u64::from(ckf.buckets));
            let format = format.map_err(|error| ConvertError::invalid("pool.ckf", error))?;
            Ok(Naming::Ckf(format))
        }
        Err(_) => Ok(Naming::Unknown),
    }
}

fn tier_to_wire(tier: Tier) -> v1::Tier {
    match tier {
        Tier::Device => v1::Tier::Device,
        Tier::HostPinned => v1::Tier::HostPinned,
        Tier::Disk => v1::Tier::Disk,
        Tier::External => v1::Tier::External,
    }
}

fn tier_from_wire(wire: v1::Tier) -> Result<Tier, ConvertError> {
    match wire {
        v1::Tier::Device => Ok(Tier::Device),
        v1::Tier::HostPinned => Ok(Tier::HostPinned),
        v1::Tier::Disk => Ok(Tier::Disk),
        v1::Tier::External => Ok(Tier::External),
        v1::Tier::Unspecified => Err(ConvertError::invalid(
            "pool.tier",
            "a tier that is not known here",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(card: Option<CardInfo>) -> ModelView {
        let name = ModelName::new("org/model").unwrap();
        ModelView {
            id: name.id(),
            name,
            aliases: vec![ModelName::new("chat").unwrap()],
            ready: true,
            card,
            apart: vec![WorkersApart {
                place: "prod/backend/generate".into(),
                workers: 2,
                differs: vec!["kv_cache_block_size".into()],
            }],
        }
    }

    #[test]
    fn a_model_survives_the_wire_with_and_without_a_card() {
        let card = CardInfo {
            digest: CardDigest([7; 32]),
            block_size: NonZeroU32::new(16).unwrap(),
            format: HashFormat::Eagle,
            capacity_blocks: Some(2048),
            context_length: None,
            usable: false,
        };
        for model in [model(None), model(Some(card))] {
            assert_eq!(model_from_wire(&model_to_wire(&model)).unwrap(), model);
        }
    }

    #[test]
    fn a_pool_survives_the_wire() {
        for tier in [Tier::Device, Tier::HostPinned, Tier::Disk, Tier::External] {
            let wire = v1::Pool {
                pool_id: 1,
                model_id: 2,
                source: "engines".into(),
                block_size: 64,
                hash_format: v1::HashFormat::Standard.into(),
                tier: tier_to_wire(tier).into(),
                closed: true,
                naming: v1::Naming::Chain.into(),
                ckf: None,
                eviction_age_millis: (tier == Tier::Device).then_some(90_500),
            };

            assert_eq!(pool_to_wire(&pool_from_wire(&wire).unwrap()), wire);
        }
    }

    #[test]
    fn a_naming_survives_the_wire_and_a_later_versions_is_unknown() {
        let named = |naming: i32, ckf| v1::Pool {
            block_size: 16,
            hash_format: v1::HashFormat::Standard.into(),
            tier: v1::Tier::Device.into(),
            naming,
            ckf,
            ..v1::Pool::default()
        };
        let (seed, buckets) = (7, 1024);
        let wire = named(
            v1::Naming::CkfV1.into(),
            Some(v1::CkfNaming { seed, buckets }),
        );
        let pool = pool_from_wire(&wire).unwrap();
        let refused = |wire| pool_from_wire(&wire).unwrap_err().to_string();

        assert_eq!(pool.naming, Naming::Ckf(Format::new(7, 1024).unwrap()));
        assert_eq!(pool_to_wire(&pool), wire);
        let later = pool_from_wire(&named(99, None)).unwrap();
        assert_eq!(later.naming, Naming::Unknown);
        let missing = refused(named(v1::Naming::CkfV1.into(), None));
        assert_eq!(missing, "pool.ckf is missing");
        let buckets = 1000;
        let odd = refused(named(
            v1::Naming::CkfV1.into(),
            Some(v1::CkfNaming { seed, buckets }),
        ));
        assert_eq!(
            odd,
            "pool.ckf: 1000 buckets are not a power of two from 2 to 16777216"
        );
    }

    #[test]
    fn nonsense_is_refused_by_the_name_of_its_field() {
        let wire = pool_to_wire(
            &pool_from_wire(&v1::Pool {
                block_size: 16,
                hash_format: v1::HashFormat::Standard.into(),
                tier: v1::Tier::Device.into(),
                ..v1::Pool::default()
            })
            .unwrap(),
        );
        let refused = |wire: v1::Pool| pool_from_wire(&wire).unwrap_err().to_string();

        let none = refused(v1::Pool {
            block_size: 0,
            ..wire.clone()
        });
        assert_eq!(none, "pool.block_size: 0 tokens make no block");
        let new = refused(v1::Pool {
            tier: 99,
            ..wire.clone()
        });
        assert_eq!(new, "pool.tier: a tier that is not known here");
        let long = refused(v1::Pool {
            source: "s".repeat(257),
            ..wire
        });
        let named = v1::Model {
            name: "m".into(),
            ..v1::Model::default()
        };
        let aliases = vec!["a".to_owned(); 65];
        let aliases = model_from_wire(&v1::Model { aliases, ..named }).unwrap_err();
        assert_eq!(
            aliases.to_string(),
            "model.aliases: 65 of them, more than 64"
        );
        assert_eq!(long, "pool.source: 257 bytes, more than 256");
        assert_eq!(
            card_digest_from_wire(&[0; 31]).unwrap_err().to_string(),
            "card digest: 31 bytes instead of 32"
        );
    }
}
