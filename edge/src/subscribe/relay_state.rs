//! What one relay has told, as its task publishes it to the grid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::label::Labels;
use kvgrid_core::load::LoadSample;
use kvgrid_core::view::{ModelView, PoolFacts, PoolView};
use kvgrid_core::{PoolId, Region, RelayId, SiteId};

/// All that one relay has told; empty until it was reached for the first time.
#[derive(Clone, Debug, Default)]
pub(super) struct RelayState {
    /// Who it is, by its certificate.
    pub(super) identity: Option<RelayIdentity>,
    /// Whether both its connections are up.
    pub(super) connected: bool,
    /// Whether it has said that it is leaving.
    pub(super) draining: bool,
    /// The path to it.
    pub(super) path: Path,
    /// Whether it has told what it serves, in this session or an earlier one.
    pub(super) told: bool,
    /// The models it serves; what it said last while it is away.
    pub(super) models: Vec<ModelView>,
    /// Its pools and our replicas of them.
    pub(super) pools: Vec<PoolView>,
    /// How they are fed, as it said last.
    pub(super) facts: BTreeMap<PoolId, Arc<PoolFacts>>,
    /// Its last load sample.
    pub(super) sample: Option<LoadSample>,
}

/// A relay's place in the grid.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RelayIdentity {
    pub(super) relay: RelayId,
    pub(super) site: SiteId,
    pub(super) region: Option<Region>,
    pub(super) labels: Labels,
}

/// A path as QUIC has measured it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Path {
    pub(super) rtt: Duration,
    pub(super) window: Option<u64>,
}
