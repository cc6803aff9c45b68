//! A first congestion window that fits the path: start rate times round-trip time.
//!
//! CUBIC starts with twelve kilobytes, which at 239 ms makes a first prompt of 380 kB wait five
//! round trips; a fixed large window floods short paths instead. Here the first acknowledgement
//! tells the round-trip time, the window becomes what the start rate fills in that time, and
//! from there CUBIC goes on as usual: doubling until the first loss.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig,
};

use super::bytes_per_second;
use super::rate::{MIN_WINDOW, first_window};

/// Makes controllers that start at a rate.
#[derive(Clone, Copy, Debug)]
pub(in crate::node) struct StartRate {
    bytes_per_second: u64,
}

impl StartRate {
    pub(in crate::node) fn mbit(rate: u32) -> Self {
        Self {
            bytes_per_second: bytes_per_second(rate),
        }
    }
}

impl ControllerFactory for StartRate {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Started {
            start: Some(*self),
            mtu,
            cubic: cubic(MIN_WINDOW, now, mtu),
        })
    }
}

fn cubic(window: u64, now: Instant, mtu: u16) -> Cubic {
    let mut config = CubicConfig::default();
    config.initial_window(window);
    Cubic::new(Arc::new(config), now, mtu)
}

/// CUBIC, begun anew at the first round-trip time.
#[derive(Clone, Debug)]
struct Started {
    /// Taken by the first acknowledgement, or by a loss before it.
    start: Option<StartRate>,
    mtu: u16,
    cubic: Cubic,
}

impl Controller for Started {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if let Some(start) = self.start.take() {
            self.cubic = cubic(
                first_window(start.bytes_per_second, rtt.get()),
                now,
                self.mtu,
            );
        }
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.cubic
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.start = None;
        self.cubic
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_before_the_first_round_trip_takes_the_start_away() {
        let now = Instant::now();
        let mut controller = Started {
            start: Some(StartRate::mbit(80)),
            mtu: 1200,
            cubic: cubic(MIN_WINDOW, now, 1200),
        };

        controller.on_congestion_event(now, now, false, 1200);

        assert!(controller.start.is_none());
        assert!(controller.window() < MIN_WINDOW);
    }
}
