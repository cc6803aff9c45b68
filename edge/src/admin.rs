//! What the edge shows of itself to operators: readiness, and all it knows of the grid.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::StatusCode;
use kvgrid_core::EdgeId;
use kvgrid_core::view::GridView;
use kvgrid_runtime::admin::{Admin, Health, json};
use prometheus_client::registry::Registry;

use crate::route::Router;

mod sites;

/// Readiness: enough sites in view, alive and serving some model.
pub(crate) fn health(view: Arc<ArcSwap<GridView>>, quorum: usize) -> Health {
    Health::new(move || readiness(&view.load(), quorum))
}

fn readiness(view: &GridView, quorum: usize) -> Result<(), String> {
    let serves = view
        .sites()
        .iter()
        .filter(|site| site.alive && site.models.iter().any(|model| model.ready));
    let serving = serves.count();
    if serving >= quorum {
        Ok(())
    } else {
        Err(format!("{serving} of {quorum} sites in view"))
    }
}

/// The admin server's pages: those of every daemon, and [`sites`].
pub(crate) fn admin(health: Health, registry: Registry, edge: EdgeId, router: Router) -> Admin {
    Admin::new(health, Arc::new(registry)).route("/kvgrid/v1/sites", move |_| {
        json(StatusCode::OK, sites::page(&edge, &router))
    })
}

#[cfg(test)]
mod tests {
    use kvgrid_core::id::{ModelName, SiteId};
    use kvgrid_core::label::Labels;
    use kvgrid_core::load::SiteLoad;
    use kvgrid_core::view::{ModelView, SiteView};

    use super::*;

    fn site(name: &str, alive: bool, ready: bool) -> SiteView {
        let model = ModelName::new("m").unwrap();
        SiteView {
            site: SiteId::new(name).unwrap(),
            region: None,
            labels: Labels::new(),
            alive,
            relays: Vec::new(),
            models: vec![ModelView {
                aliases: Vec::new(),
                apart: Vec::new(),
                id: model.id(),
                name: model,
                ready,
                card: None,
            }],
            known_by: None,
            pools: Vec::new(),
            load: SiteLoad::default(),
        }
    }

    #[test]
    fn an_edge_is_ready_once_enough_sites_can_serve() {
        let dead = site("a", false, true);
        let starting = site("b", true, false);
        let (first, second) = (site("c", true, true), site("d", true, true));

        let few = GridView::new(vec![dead, starting, first.clone()]);
        assert_eq!(readiness(&few, 1), Ok(()));
        assert_eq!(readiness(&few, 2), Err("1 of 2 sites in view".to_owned()));
        assert_eq!(readiness(&GridView::new(vec![first, second]), 2), Ok(()));
    }
}
