//! What an edge knows of the grid: an immutable snapshot that decisions read.
//!
//! Nothing in it is computed at a decision: connections, catalogs, load and replicas are put
//! together when one of them changes, and published as a whole. The filters inside are the
//! exception, which their replica goes on writing; see [`crate::filter`].

use core::num::NonZeroU32;
use core::time::Duration;
use std::fmt;
use std::sync::Arc;

use crate::block::HashFormat;
use crate::ckf::Naming;
use crate::event::Tier;
use crate::id::{ModelId, ModelName, PoolId, Region, RelayId, SiteId};
use crate::label::Labels;
use crate::load::SiteLoad;
use crate::replication::ReplicaView;
use crate::time::Instant;

pub use lead::{Knowledge, Lead, LeadConfig, Standing};

use plan::{Lane, Names, Plan, Plans};

mod lead;
pub(crate) mod plan;

/// All sites an edge knows, by site id.
#[derive(Clone, Debug, Default)]
pub struct GridView {
    sites: Vec<SiteView>,
    /// The same, laid out for decisions.
    plans: Plans,
}

/// One site.
#[derive(Clone, Debug)]
pub struct SiteView {
    /// Its id, from its relays' certificates.
    pub site: SiteId,
    /// Its region, where the certificates name one.
    pub region: Option<Region>,
    /// Its labels, from certificates or this edge's configuration.
    pub labels: Labels,
    /// Whether at least one of its relays is connected.
    pub alive: bool,
    /// Its relays, by relay id.
    pub relays: Vec<RelayView>,
    /// The models it serves.
    pub models: Vec<ModelView>,
    /// The relay by which it is known what the site has cached.
    pub known_by: Option<RelayId>,
    /// What it has cached.
    pub pools: Vec<PoolView>,
    /// How busy it is.
    pub load: SiteLoad,
}

/// One relay of a site, and the path to it.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayView {
    /// Its id.
    pub id: RelayId,
    /// Whether requests can be sent to it now.
    pub connected: bool,
    /// Whether it has said that it is leaving.
    pub draining: bool,
    /// The models that its frontend serves now; another of the site's may serve others.
    pub serves: Vec<ModelId>,
    /// Round trip as the connection measures it.
    pub rtt: Duration,
    /// Bytes a second that the path carries, once measured.
    pub path_rate: Option<f64>,
    /// Bytes that may be in flight at once, once known.
    pub window: Option<u64>,
}

/// One model of a site.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelView {
    /// The name that clients ask for.
    pub name: ModelName,
    /// The name's id.
    pub id: ModelId,
    /// Other names that clients may use.
    pub aliases: Vec<ModelName>,
    /// Whether it is served now: by the site, if at least one of its relays says so.
    pub ready: bool,
    /// How to tokenise for it, where a relay has told.
    pub card: Option<CardInfo>,
    /// Workers that the card isn't of, for people; decisions don't look at them.
    pub apart: Vec<WorkersApart>,
}

/// Workers of a model whose card makes other tokens or blocks than the site's: what they have
/// cached is not told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkersApart {
    /// Where in the site they are.
    pub place: Arc<str>,
    /// How many.
    pub workers: u32,
    /// The fields of the card that differ.
    pub differs: Vec<Arc<str>>,
}

/// The hash that names a card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardDigest(pub [u8; 32]);

/// What routing needs of a model's card.
#[derive(Clone, Debug, PartialEq)]
pub struct CardInfo {
    /// Names the card's content.
    pub digest: CardDigest,
    /// Tokens of a block.
    pub block_size: NonZeroU32,
    /// How the site's blocks are hashed.
    pub format: HashFormat,
    /// Blocks of all ranks together, where known.
    pub capacity_blocks: Option<u64>,
    /// Longest sequence, where known.
    pub context_length: Option<NonZeroU32>,
    /// Whether this edge has the card and can tokenise by it.
    pub usable: bool,
}

/// One pool of a site: the replica of its filter, and what it is of.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// Its id, unique within the site.
    pub id: PoolId,
    /// The model whose blocks it holds.
    pub model: ModelId,
    /// The configured source that feeds it.
    pub source: Arc<str>,
    /// Tokens of a block.
    pub block_size: NonZeroU32,
    /// How its blocks are hashed.
    pub format: HashFormat,
    /// By what names its filter knows them.
    pub naming: Naming,
    /// Where the blocks are kept.
    pub tier: Tier,
    /// Whether a block is in only while all before it are.
    pub closed: bool,
    /// At what age its site evicts blocks that nobody uses, where that is known.
    pub eviction_age: Option<Duration>,
    /// The replica, as it was when the view was made.
    pub replica: ReplicaView,
    /// What its relay says of how it is fed, for people; decisions don't look at it.
    pub facts: Option<Arc<PoolFacts>>,
}

/// How a pool is fed, as its relay counts since its start. What a source can't tell is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolFacts {
    /// Blocks that the source's messages stored or removed.
    pub accepted: Option<u64>,
    /// Events that could not be used, by reason; those that never came are left out.
    pub refused: Vec<(Arc<str>, u64)>,
    /// Blocks that were refused as the relay had reached a limit.
    pub refused_blocks: Option<u64>,
    /// Physical copies that workers hold.
    pub copies: Option<u64>,
    /// Held blocks that miss an ancestor and can't be found.
    pub orphans: Option<u64>,
    /// How often messages were lost for good.
    pub gaps: Option<u64>,
    /// How often messages that had not come were had by asking again.
    pub repairs: Option<u64>,
    /// When the last message was applied.
    pub heard_at: Option<Instant>,
}

impl GridView {
    /// A view of these sites. Of two with one id the last is kept.
    pub fn new(sites: Vec<SiteView>) -> Self {
        let mut sites = sites;
        sites.reverse();
        sites.sort_by(|a, b| a.site.cmp(&b.site));
        sites.dedup_by(|later, first| later.site == first.site);
        let plans = Plans::new(&sites);
        Self { sites, plans }
    }

    /// The sites, by id.
    pub fn sites(&self) -> &[SiteView] {
        &self.sites
    }

    /// A site by its id.
    pub fn site(&self, site: &SiteId) -> Option<&SiteView> {
        let index = self
            .sites
            .binary_search_by(|view| view.site.cmp(site))
            .ok()?;
        self.sites.get(index)
    }

    /// What decisions about a model need of its sites; `None` if none lists it.
    pub(crate) fn plan(&self, asked: ModelId) -> Option<&Plan> {
        self.plans.get(asked)
    }

    /// What relays include of this edge's requests; a plan's seats say which are whose.
    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.plans.lanes
    }

    /// Who the sites and their relays are.
    pub(crate) const fn names(&self) -> &Arc<Names> {
        &self.plans.names
    }
}

impl SiteView {
    /// A model by its id, or by that of another name of it.
    pub fn model(&self, model: ModelId) -> Option<&ModelView> {
        let named = self.models.iter().find(|view| view.id == model);
        named.or_else(|| {
            let mut models = self.models.iter();
            models.find(|view| view.aliases.iter().any(|alias| alias.id() == model))
        })
    }

    /// What the site's pools and loads call a model that clients ask for by this id.
    pub fn model_id(&self, asked: ModelId) -> ModelId {
        self.model(asked).map_or(asked, |model| model.id)
    }

    /// Its pools of a model, by whatever name that is asked for.
    pub fn pools_of(&self, asked: ModelId) -> impl Iterator<Item = &PoolView> {
        let model = self.model_id(asked);
        self.pools.iter().filter(move |pool| pool.model == model)
    }

    /// Whether anything tells what it has cached of a model.
    pub fn has_pool(&self, model: ModelId) -> bool {
        self.pools_of(model).next().is_some()
    }

    /// A relay by its id.
    pub fn relay(&self, relay: &RelayId) -> Option<&RelayView> {
        self.relays.iter().find(|view| view.id == *relay)
    }
}

impl CardDigest {
    /// The digest of these bytes, if there are exactly 32.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for CardDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CardDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CardDigest({self})")
    }
}
