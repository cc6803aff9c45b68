//! Who a view's sites and their relays are, shared by all that tell of them.

use crate::id::{RelayId, SiteId, name_hash};
use crate::view::SiteView;

/// The sites of a view, in its order.
///
/// A decision tells of every site. With names of its own it would count up and down, on lines
/// that all threads write to, as many as there are sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(Vec<Site>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Site {
    id: SiteId,
    /// What the id hashes to.
    hash: u64,
    relays: Vec<RelayId>,
}

impl Names {
    pub(super) fn of(sites: &[SiteView]) -> Self {
        let site = |site: &SiteView| Site {
            id: site.site.clone(),
            hash: name_hash(site.site.as_str()),
            relays: site.relays.iter().map(|relay| relay.id.clone()).collect(),
        };
        Self(sites.iter().map(site).collect())
    }

    /// How many sites there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A site's name.
    pub(crate) fn site(&self, site: usize) -> &SiteId {
        &self.0[site].id
    }

    /// What it hashes to.
    pub(crate) fn hash(&self, site: usize) -> u64 {
        self.0[site].hash
    }

    /// The name of one of its relays.
    pub(crate) fn relay(&self, site: usize, relay: usize) -> &RelayId {
        &self.0[site].relays[relay]
    }

    /// Which site has this name.
    pub(crate) fn find(&self, site: &SiteId) -> Option<usize> {
        self.0.binary_search_by(|known| known.id.cmp(site)).ok()
    }
}
