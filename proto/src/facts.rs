//! How a relay's pools are fed, on the wire. Times travel as ages.

use std::sync::Arc;

use kvgrid_core::view::PoolFacts;
use kvgrid_core::{Instant, PoolId};

use crate::convert::{ConvertError, age, before};
use crate::v1;

/// Most pools of one relay.
const POOL_LIMIT: usize = 4096;
/// Most reasons of one pool, and longest one.
const REASON_LIMIT: usize = 64;

/// The facts, as the relay writes them at `now`.
pub fn facts_to_wire(facts: &[(PoolId, PoolFacts)], now: Instant) -> v1::Facts {
    let pool = |(id, facts): &(PoolId, PoolFacts)| v1::PoolFacts {
        pool_id: id.0,
        accepted: facts.accepted,
        refused: facts.refused.iter().map(refused_to_wire).collect(),
        copies: facts.copies,
        orphans: facts.orphans,
        gaps: facts.gaps,
        repairs: facts.repairs,
        age_micros: facts.heard_at.map(|at| age(at, now)),
        refused_blocks: facts.refused_blocks,
    };
    v1::Facts {
        pools: facts.iter().map(pool).collect(),
    }
}

/// The facts, as the edge reads them at `now`.
pub fn facts_from_wire(
    wire: &v1::Facts,
    now: Instant,
) -> Result<Vec<(PoolId, PoolFacts)>, ConvertError> {
    bounded("facts.pools", wire.pools.len(), POOL_LIMIT)?;
    let pool = |wire: &v1::PoolFacts| {
        bounded("facts.pool.refused", wire.refused.len(), REASON_LIMIT)?;
        let refused = wire.refused.iter().map(refused_from_wire);
        let facts = PoolFacts {
            accepted: wire.accepted,
            refused: refused.collect::<Result<_, _>>()?,
            refused_blocks: wire.refused_blocks,
            copies: wire.copies,
            orphans: wire.orphans,
            gaps: wire.gaps,
            repairs: wire.repairs,
            heard_at: wire.age_micros.map(|age| before(now, age)),
        };
        Ok((PoolId(wire.pool_id), facts))
    };
    wire.pools.iter().map(pool).collect()
}

fn refused_to_wire((reason, count): &(Arc<str>, u64)) -> v1::Refused {
    v1::Refused {
        reason: reason.as_ref().into(),
        count: *count,
    }
}

fn refused_from_wire(wire: &v1::Refused) -> Result<(Arc<str>, u64), ConvertError> {
    bounded("facts.pool.refused.reason", wire.reason.len(), REASON_LIMIT)?;
    Ok((wire.reason.as_str().into(), wire.count))
}

fn bounded(field: &'static str, count: usize, limit: usize) -> Result<(), ConvertError> {
    if count > limit {
        return Err(ConvertError::invalid(
            field,
            format!("{count}, more than {limit}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> PoolFacts {
        PoolFacts {
            accepted: Some(0),
            refused: vec![("block_size".into(), 3)],
            refused_blocks: Some(2),
            copies: None,
            orphans: Some(4),
            gaps: Some(5),
            repairs: Some(0),
            heard_at: Some(Instant::from_micros(600)),
        }
    }

    #[test]
    fn facts_survive_the_wire_and_the_unknown_stays_unknown() {
        let all = [(PoolId(1), facts()), (PoolId(2), PoolFacts::default())];

        let wire = facts_to_wire(&all, Instant::from_micros(1000));

        assert_eq!(wire.pools[0].age_micros, Some(400));
        assert_eq!(wire.pools[0].copies, None);
        let read = facts_from_wire(&wire, Instant::from_micros(1000)).unwrap();
        assert_eq!(read, all);
    }

    #[test]
    fn facts_beyond_all_reason_are_refused_by_name() {
        let refused = |wire: &v1::Facts| facts_from_wire(wire, Instant::ZERO).unwrap_err();
        let mut long = facts_to_wire(&[(PoolId(1), facts())], Instant::ZERO);
        long.pools[0].refused[0].reason = "r".repeat(65);
        let many = v1::Facts {
            pools: vec![v1::PoolFacts::default(); 4097],
        };

        assert_eq!(
            refused(&long).to_string(),
            "facts.pool.refused.reason: 65, more than 64"
        );
        assert_eq!(
            refused(&many).to_string(),
            "facts.pools: 4097, more than 4096"
        );
    }
}
