//! How much a connection may have under way: by the path's rate, or by CUBIC.
//!
//! Both begin with what the start rate fills in the first round-trip time.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use serde::{Deserialize, Serialize};

mod rate;
mod recent;
mod start;

use rate::{Limits, MIN_WINDOW, Path};
pub(super) use start::StartRate;

/// By what a connection knows how much to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// The rate at which the path delivers. Single losses don't count, as on long paths they
    /// say nothing.
    #[default]
    Rate,
    /// Losses, as TCP does.
    Cubic,
}

/// Makes controllers that go by the path's rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByRate(Limits);

impl ByRate {
    /// Rates in Mbit/s: what a path is sent at first, and what no path is sent more than.
    pub(super) fn mbit(start: u32, most: u32) -> Self {
        let most = bytes_per_second(most);
        Self(Limits {
            start: bytes_per_second(start).min(most),
            most,
        })
    }
}

fn bytes_per_second(mbit: u32) -> u64 {
    u64::from(mbit) * 1_000_000 / 8
}

impl ControllerFactory for ByRate {
    fn build(self: Arc<Self>, now: Instant, _mtu: u16) -> Box<dyn Controller> {
        Box::new(Rated {
            path: Path::new(self.0, now),
            background: Background::default(),
        })
    }
}

/// Whether a connection gives way to what else is on its path; clones share it. Only one that
/// goes by the path's rate can.
#[derive(Clone, Debug, Default)]
pub(super) struct Background(Arc<AtomicBool>);

impl Background {
    /// The switch of a connection, if it has one.
    pub(super) fn of(connection: &quinn::Connection) -> Option<Self> {
        let controller = connection.congestion_state().into_any();
        let rated = controller.downcast::<Rated>().ok()?;
        Some(rated.background)
    }

    /// From the next acknowledgement on.
    pub(super) fn set(&self, background: bool) {
        self.0.store(background, Ordering::Relaxed);
    }

    /// Whether it gives way.
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What quinn asks, answered by what is known of the path.
#[derive(Clone, Debug)]
struct Rated {
    path: Path,
    background: Background,
}

impl Controller for Rated {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.path.set_background(self.background.get());
        self.path.handle_acknowledged(bytes, sent, app_limited, now);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        _sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.path
            .handle_lost(lost_bytes, is_persistent_congestion, now);
    }

    fn on_mtu_update(&mut self, _new_mtu: u16) {}

    fn window(&self) -> u64 {
        self.path.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.path.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        MIN_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
