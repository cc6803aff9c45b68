//! What is wrong with a pool, in plain words, as far as it can be told from here.

use kvgrid_core::parity::Missed;
use kvgrid_core::replication::Completeness;
use kvgrid_core::view::{PoolFacts, PoolView};

/// Why a pool that got so many requests in vain may never match.
pub(crate) fn unmatched(pool: &PoolView, missed: Missed) -> String {
    let refused = pool.facts.as_deref().map(|facts| refused(pool, facts));
    let refused = refused.unwrap_or_default();
    let mut words = vec![evidence(missed)];
    // What is refused explains a pool that holds nothing. Beside one that holds something it may
    // be little or much: it counts events, and nothing else does.
    if refused.is_empty() || pool.replica.blocks > 0 {
        words.push(cause(pool));
    }
    words.extend(refused);
    words.join(" ")
}

fn evidence(Missed { requests, told }: Missed) -> String {
    let others = requests.saturating_sub(told);
    if others == 0 {
        return format!(
            "{requests} requests in a row had blocks cached at the site, as it says, and this \
             pool knew none of them."
        );
    }
    if told == 0 {
        return format!(
            "{requests} requests in a row began as earlier ones that were sent to the site, and \
             this pool knew none of their blocks. What it had cached of them the site doesn't say."
        );
    }
    format!(
        "{requests} requests in a row should have matched, and this pool knew none of their \
         blocks: of {told} the site says that blocks were cached, {others} began as earlier ones."
    )
}

/// What the relay refuses for this pool: the most frequent reason of events, and blocks.
fn refused(pool: &PoolView, facts: &PoolFacts) -> Vec<String> {
    let worst = facts.refused.iter().max_by_key(|(_, count)| *count);
    let events = worst.map(|(reason, count)| match &**reason {
        "block_size" => format!(
            "The source's blocks have another size than {} tokens ({count} events refused): set \
             the source's block size to the engines'.",
            pool.block_size
        ),
        reason => format!(
            "The relay refuses what the source says ({count} events as {reason}): see \
             kvgrid_relay_source_refused_events."
        ),
    });
    let full = facts.refused_blocks.filter(|blocks| *blocks > 0);
    let full = full.map(|blocks| {
        format!(
            "The relay has reached a limit for this pool ({blocks} blocks refused): see \
             kvgrid_relay_pool_refused_blocks."
        )
    });
    events.into_iter().chain(full).collect()
}

fn cause(pool: &PoolView) -> String {
    let facts = pool.facts.as_deref();
    let accepted = facts.and_then(|facts| facts.accepted);
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
        "Its source tells blocks, but under other hashes than the prompts': does it listen to this \
         site's engines, is the block size {} tokens, the hash format {:?}, and are salts and \
         adapters the same there?",
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
    use kvgrid_core::{ModelId, PoolId};

    use super::*;

    const TOLD: Missed = Missed {
        requests: 20,
        told: 20,
    };

    fn why(facts: Option<PoolFacts>, blocks: u64, missed: Missed) -> String {
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
                blocks,
                ..ReplicaView::default()
            },
            facts: facts.map(Arc::new),
        };
        unmatched(&pool, missed)
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
            (None, 0, "do the engines publish KV events"),
            (fed(0, &[]), 0, "do the engines publish KV events"),
            (
                fed(0, &[("block_size", 9)]),
                0,
                "another size than 16 tokens (9 events",
            ),
            // Removals are taken in whatever the size.
            (
                fed(70, &[("block_size", 9)]),
                0,
                "another size than 16 tokens (9 events",
            ),
            (
                fed(3, &[("adapter", 9), ("salt", 4)]),
                3,
                "(9 events as adapter)",
            ),
            (fed(900, &[("block_size", 9)]), 900, "under other hashes"),
        ];

        for (facts, blocks, cause) in causes {
            let words = why(facts.clone(), blocks, TOLD);
            assert!(words.starts_with("20 requests in a row"), "{words}");
            assert!(words.contains(cause), "{facts:?}: {words}");
        }
    }

    #[test]
    fn events_that_are_refused_are_told_beside_blocks_and_not_compared_with_them() {
        // A message of one event may hold thousands of blocks.
        for accepted in [1, 9, 5000] {
            let words = why(fed(accepted, &[("salt", 9)]), accepted, TOLD);

            assert!(words.contains("under other hashes"), "{words}");
            assert!(words.contains("(9 events as salt)"), "{words}");
        }
        let words = why(fed(70, &[("salt", 9)]), 0, TOLD);
        assert!(!words.contains("under other hashes"), "{words}");
    }

    #[test]
    fn blocks_that_found_no_room_are_no_events() {
        let full = PoolFacts {
            refused_blocks: Some(7),
            ..fed(900, &[]).unwrap()
        };

        let words = why(Some(full), 900, TOLD);

        assert!(words.contains("7 blocks refused"), "{words}");
        assert!(
            words.contains("kvgrid_relay_pool_refused_blocks"),
            "{words}"
        );
        assert!(!words.contains("events"), "{words}");
    }

    #[test]
    fn a_site_that_says_nothing_is_not_said_to_have_cached_anything() {
        let missed = |told| Missed { requests: 20, told };

        let said = why(None, 0, missed(20));
        let silent = why(None, 0, missed(0));
        let both = why(None, 0, missed(5));

        assert!(said.contains("cached at the site, as it says"), "{said}");
        assert!(silent.contains("began as earlier ones"), "{silent}");
        assert!(silent.contains("the site doesn't say"), "{silent}");
        assert!(both.contains("of 5 the site says"), "{both}");
        assert!(both.contains("15 began as earlier ones"), "{both}");
    }
}
