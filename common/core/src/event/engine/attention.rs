//! Which blocks belong to full attention, the only ones a prefix hit needs whole.
//!
//! Hybrid models keep several groups of blocks. Stores name a group's kind, removals only its
//! number, so kinds are learned. Without any kind, group 0 and no group are taken for full.

use std::collections::BTreeMap;

use super::Refusal;

/// Most groups that are learned, over all ranks.
const GROUPS: usize = 4096;

/// Kinds of groups, as learned from stores.
#[derive(Clone, Debug, Default)]
pub(super) struct Attention {
    /// (rank, group) -> whether it is full attention.
    groups: BTreeMap<(u32, u64), bool>,
}

impl Attention {
    /// Learns what a store says about its group.
    pub(super) fn learn(&mut self, rank: u32, group: Option<u64>, kind: Option<&[u8]>) {
        let (Some(group), Some(kind)) = (group, kind) else {
            return;
        };
        if self.groups.len() < GROUPS || self.groups.contains_key(&(rank, group)) {
            self.groups.insert((rank, group), is_full(kind));
        }
    }

    /// Whether an event with these fields is about full attention.
    pub(super) fn check(
        &self,
        rank: u32,
        group: Option<u64>,
        kind: Option<&[u8]>,
    ) -> Result<(), Refusal> {
        let full = match (kind, group) {
            (Some(kind), _) => is_full(kind),
            (None, None) => true,
            (None, Some(group)) => match self.groups.get(&(rank, group)) {
                Some(full) => *full,
                None => group == 0,
            },
        };
        if full {
            Ok(())
        } else {
            Err(Refusal::Attention)
        }
    }
}

fn is_full(kind: &[u8]) -> bool {
    matches!(
        kind,
        b"full_attention" | b"mla_attention" | b"sink_full_attention"
    )
}
