//! Which of a site's workers say how prompts become blocks, where not all say the same.
//!
//! Workers of one cohort have cards that make the same tokens and blocks. At an endpoint
//! Dynamo's frontends serve one cohort alone: the one that they accepted first, for as long as
//! it has a worker there; others get no requests. Of the cohorts that endpoints serve, the
//! largest leads: by its card edges tokenise, and its blocks are told to them.
//!
//! ```text
//! endpoint:  none --a worker--> served --its last worker goes--> the largest left, or none
//! site:      none --a cohort--> leads --no worker left--> the largest, at once
//!                                     --another is larger for a while--> that one
//! ```
//!
//! Among equals the smallest id wins, so that all relays of a site that start together agree.
//! Workers that only compute prompts take no part: they are given tokens, by the cards of those
//! that answer.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::view::WorkersApart;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{CohortId, Place, Role, ServedModel, Sighting, Sightings};

/// How long another cohort must be larger before it leads: workers come and go.
const DWELL: Duration = Duration::from_secs(30);

/// Most groups that are told of; a site has a few.
const APART: usize = 16;

/// Which cohort leads, and who is not of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// The cohort; the last one while no worker is there, and none before the first.
    pub(crate) leading: Option<CohortId>,
    /// Workers that serve otherwise or not at all.
    pub(crate) apart: Vec<Apart>,
}

/// Bytes of an endpoint's name that edges are told.
const PLACE_SHOWN: usize = 180;

/// Workers of one endpoint that don't belong to the cohort that leads, or that their endpoint
/// passes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Apart {
    /// The endpoint.
    pub(crate) place: Place,
    /// Their cohort.
    pub(crate) cohort: CohortId,
    /// How many they are.
    pub(crate) workers: usize,
    /// The fields in which their card differs.
    pub(crate) differs: Vec<&'static str>,
}

impl Apart {
    /// As edges are told it.
    pub(crate) fn view(&self) -> WorkersApart {
        let place = self.place.to_string();
        let shown = place.floor_char_boundary(PLACE_SHOWN);
        WorkersApart {
            place: place[..shown].into(),
            workers: u32::try_from(self.workers).unwrap_or(u32::MAX),
            differs: self.differs.iter().map(|field| (*field).into()).collect(),
        }
    }
}

/// Tells what is seen together with who leads among the workers of this model.
pub(super) async fn follow(
    model: &str,
    mut seen: Sightings,
    told: watch::Sender<Option<Arc<Sighting>>>,
) {
    let mut cohorts = Cohorts::new(model);
    loop {
        let now = seen.borrow_and_update().clone();
        if let Some(now) = now {
            let leadership = cohorts.update(&now.models, Instant::now());
            let sighting = Sighting {
                leadership,
                ..Sighting::clone(&now)
            };
            told.send_if_modified(|last| {
                let changed = last.as_deref() != Some(&sighting);
                if changed {
                    *last = Some(sighting.into());
                }
                changed
            });
        }
        let due = cohorts.poll_timeout();
        let due = async {
            match due {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // Both arms may be dropped while they wait.
        tokio::select! {
            changed = seen.changed() => if changed.is_err() {
                return;
            },
            () = due => {}
        }
    }
}

/// Who serves where, and who leads.
#[derive(Debug, Default)]
struct Cohorts {
    model: String,
    served: BTreeMap<Place, CohortId>,
    leading: Option<CohortId>,
    /// A larger one, and since when it is.
    larger: Option<(CohortId, Instant)>,
    /// Groups that were warned of.
    warned: Vec<(Place, CohortId)>,
}

/// Workers by cohort, one of each to show its card.
type Groups<'a> = BTreeMap<CohortId, (usize, &'a ServedModel)>;

impl Cohorts {
    fn new(model: &str) -> Self {
        Self {
            model: model.to_owned(),
            ..Self::default()
        }
    }

    /// Takes in who is there.
    fn update(&mut self, models: &BTreeMap<String, ServedModel>, now: Instant) -> Leadership {
        let places = self.places(models);
        self.served.retain(|place, _| places.contains_key(place));
        let mut sizes: BTreeMap<CohortId, usize> = BTreeMap::new();
        for (place, groups) in &places {
            let keeps = self.served.get(place).filter(|id| groups.contains_key(id));
            let largest = || largest(groups.iter().map(|(id, (workers, _))| (*id, *workers)));
            let Some(id) = keeps.copied().or_else(largest) else {
                continue;
            };
            self.served.insert((*place).clone(), id);
            *sizes.entry(id).or_default() += groups.get(&id).map_or(0, |(workers, _)| *workers);
        }
        self.lead(&sizes, now);
        let apart = self.apart(&places);
        self.warn(&apart);
        Leadership {
            leading: self.leading,
            apart,
        }
    }

    /// When the leader may change by itself.
    fn poll_timeout(&self) -> Option<Instant> {
        self.larger.map(|(_, since)| since + DWELL)
    }

    /// Our model's workers whose cards prompts are rendered by, by endpoint and cohort.
    fn places<'a>(
        &self,
        models: &'a BTreeMap<String, ServedModel>,
    ) -> BTreeMap<&'a Place, Groups<'a>> {
        let mut places: BTreeMap<&Place, Groups<'a>> = BTreeMap::new();
        for model in models.values() {
            let renders = matches!(model.card.role(), Role::Whole | Role::Decode);
            if renders && model.card.is_called(&self.model) {
                let groups = places.entry(&model.place).or_default();
                groups.entry(model.card.cohort).or_insert((0, model)).0 += 1;
            }
        }
        places
    }

    fn lead(&mut self, sizes: &BTreeMap<CohortId, usize>, now: Instant) {
        let Some(first) = largest(sizes.iter().map(|(id, size)| (*id, *size))) else {
            self.larger = None;
            return;
        };
        let size = |id: CohortId| sizes.get(&id).copied().unwrap_or(0);
        let ours = self.leading.map_or(0, size);
        if ours == 0 {
            self.take_over(first);
        } else if size(first) > ours {
            let since = match self.larger {
                Some((id, since)) if id == first => since,
                _ => now,
            };
            self.larger = Some((first, since));
            if now.duration_since(since) >= DWELL {
                self.take_over(first);
            }
        } else {
            self.larger = None;
        }
    }

    fn take_over(&mut self, cohort: CohortId) {
        self.larger = None;
        let before = self.leading.replace(cohort);
        if before.is_some_and(|before| before != cohort) {
            info!(model = %self.model, "Workers with another card serve the model now");
        }
    }

    fn apart(&self, places: &BTreeMap<&Place, Groups<'_>>) -> Vec<Apart> {
        let mut all = places.values().flatten();
        let leader = all.find(|(id, _)| Some(**id) == self.leading);
        let mut apart = Vec::new();
        for (place, groups) in places {
            let served = self.served.get(*place);
            for (id, (workers, model)) in groups {
                let serves = served == Some(id);
                if serves && Some(*id) == self.leading {
                    continue;
                }
                let served = served.and_then(|id| groups.get(id));
                let other = if serves {
                    leader.map(|it| it.1)
                } else {
                    served
                };
                let differs = other.map(|(_, other)| model.card.differences(&other.card));
                apart.push(Apart {
                    place: (*place).clone(),
                    cohort: *id,
                    workers: *workers,
                    differs: differs.unwrap_or_default(),
                });
            }
        }
        apart.truncate(APART);
        apart
    }

    fn warn(&mut self, apart: &[Apart]) {
        let name = |it: &Apart| (it.place.clone(), it.cohort);
        for group in apart {
            if !self.warned.contains(&name(group)) {
                let Apart {
                    place,
                    workers,
                    differs,
                    ..
                } = group;
                warn!(model = %self.model, %place, workers, ?differs, "Workers' card differs from the one that serves: their blocks are not told to edges");
            }
        }
        self.warned = apart.iter().map(name).collect();
    }
}

/// The largest cohort; of equal ones the smallest id.
fn largest(sizes: impl Iterator<Item = (CohortId, usize)>) -> Option<CohortId> {
    let largest = sizes.max_by_key(|(id, size)| (*size, Reverse(*id)));
    largest.map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::ModelCard;
    use crate::discovery::tests::model_card;

    fn card(block_size: u32, role: &str) -> Arc<ModelCard> {
        let mut raw = model_card("http://127.0.0.1:1");
        raw["kv_cache_block_size"] = block_size.into();
        raw["worker_type"] = role.into();
        Arc::new(ModelCard::parse(raw).unwrap())
    }

    fn id(block_size: u32) -> CohortId {
        card(block_size, "aggregated").cohort
    }

    /// Some workers of one component, with blocks of this size.
    type Group<'a> = (&'a str, u32, usize);

    fn models(groups: &[Group<'_>], role: &str) -> BTreeMap<String, ServedModel> {
        let mut models = BTreeMap::new();
        for (component, block_size, workers) in groups {
            for number in 0..*workers {
                let place = Place {
                    namespace: "prod".into(),
                    component: (*component).into(),
                    endpoint: "generate".into(),
                };
                let name = format!("{component}/{block_size}/{number}");
                let (card, worker) = (card(*block_size, role), models.len() as u64);
                let model = ServedModel {
                    place,
                    worker,
                    card,
                };
                models.insert(name, model);
            }
        }
        models
    }

    struct Site {
        cohorts: Cohorts,
        start: Instant,
    }

    impl Site {
        fn new() -> Self {
            Self {
                cohorts: Cohorts::new("tiny-chat"),
                start: Instant::now(),
            }
        }

        fn see(&mut self, seconds: u64, groups: &[Group<'_>]) -> Leadership {
            let now = self.start + Duration::from_secs(seconds);
            self.cohorts.update(&models(groups, "aggregated"), now)
        }
    }

    #[test]
    fn the_largest_leads_and_the_rest_is_told_with_the_difference() {
        let mut site = Site::new();

        let seen = site.see(0, &[("a", 16, 1), ("b", 32, 2)]);

        assert_eq!(seen.leading, Some(id(32)));
        let [apart] = &seen.apart[..] else {
            panic!("{seen:?}");
        };
        assert_eq!((&*apart.place.component, apart.workers), ("a", 1));
        assert_eq!(apart.differs, ["kv_cache_block_size"]);
    }

    #[test]
    fn equals_are_told_apart_by_name_wherever_they_are() {
        let one = Site::new().see(0, &[("a", 16, 2), ("b", 32, 2)]);
        let other = Site::new().see(0, &[("a", 32, 2), ("b", 16, 2)]);

        assert_eq!(one.leading, Some(id(16).min(id(32))));
        assert_eq!(one.leading, other.leading);
    }

    #[test]
    fn an_endpoint_goes_on_with_whom_it_has_accepted_first() {
        let mut site = Site::new();
        site.see(0, &[("a", 16, 1)]);

        let more = site.see(1, &[("a", 16, 1), ("a", 32, 5)]);
        let later = site.see(1000, &[("a", 16, 1), ("a", 32, 5)]);
        let without = site.see(1001, &[("a", 32, 5)]);

        assert_eq!((more.leading, more.apart[0].workers), (Some(id(16)), 5));
        assert_eq!(later.leading, Some(id(16)));
        assert_eq!((without.leading, without.apart.len()), (Some(id(32)), 0));
    }

    #[test]
    fn a_larger_cohort_elsewhere_leads_after_a_while_and_not_if_it_shrinks() {
        let mut site = Site::new();
        site.see(0, &[("a", 16, 2), ("b", 32, 1)]);

        let larger = site.see(10, &[("a", 16, 1), ("b", 32, 2)]);
        let due = site.cohorts.poll_timeout();
        let equal = site.see(30, &[("a", 16, 2), ("b", 32, 2)]);
        let again = site.see(41, &[("a", 16, 1), ("b", 32, 2)]);
        let soon = site.see(70, &[("a", 16, 1), ("b", 32, 2)]);
        let then = site.see(71, &[("a", 16, 1), ("b", 32, 2)]);

        assert_eq!(due, Some(site.start + Duration::from_secs(40)));
        for before in [larger, equal, again, soon] {
            assert_eq!(before.leading, Some(id(16)));
        }
        assert_eq!(then.leading, Some(id(32)));
        assert_eq!(site.cohorts.poll_timeout(), None);
    }

    #[test]
    fn who_has_led_is_remembered_while_nobody_is_there() {
        let mut site = Site::new();
        let none = site.see(0, &[]);
        site.see(1, &[("a", 16, 1)]);

        let away = site.see(2, &[]);
        let other = site.see(3, &[("a", 32, 1)]);

        assert_eq!(none, Leadership::default());
        assert_eq!(away.leading, Some(id(16)));
        assert_eq!(other.leading, Some(id(32)));
    }

    #[test]
    fn who_only_computes_prompts_takes_no_part() {
        let mut all = models(&[("prefill", 32, 3)], "prefill");
        let now = Instant::now();
        let mut cohorts = Cohorts::new("tiny-chat");
        let alone = cohorts.update(&all, now);
        all.extend(models(&[("backend", 16, 1)], "decode"));

        let both = cohorts.update(&all, now);

        assert_eq!(alone, Leadership::default());
        assert_eq!((both.leading, both.apart.len()), (Some(id(16)), 0));
    }
}
