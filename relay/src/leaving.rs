//! How a relay leaves: everybody is told, and what is open ends first.

use std::time::Duration;

use kvgrid_runtime::Clock;
use kvgrid_runtime::admin::Health;
use tracing::warn;

use crate::gossip::Gossip;
use crate::load::Gateway;
use crate::publish::Hub;

/// How long a relay that leaves waits at least: edges hear of it, and what they have sent
/// meanwhile arrives.
const LINGER: Duration = Duration::from_secs(1);

/// What has to hear of it when the relay leaves.
pub(crate) struct Leaving {
    pub(crate) health: Health,
    pub(crate) hub: Hub,
    pub(crate) gossip: Gossip,
    pub(crate) gateway: Gateway,
    pub(crate) clock: Clock,
}

impl Leaving {
    /// Tells everybody, and waits until all requests have ended, but not beyond `grace`.
    pub(crate) async fn leave(self, grace: Duration) {
        self.health.leave();
        self.hub.leave();
        self.gossip.leave().await;
        let drained = async {
            tokio::time::sleep(LINGER).await;
            while self.open_requests() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(grace, drained).await.is_err() {
            warn!(requests = self.open_requests(), "Requests are cut off");
        }
    }

    fn open_requests(&self) -> u32 {
        let load = self.gateway.load(self.clock.now());
        load.iter().map(|(_, load)| load.in_flight).sum()
    }
}
