//! What is wrong with a pool, in plain words, as far as it can be told from here.

use kvgrid_core::replication::Completeness;
use kvgrid_core::view::PoolView;

/// Why a pool that got so many requests in vain may never match.
pub(crate) fn unmatched(pool: &PoolView, requests: u32) -> String {
    let mut words = format!(
        "{requests} requests in a row had blocks cached at the site, and this pool knew none of \
         them. "
    );
    words.push_str(&cause(pool));
    words
}

fn cause(pool: &PoolView) -> String {
    let facts = pool.facts.as_deref();
    let refused = facts.map_or(&[][..], |facts| &facts.refused);
    let accepted = facts.and_then(|facts| facts.accepted);
    let worst = refused.iter().max_by_key(|(_, count)| *count);
    if let Some((reason, count)) = worst
        && *count > accepted.unwrap_or(0)
    {
        return match &**reason {
            "block_size" => format!(
                "The source's blocks have another size than {} tokens ({count} events refused): \
                 set the source's block size to the engines'.",
                pool.block_size
            ),
            reason => format!(
                "Most of what the source says is refused ({count} events as {reason}): see \
                 kvgrid_relay_source_refused_events."
            ),
        };
    }
    if matches!(
        pool.replica.completeness,
        Completeness::Partial | Completeness::Incomplete
    ) {
        return "Its relay knows only part of what the workers hold, as it began to listen after \
                them: it will know all once each has started anew."
            .into();
    }
    if accepted == Some(0) || (accepted.is_none() && pool.replica.blocks == 0) {
        return "Its source has told nothing: do the engines publish KV events, and to where the \
                relay listens?"
            .into();
    }
    format!(
        "Its source tells blocks, but under other hashes than the prompts': is the block size {} \
         tokens, the hash format {:?}, and are salts and adapters the same at the engines?",
        pool.block_size, pool.format
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvgrid_core::block::HashFormat;
    use kvgrid_core::ckf::Naming;
    use kvgrid_core::event::Tier;
    use kvgrid_core::replication::ReplicaView;
    use kvgrid_core::view::PoolFacts;
    use kvgrid_core::{ModelId, PoolId};

    use super::*;

    fn why(facts: Option<PoolFacts>) -> String {
        let pool = PoolView {
            id: PoolId(1),
            model: ModelId(1),
            source: "engines".into(),
            block_size: 16.try_into().unwrap(),
            format: HashFormat::Standard,
            naming: Naming::Chain,
            tier: Tier::Device,
            closed: true,
            eviction_age: None,
            replica: ReplicaView {
                completeness: Completeness::Whole,
                ..ReplicaView::default()
            },
            facts: facts.map(Arc::new),
        };
        unmatched(&pool, 20)
    }

    fn fed(accepted: u64, refused: &[(&str, u64)]) -> Option<PoolFacts> {
        let refused = refused
            .iter()
            .map(|(reason, count)| ((*reason).into(), *count));
        Some(PoolFacts {
            accepted: Some(accepted),
            refused: refused.collect(),
            ..PoolFacts::default()
        })
    }

    #[test]
    fn the_likely_cause_follows_from_how_the_pool_is_fed() {
        let causes = [
            (None, "do the engines publish KV events"),
            (fed(0, &[]), "do the engines publish KV events"),
            (
                fed(0, &[("block_size", 9)]),
                "another size than 16 tokens (9 events",
            ),
            (
                fed(3, &[("adapter", 9), ("salt", 4)]),
                "(9 events as adapter)",
            ),
            (fed(900, &[("block_size", 9)]), "under other hashes"),
        ];

        for (facts, cause) in causes {
            let words = why(facts.clone());
            assert!(words.starts_with("20 requests in a row"), "{words}");
            assert!(words.contains(cause), "{facts:?}: {words}");
        }
    }
}
