//! What the site serves, joined from the configuration, its card and its frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::select_all;
use kvgrid_core::view::ModelView;
use kvgrid_core::{ModelId, ModelName};
use tokio::sync::watch;

use crate::card::CardReport;
use crate::discovery::{Apart, Sighting, Sightings};
use crate::frontend::Served;
use crate::load::Pages;
use crate::publish::Catalog;

/// The models that the configuration names.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// The models.
    pub(crate) models: BTreeSet<ModelName>,
}

impl Offer {
    /// The catalog of what is served now. Capacities that the card doesn't tell are taken from
    /// `kv_blocks`, what workers say of a model beside its card from `seen`.
    fn catalog(
        &self,
        card: &CardReport,
        served: &Served,
        kv_blocks: &BTreeMap<ModelId, u64>,
        seen: &BTreeMap<ModelId, Arc<Sighting>>,
    ) -> Catalog {
        let site_card = card.card.as_ref();
        let model = |name: &ModelName| {
            let id = name.id();
            let card = site_card.filter(|card| card.model == *name);
            let card = card.map(|card| {
                let mut info = card.info.clone();
                info.capacity_blocks = info.capacity_blocks.or(kv_blocks.get(&id).copied());
                info
            });
            let seen = seen.get(&id);
            let aliases = seen.map(|seen| seen.other_names(name));
            let listed = |name: &ModelName| served.models.contains(name.as_str());
            // A frontend that doesn't answer has not taken its names back.
            let called = |name: &ModelName| listed(name) || !served.reachable;
            let apart = seen.map(|seen| seen.leadership.apart.as_slice());
            ModelView {
                name: name.clone(),
                id,
                aliases: aliases.into_iter().flatten().filter(called).collect(),
                ready: listed(name),
                card,
                apart: apart.into_iter().flatten().map(Apart::view).collect(),
            }
        };
        Catalog {
            models: self.models.iter().map(model).collect(),
            cards: site_card
                .into_iter()
                .map(|card| (card.info.digest, card.bytes.clone()))
                .collect(),
        }
    }
}

/// What is told of.
pub(crate) struct Facts {
    /// The card.
    pub(crate) cards: watch::Receiver<CardReport>,
    /// What the frontend serves.
    pub(crate) served: watch::Receiver<Served>,
    /// What metrics pages say.
    pub(crate) pages: watch::Receiver<Arc<Pages>>,
    /// What workers say of a model in a discovery.
    pub(crate) sightings: BTreeMap<ModelId, Sightings>,
}

/// Tells edges what is served, whenever that changes, until its sources end.
pub(crate) async fn tell(offer: Offer, facts: Facts, catalog: watch::Sender<Arc<Catalog>>) {
    let Facts {
        mut cards,
        mut served,
        mut pages,
        mut sightings,
    } = facts;
    loop {
        let now = {
            let seen = sightings.iter_mut().filter_map(|(model, seen)| {
                let seen = seen.borrow_and_update().clone();
                Some((*model, seen?))
            });
            let seen = seen.collect();
            let kv_blocks = pages.borrow_and_update().kv_blocks();
            let card = cards.borrow_and_update();
            let served = served.borrow_and_update();
            offer.catalog(&card, &served, &kv_blocks, &seen)
        };
        catalog.send_if_modified(|told| {
            let changed = told.models != now.models;
            if changed {
                *told = Arc::new(now);
            }
            changed
        });
        // All arms may be dropped while they wait: what changed stays marked as unseen.
        let goes_on = tokio::select! {
            changed = served.changed() => changed.is_ok(),
            changed = pages.changed() => changed.is_ok(),
            () = changes(&mut cards) => true,
            () = any_changes(&mut sightings) => true,
        };
        if !goes_on {
            return;
        }
    }
}

/// Waits for another card, say; a configured one never changes, and nobody tells it any more.
async fn changes<T>(told: &mut watch::Receiver<T>) {
    if told.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits for another sighting; of a discovery that ends with the relay, nothing comes.
async fn any_changes(sightings: &mut BTreeMap<ModelId, Sightings>) {
    let all = sightings.values_mut().map(|seen| Box::pin(changes(seen)));
    let all: Vec<_> = all.collect();
    if all.is_empty() {
        std::future::pending::<()>().await;
    }
    select_all(all).await;
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kvgrid_core::block::HashFormat;
    use kvgrid_core::view::{CardDigest, CardInfo};

    use super::*;
    use crate::card::SiteCard;

    fn name(text: &str) -> ModelName {
        ModelName::new(text).unwrap()
    }

    fn offer() -> Offer {
        Offer {
            models: BTreeSet::from([name("carded"), name("bare")]),
        }
    }

    fn card(capacity_blocks: Option<u64>) -> CardReport {
        let info = CardInfo {
            digest: CardDigest([1; 32]),
            block_size: 16.try_into().unwrap(),
            format: HashFormat::Standard,
            capacity_blocks,
            context_length: None,
            usable: false,
        };
        CardReport::configured(SiteCard {
            model: name("carded"),
            info,
            bytes: Bytes::from_static(b"card"),
            unsupported: None,
        })
    }

    fn served(models: &[&str]) -> Served {
        Served {
            reachable: true,
            models: models.iter().map(|model| (*model).to_owned()).collect(),
        }
    }

    #[test]
    fn a_model_is_ready_while_the_frontend_lists_it() {
        let none = offer().catalog(
            &card(None),
            &Served::default(),
            &BTreeMap::new(),
            &BTreeMap::new(),
        );
        let one = offer().catalog(
            &card(None),
            &served(&["carded", "unknown"]),
            &BTreeMap::new(),
            &BTreeMap::new(),
        );

        assert!(none.models.iter().all(|model| !model.ready));
        let ready: Vec<_> = one
            .models
            .iter()
            .map(|m| (m.name.as_str(), m.ready))
            .collect();
        assert_eq!(ready, [("bare", false), ("carded", true)]);
    }

    #[test]
    fn the_card_is_told_with_its_model_alone() {
        let catalog = offer().catalog(
            &card(None),
            &Served::default(),
            &BTreeMap::new(),
            &BTreeMap::new(),
        );

        assert_eq!(catalog.models[0].card, None);
        let digest = catalog.models[1].card.as_ref().unwrap().digest;
        assert_eq!(catalog.cards[&digest], "card");
    }

    #[tokio::test]
    async fn a_card_that_nobody_changes_any_more_stays() {
        let (served_sender, served_now) = watch::channel(Served::default());
        let (_pages, pages) = watch::channel(Arc::default());
        let (catalog, mut told) = watch::channel(Arc::default());
        let (_, cards) = watch::channel(card(None));
        let mut tasks = tokio::task::JoinSet::new();
        let facts = Facts {
            cards,
            served: served_now,
            pages,
            sightings: BTreeMap::new(),
        };
        tasks.spawn(tell(offer(), facts, catalog));
        told.changed().await.unwrap();

        served_sender.send_replace(served(&["carded"]));
        told.changed().await.unwrap();

        assert!(told.borrow().models[1].ready);
    }

    #[test]
    fn a_card_that_is_withdrawn_is_told_no_more() {
        let catalog = offer().catalog(
            &CardReport::default(),
            &Served::default(),
            &BTreeMap::new(),
            &BTreeMap::new(),
        );

        assert!(catalog.cards.is_empty());
        assert!(catalog.models.iter().all(|model| model.card.is_none()));
    }

    #[test]
    fn a_capacity_that_is_configured_wins_over_the_frontends() {
        let measured = BTreeMap::from([(name("carded").id(), 7)]);
        let capacity = |card: CardReport| {
            let catalog = offer().catalog(&card, &Served::default(), &measured, &BTreeMap::new());
            catalog.models[1].card.as_ref().unwrap().capacity_blocks
        };

        assert_eq!(capacity(card(None)), Some(7));
        assert_eq!(capacity(card(Some(5))), Some(5));
    }

    #[test]
    fn other_names_are_told_that_the_frontend_lists_and_workers_apart() {
        let mut raw = crate::discovery::tests::model_card("http://127.0.0.1:1");
        raw["display_name"] = "carded".into();
        raw["aliases"] = serde_json::json!(["chat", "unlisted", "bad\u{7}name"]);
        let model = |size: u32| {
            raw["kv_cache_block_size"] = size.into();
            crate::discovery::ServedModel {
                place: crate::discovery::Place {
                    // Longer than edges take.
                    endpoint: "é".repeat(200),
                    ..crate::discovery::Place::default()
                },
                worker: size.into(),
                card: Arc::new(crate::discovery::ModelCard::parse(raw.clone()).unwrap()),
            }
        };
        let models: Vec<_> = [16, 32].map(model).into();
        let leading = models[0].card.cohort;
        let apart = Apart {
            place: models[1].place.clone(),
            cohort: models[1].card.cohort,
            workers: 3,
            differs: vec!["kv_cache_block_size"],
        };
        let named = |model| (format!("{model:?}"), model);
        let seen = Sighting {
            models: models.into_iter().map(named).collect(),
            leadership: crate::discovery::Leadership {
                leading: Some(leading),
                apart: vec![apart],
            },
            ..Sighting::default()
        };

        let seen = BTreeMap::from([(name("carded").id(), Arc::new(seen))]);
        let served = served(&["carded", "chat"]);
        let catalog = offer().catalog(&card(None), &served, &BTreeMap::new(), &seen);

        assert_eq!(catalog.models[0].aliases, []);
        assert_eq!(catalog.models[1].aliases, [name("chat")]);
        let [apart] = &catalog.models[1].apart[..] else {
            panic!("{catalog:?}");
        };
        assert_eq!(apart.workers, 3);
        assert_eq!(apart.differs, ["kv_cache_block_size".into()]);
        assert!(apart.place.len() <= 256);

        let silent = offer().catalog(&card(None), &Served::default(), &BTreeMap::new(), &seen);
        assert!(silent.models[1].aliases.contains(&name("chat")));
        assert!(!silent.models[1].ready);
    }
}
