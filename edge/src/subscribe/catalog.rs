//! Reads a relay's catalog: its models and its pools.

use std::collections::BTreeMap;

use kvgrid_core::view::{ModelView, PoolView};
use kvgrid_core::{ModelId, PoolId};
use kvgrid_proto::v1;
use thiserror::Error;

/// Most models of one relay.
const MODEL_LIMIT: usize = 1024;

/// Most pools of one relay.
const POOL_LIMIT: usize = 4096;

/// Why a catalog is not taken. The relay is at fault; what was known before stays.
#[derive(Debug, Error)]
pub(super) enum CatalogError {
    #[error("{count} {what}, more than {limit}")]
    TooMany {
        what: &'static str,
        count: usize,
        limit: usize,
    },
    #[error(transparent)]
    Field(#[from] kvgrid_proto::ConvertError),
    #[error("pool {0:x} is listed twice")]
    PoolTwice(u64),
}

/// The models and pools of a catalog; the pools with empty replicas.
pub(super) fn read(wire: &v1::Catalog) -> Result<(Vec<ModelView>, Vec<PoolView>), CatalogError> {
    bounded("models", wire.models.len(), MODEL_LIMIT)?;
    bounded("pools", wire.pools.len(), POOL_LIMIT)?;
    // Of a model that is listed twice, the last counts.
    let mut models: BTreeMap<ModelId, ModelView> = BTreeMap::new();
    for model in &wire.models {
        let model = kvgrid_proto::model_from_wire(model)?;
        models.insert(model.id, model);
    }
    let mut pools: BTreeMap<PoolId, PoolView> = BTreeMap::new();
    for pool in &wire.pools {
        let pool = kvgrid_proto::pool_from_wire(pool)?;
        let id = pool.id;
        if pools.insert(id, pool).is_some() {
            return Err(CatalogError::PoolTwice(id.0));
        }
    }
    Ok((
        models.into_values().collect(),
        pools.into_values().collect(),
    ))
}

fn bounded(what: &'static str, count: usize, limit: usize) -> Result<(), CatalogError> {
    if count > limit {
        return Err(CatalogError::TooMany { what, count, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(id: u64) -> v1::Pool {
        v1::Pool {
            pool_id: id,
            block_size: 16,
            hash_format: v1::HashFormat::Standard.into(),
            tier: v1::Tier::Device.into(),
            ..v1::Pool::default()
        }
    }

    #[test]
    fn a_pool_listed_twice_is_refused() {
        let wire = v1::Catalog {
            models: Vec::new(),
            pools: vec![pool(1), pool(2), pool(1)],
        };

        let error = read(&wire).unwrap_err();

        assert_eq!(error.to_string(), "pool 1 is listed twice");
    }

    #[test]
    fn a_catalog_beyond_all_reason_is_refused() {
        let wire = v1::Catalog {
            models: Vec::new(),
            pools: (0..5000).map(pool).collect(),
        };

        let error = read(&wire).unwrap_err();

        assert_eq!(error.to_string(), "5000 pools, more than 4096");
    }
}
