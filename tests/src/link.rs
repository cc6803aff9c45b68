//! Emulated links: the link model of `kvgrid-sim` in two shells.
//!
//! - [`Forwarder`] stands between real processes: a UDP port that passes packets on to a
//!   target, both ways, as a NAT does.
//! - [`socket::wrap`] stands between QUIC and its socket in a node of the same process, and
//!   delays what the node sends.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use kvgrid_runtime::Tasks;
use kvgrid_sim::LinkConfig;
use serde::{Deserialize, Serialize};

use crate::node::{Addresses, Daemon};

mod forwarder;
pub mod socket;

use forwarder::Wires;
pub use forwarder::{Forwarder, ForwarderConfig};

/// Tokio's timers end on the millisecond after they are due; a packet that is due within
/// half of one goes out now, so that it is half a millisecond early or late at most.
const TICK: Duration = Duration::from_micros(500);

/// Packets that may be under way in a direction; more are dropped. At 239 ms and 1,200
/// bytes it is enough for about 5 Gbit/s.
const IN_FLIGHT: usize = 131_072;

/// A link's properties, as a configuration file says them; the same in both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkProperties {
    /// Time one way, half of a round trip.
    #[serde(with = "humantime_serde")]
    pub delay: Duration,
    /// Bits per second; unlimited when absent.
    pub rate: Option<NonZeroU64>,
    /// Bytes that may wait to be sent.
    pub buffer: usize,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Share of packets that are overtaken, 0 to 1.
    pub reorder: f64,
    /// How much longer a packet takes that is overtaken.
    #[serde(with = "humantime_serde")]
    pub reorder_delay: Duration,
}

impl Default for LinkProperties {
    fn default() -> Self {
        let LinkConfig {
            delay,
            rate,
            buffer,
            loss,
            reorder,
            reorder_delay,
        } = LinkConfig::default();
        Self {
            delay,
            rate,
            buffer,
            loss,
            reorder,
            reorder_delay,
        }
    }
}

impl LinkProperties {
    /// A link with this round trip and nothing else that a packet could suffer from.
    pub fn round_trip(time: Duration) -> Self {
        Self {
            delay: time / 2,
            ..Self::default()
        }
    }

    fn model(&self) -> LinkConfig {
        LinkConfig {
            delay: self.delay,
            rate: self.rate,
            buffer: self.buffer,
            loss: self.loss,
            reorder: self.reorder,
            reorder_delay: self.reorder_delay,
        }
    }
}

/// Cuts a link and mends it; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    /// From now on every packet is lost.
    pub fn cut(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// From now on packets arrive again.
    pub fn mend(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_up(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

/// A process of nothing but links.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinksConfig {
    /// Where to write the bound addresses as JSON, by the links' names.
    pub ready_file: Option<PathBuf>,
    /// The links.
    #[serde(rename = "link")]
    pub links: Vec<ForwarderConfig>,
}

/// Running links. They end when it is dropped.
#[derive(Debug)]
pub struct Links {
    forwarders: Vec<(String, Forwarder)>,
    tasks: Tasks,
}

impl Links {
    /// Cuts and mends the link of this name, if there is one.
    pub fn switch(&self, name: &str) -> Option<&Switch> {
        let mut forwarders = self.forwarders.iter();
        let (_, forwarder) = forwarders.find(|(known, _)| known == name)?;
        Some(forwarder.switch())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Daemon for Links {
    type Config = LinksConfig;
    const NAME: &'static str = "kvgrid-link";
    const ABOUT: &'static str = "Emulated network links";

    fn ready_file(config: &LinksConfig) -> Option<PathBuf> {
        config.ready_file.clone()
    }

    async fn start(config: LinksConfig) -> anyhow::Result<Self> {
        let tasks = Tasks::new();
        let mut forwarders = Vec::new();
        let mut bottlenecks: BTreeMap<String, Wires> = BTreeMap::new();
        for link in config.links {
            let own = Wires::new(&link).with_context(|| format!("link {}", link.name))?;
            let wires = match &link.bottleneck {
                Some(name) => bottlenecks.entry(name.clone()).or_insert(own),
                None => &own,
            };
            let forwarder = Forwarder::start_on(&link, wires, &tasks)?;
            forwarders.push((link.name, forwarder));
        }
        Ok(Self { forwarders, tasks })
    }

    fn addresses(&self) -> Addresses {
        self.forwarders
            .iter()
            .map(|(name, forwarder)| (name.clone(), forwarder.address()))
            .collect()
    }

    fn tasks(&self) -> &Tasks {
        &self.tasks
    }
}
