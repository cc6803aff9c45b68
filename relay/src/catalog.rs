//! What the site serves, joined from the configuration, its card and its frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvgrid_core::view::ModelView;
use kvgrid_core::{ModelId, ModelName};
use tokio::sync::watch;

use crate::card::CardReport;
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
    /// `kv_blocks`.
    fn catalog(
        &self,
        card: &CardReport,
        served: &Served,
        kv_blocks: &BTreeMap<ModelId, u64>,
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
            ModelView {
                name: name.clone(),
                id,
                aliases: Vec::new(),
                ready: served.models.contains(name.as_str()),
                card,
                apart: Vec::new(),
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

/// Tells edges what is served, whenever that changes, until its sources end.
pub(crate) async fn tell(
    offer: Offer,
    cards: watch::Receiver<CardReport>,
    served: watch::Receiver<Served>,
    pages: watch::Receiver<Arc<Pages>>,
    catalog: watch::Sender<Arc<Catalog>>,
) {
    let (mut cards, mut served, mut pages) = (cards, served, pages);
    loop {
        let now = {
            let kv_blocks = pages.borrow_and_update().kv_blocks();
            let card = cards.borrow_and_update();
            offer.catalog(&card, &served.borrow_and_update(), &kv_blocks)
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
        };
        if !goes_on {
            return;
        }
    }
}

/// Waits for another card; a configured one never changes, and nobody tells it any more.
async fn changes(cards: &mut watch::Receiver<CardReport>) {
    if cards.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
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
        let none = offer().catalog(&card(None), &Served::default(), &BTreeMap::new());
        let one = offer().catalog(
            &card(None),
            &served(&["carded", "unknown"]),
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
        let catalog = offer().catalog(&card(None), &Served::default(), &BTreeMap::new());

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
        tasks.spawn(tell(offer(), cards, served_now, pages, catalog));
        told.changed().await.unwrap();

        served_sender.send_replace(served(&["carded"]));
        told.changed().await.unwrap();

        assert!(told.borrow().models[1].ready);
    }

    #[test]
    fn a_card_that_is_withdrawn_is_told_no_more() {
        let catalog = offer().catalog(&CardReport::default(), &Served::default(), &BTreeMap::new());

        assert!(catalog.cards.is_empty());
        assert!(catalog.models.iter().all(|model| model.card.is_none()));
    }

    #[test]
    fn a_capacity_that_is_configured_wins_over_the_frontends() {
        let measured = BTreeMap::from([(name("carded").id(), 7)]);
        let capacity = |card: CardReport| {
            let catalog = offer().catalog(&card, &Served::default(), &measured);
            catalog.models[1].card.as_ref().unwrap().capacity_blocks
        };

        assert_eq!(capacity(card(None)), Some(7));
        assert_eq!(capacity(card(Some(5))), Some(5));
    }
}
