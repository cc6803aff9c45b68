//! Into which pools a model's workers' blocks belong, as their cards say.
//!
//! The workers of an endpoint whose cards are alike are one part, a pool. Those that do whole
//! requests are told to edges while their cohort leads; those that compute prompts for others
//! always, since the tokens come from elsewhere. What only decodes has no part: a prompt that it
//! holds must be computed all the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::discovery::{CohortId, Place, Publisher, Role, ServedModel, Sighting};
use crate::publish::PoolShape;
use crate::sources::{ListedPart, PartInfo};

/// Most parts; blocks of further ones are not followed.
const PARTS: usize = 64;
/// Most bytes of an endpoint's name, all parts together.
const PLACE_BYTES: usize = 180;

/// Whether a publisher can be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It tells of this part's blocks.
    Of(Arc<PartInfo>),
    /// Its worker has told no card yet. It is heard, for what it says is said once.
    Awaited,
    /// Its blocks are of no use, for this reason.
    Unfit(&'static str),
    /// Nobody here can hear it.
    Unheard,
}

impl Fit {
    /// Whether what it tells is taken in.
    pub(super) const fn is_followed(&self) -> bool {
        matches!(self, Self::Of(_) | Self::Awaited)
    }

    /// Whether a publisher that was `before` can't be followed on as it was. A card that goes
    /// before its publisher does, changes nothing.
    pub(super) fn is_other_than(&self, before: &Self) -> bool {
        match (before, self) {
            (Self::Awaited, Self::Of(_)) | (Self::Of(_), Self::Awaited) => false,
            (before, now) => before != now,
        }
    }
}

/// Those of a sighting that serve the model.
pub(super) struct Workers<'a> {
    by_id: BTreeMap<u64, Worker<'a>>,
    parts: Vec<ListedPart>,
    leading: Option<CohortId>,
}

/// A worker, and its part, or why it has none.
struct Worker<'a> {
    model: &'a ServedModel,
    part: Result<Arc<PartInfo>, &'static str>,
}

impl<'a> Workers<'a> {
    /// Those that serve `model`; their blocks must look as is `wanted`, if the configuration
    /// says so.
    pub(super) fn of(seen: &'a Sighting, model: &str, wanted: Option<PoolShape>) -> Self {
        let mut workers = Self {
            by_id: BTreeMap::new(),
            parts: Vec::new(),
            leading: seen.leadership.leading,
        };
        for model in seen.models.values().filter(|it| it.card.is_called(model)) {
            let part = match part(model, wanted) {
                Ok(of) => workers.list(of, model, seen.leadership.leading),
                Err(reason) => Err(reason),
            };
            workers.by_id.insert(model.worker, Worker { model, part });
        }
        workers
    }

    fn list(
        &mut self,
        of: PartInfo,
        model: &ServedModel,
        leading: Option<CohortId>,
    ) -> Result<Arc<PartInfo>, &'static str> {
        let blocks = model.card.worker_blocks();
        if let Some(part) = self.parts.iter_mut().find(|part| *part.of == of) {
            let both = part.capacity_blocks.zip(blocks);
            part.capacity_blocks = both.map(|(all, more)| all.saturating_add(more));
            return Ok(Arc::clone(&part.of));
        }
        if self.parts.len() >= PARTS {
            return Err("there are too many pools");
        }
        let part = ListedPart {
            told: of.cohort.is_none() || of.cohort == leading,
            of: Arc::new(of),
            capacity_blocks: blocks,
        };
        let of = Arc::clone(&part.of);
        self.parts.push(part);
        Ok(of)
    }

    /// Those that get requests, by instance: no frontend sends any to workers of whole requests
    /// that have another card than the one that the model is served by.
    pub(super) fn serving(&self) -> impl Iterator<Item = (u64, &'a ServedModel)> {
        let workers = self.by_id.iter();
        let serving = workers.filter(|(_, worker)| {
            let card = &worker.model.card;
            let is_apart = self.leading.is_some_and(|leading| card.cohort != leading);
            !is_apart || card.role() != Role::Whole
        });
        serving.map(|(id, worker)| (*id, worker.model))
    }

    /// All parts.
    pub(super) fn parts(&self) -> &[ListedPart] {
        &self.parts
    }

    /// Whose blocks a publisher tells of. Older workers don't say that it speaks for them: then
    /// it goes by its endpoint, if all workers there have one part.
    pub(super) fn fit(&self, publisher: &Publisher) -> Fit {
        let part = match publisher.worker {
            Some(of) => self.by_id.get(&of.worker).map(|worker| &worker.part),
            None => self.part_at(&publisher.place),
        };
        match part {
            None => Fit::Awaited,
            Some(Ok(of)) => Fit::Of(Arc::clone(of)),
            Some(Err(reason)) => Fit::Unfit(reason),
        }
    }

    fn part_at(&self, place: &Place) -> Option<&Result<Arc<PartInfo>, &'static str>> {
        let workers = self.by_id.values();
        let mut there = workers.filter(|worker| worker.model.place.fits(place));
        let first = there.next()?;
        let alike = there.all(|other| other.part == first.part);
        alike.then_some(&first.part)
    }
}

/// A worker's part, or why it has none.
fn part(model: &ServedModel, wanted: Option<PoolShape>) -> Result<PartInfo, &'static str> {
    let cohort = match model.card.role() {
        Role::Whole => Some(model.card.cohort),
        Role::Prefill => None,
        Role::Decode | Role::Other => return Err("its worker computes no prompts"),
    };
    let shape = model.card.shape().ok_or("its card has no block size")?;
    if wanted.is_some_and(|wanted| wanted != shape) {
        return Err("its blocks look otherwise than is configured");
    }
    let place = model.place.to_string();
    if place.len() > PLACE_BYTES || place.chars().any(char::is_control) {
        return Err("its endpoint's name is too long, or none");
    }
    Ok(PartInfo {
        place,
        cohort,
        shape,
    })
}
