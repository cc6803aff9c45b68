//! Which cache salt a block was stored under, handed down from parent to child.
//!
//! Engines name a salt with a prompt's first blocks only. Salted blocks are remembered as long
//! as copies of them exist; all others cost nothing. A name seen with and without salt, or with
//! two, is ambiguous for good: what is stored below it is refused, because a wrong guess would
//! show one tenant's blocks to another.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Refusal;
use crate::event::EngineHash;

/// Salts of blocks, per rank.
#[derive(Clone, Debug)]
pub(super) struct Salts {
    blocks: BTreeMap<(u32, EngineHash), Salted>,
    limit: usize,
}

#[derive(Clone, Debug)]
struct Salted {
    /// `None` when ambiguous.
    salt: Option<Arc<str>>,
    copies: u32,
}

impl Salts {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            blocks: BTreeMap::new(),
            limit,
        }
    }

    /// The salt of a run below `parent` that names `own` itself.
    pub(super) fn of_run(
        &self,
        rank: u32,
        parent: Option<EngineHash>,
        own: Option<&str>,
    ) -> Result<Option<Arc<str>>, Refusal> {
        let inherited = parent.and_then(|parent| self.blocks.get(&(rank, parent)));
        match (own.filter(|own| !own.is_empty()), inherited) {
            (
                Some(own),
                Some(Salted {
                    salt: Some(salt), ..
                }),
            ) if **salt == *own => Ok(Some(Arc::clone(salt))),
            (Some(own), _) => Ok(Some(own.into())),
            (None, None) => Ok(None),
            (None, Some(Salted { salt: None, .. })) => Err(Refusal::Salt),
            (None, Some(Salted { salt, .. })) => Ok(salt.clone()),
        }
    }

    /// Remembers that these blocks were stored under `salt`.
    pub(super) fn store(
        &mut self,
        rank: u32,
        blocks: &[EngineHash],
        salt: Option<&Arc<str>>,
    ) -> Result<(), Refusal> {
        if salt.is_some() && self.blocks.len().saturating_add(blocks.len()) > self.limit {
            return Err(Refusal::Salt);
        }
        for block in blocks {
            let known = self.blocks.get_mut(&(rank, *block));
            match (known, salt) {
                (None, None) => {}
                (None, Some(salt)) => {
                    let salt = Some(Arc::clone(salt));
                    self.blocks
                        .insert((rank, *block), Salted { salt, copies: 1 });
                }
                (Some(known), salt) => {
                    if known.salt.as_ref() != salt {
                        known.salt = None;
                    }
                    known.copies = known.copies.saturating_add(1);
                }
            }
        }
        Ok(())
    }

    /// Forgets one copy of each of these blocks.
    pub(super) fn remove(&mut self, rank: u32, blocks: &[EngineHash]) {
        if self.blocks.is_empty() {
            return;
        }
        for block in blocks {
            if let Some(known) = self.blocks.get_mut(&(rank, *block)) {
                known.copies = known.copies.saturating_sub(1);
                if known.copies == 0 && known.salt.is_some() {
                    self.blocks.remove(&(rank, *block));
                }
            }
        }
    }

    /// Forgets all blocks of a rank.
    pub(super) fn clear(&mut self, rank: u32) {
        self.blocks.retain(|(of, _), _| *of != rank);
    }
}
