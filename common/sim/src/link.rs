//! One direction of a network path: delay, rate, buffer, loss, reordering.
//!
//! A packet waits in the buffer until the sender before it is through (tail drop when the
//! buffer is full), is sent at the link's rate, may be lost, and arrives one delay later.
//! A reordered packet takes a little longer, so that those behind it overtake it. A link
//! that is down loses everything. The model holds no packets: it only says what becomes of
//! each; the shell keeps them in a [`DelayLine`](crate::DelayLine).

use core::num::NonZeroU64;
use core::time::Duration;

use kvgrid_core::Instant;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use thiserror::Error;

/// What a link is like, one way.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Time on the way, half of a round trip.
    pub delay: Duration,
    /// Bits per second; unlimited when absent.
    pub rate: Option<NonZeroU64>,
    /// Bytes that may wait to be sent; means nothing without a rate.
    pub buffer: usize,
    /// Share of packets lost at random, 0 to 1.
    pub loss: f64,
    /// Share of packets that are overtaken, 0 to 1.
    pub reorder: f64,
    /// How much longer a packet takes that is overtaken.
    pub reorder_delay: Duration,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            rate: None,
            buffer: 4 << 20,
            loss: 0.0,
            reorder: 0.0,
            reorder_delay: Duration::from_millis(1),
        }
    }
}

/// Why a link can't be made. The configuration is at fault.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{name} is a share between 0 and 1, not {share}")]
pub struct ShareError {
    /// Which key.
    pub name: &'static str,
    /// What it said.
    pub share: f64,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time.
    Arrives(Instant),
    /// It never arrives.
    Dropped(Cause),
}

/// Why a packet never arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The link is down.
    Down,
    /// The buffer is full.
    Full,
    /// Random loss.
    Lost,
}

/// One direction of a path.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    rng: SmallRng,
    up: bool,
    /// When the last accepted packet is through, in nanoseconds: at 10 Gbit/s a packet
    /// takes less than the microsecond an `Instant` can tell.
    through_nanos: u128,
}

impl Link {
    /// A link that is up and empty.
    pub fn new(config: LinkConfig, seed: u64) -> Result<Self, ShareError> {
        check_share("loss", config.loss)?;
        check_share("reorder", config.reorder)?;
        Ok(Self {
            config,
            rng: SmallRng::seed_from_u64(seed),
            up: true,
            through_nanos: 0,
        })
    }

    /// Cuts the link, or mends it. Packets on their way still arrive.
    pub const fn set_up(&mut self, up: bool) {
        self.up = up;
    }

    /// Says what becomes of a packet of this many bytes, sent now.
    pub fn handle_packet(&mut self, now: Instant, bytes: usize) -> Fate {
        if !self.up {
            return Fate::Dropped(Cause::Down);
        }
        let Some(sent) = self.enqueue(now, bytes) else {
            return Fate::Dropped(Cause::Full);
        };
        // A lost packet has used the link all the same.
        if self.rng.random_bool(self.config.loss) {
            return Fate::Dropped(Cause::Lost);
        }
        let mut arrives = sent + self.config.delay;
        if self.rng.random_bool(self.config.reorder) {
            arrives += self.config.reorder_delay;
        }
        Fate::Arrives(arrives)
    }

    /// When the packet is through the bottleneck, if the buffer has room for it.
    fn enqueue(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let Some(rate) = self.config.rate else {
            return Some(now);
        };
        let bits_per_second = u128::from(rate.get());
        let now_nanos = u128::from(now.as_micros()) * 1_000;
        let waiting_nanos = self.through_nanos.saturating_sub(now_nanos);
        let waiting_bytes = waiting_nanos * bits_per_second / 8_000_000_000;
        if waiting_bytes + bytes as u128 > self.config.buffer as u128 {
            return None;
        }
        let takes_nanos = bytes as u128 * 8_000_000_000 / bits_per_second;
        self.through_nanos = self.through_nanos.max(now_nanos) + takes_nanos;
        let micros = self.through_nanos.div_ceil(1_000);
        Some(Instant::from_micros(
            u64::try_from(micros).unwrap_or(u64::MAX),
        ))
    }
}

fn check_share(name: &'static str, share: f64) -> Result<(), ShareError> {
    if (0.0..=1.0).contains(&share) {
        Ok(())
    } else {
        Err(ShareError { name, share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_micros(1_000_000);

    fn link(config: LinkConfig) -> Link {
        Link::new(config, 7).unwrap()
    }

    #[test]
    fn an_idle_link_without_a_rate_only_delays() {
        let mut link = link(LinkConfig {
            delay: Duration::from_millis(45),
            ..LinkConfig::default()
        });

        let arrives = NOW + Duration::from_millis(45);
        assert_eq!(link.handle_packet(NOW, 1_200), Fate::Arrives(arrives));
        assert_eq!(link.handle_packet(NOW, 1_200), Fate::Arrives(arrives));
    }

    #[test]
    fn packets_leave_at_the_rate() {
        let mut link = link(LinkConfig {
            rate: NonZeroU64::new(8_000_000),
            ..LinkConfig::default()
        });

        let sent = |micros| Fate::Arrives(NOW + Duration::from_micros(micros));
        assert_eq!(link.handle_packet(NOW, 1_000), sent(1_000));
        assert_eq!(link.handle_packet(NOW, 500), sent(1_500));
    }

    #[test]
    fn a_fast_link_passes_more_than_a_packet_a_microsecond() {
        let mut link = link(LinkConfig {
            rate: NonZeroU64::new(10_000_000_000),
            ..LinkConfig::default()
        });

        let mut last = Fate::Dropped(Cause::Down);
        for _ in 0..1_000 {
            last = link.handle_packet(NOW, 1_200);
        }
        assert_eq!(last, Fate::Arrives(NOW + Duration::from_micros(960)));
    }

    #[test]
    fn a_full_buffer_drops_the_newest_until_it_drains() {
        let mut link = link(LinkConfig {
            rate: NonZeroU64::new(8_000_000),
            buffer: 2_000,
            ..LinkConfig::default()
        });

        let full = Fate::Dropped(Cause::Full);
        assert_ne!(link.handle_packet(NOW, 1_000), full);
        assert_ne!(link.handle_packet(NOW, 1_000), full);
        assert_eq!(link.handle_packet(NOW, 1_000), full);
        assert_ne!(
            link.handle_packet(NOW + Duration::from_millis(1), 1_000),
            full
        );
    }

    #[test]
    fn loss_is_about_its_share() {
        let mut link = link(LinkConfig {
            loss: 0.1,
            ..LinkConfig::default()
        });

        let lost = (0..10_000)
            .filter(|_| link.handle_packet(NOW, 100) == Fate::Dropped(Cause::Lost))
            .count();
        assert!((800..1_200).contains(&lost), "{lost}");
    }

    #[test]
    fn an_overtaken_packet_arrives_after_the_next() {
        let mut link = link(LinkConfig {
            reorder: 0.5,
            ..LinkConfig::default()
        });

        let late = NOW + LinkConfig::default().reorder_delay;
        let fates: Vec<_> = (0..100).map(|_| link.handle_packet(NOW, 100)).collect();
        assert!(fates.contains(&Fate::Arrives(NOW)));
        assert!(fates.contains(&Fate::Arrives(late)));
    }

    #[test]
    fn a_link_that_is_down_loses_everything_until_it_is_up() {
        let mut link = link(LinkConfig::default());

        link.set_up(false);
        assert_eq!(link.handle_packet(NOW, 100), Fate::Dropped(Cause::Down));
        link.set_up(true);
        assert_eq!(link.handle_packet(NOW, 100), Fate::Arrives(NOW));
    }

    #[test]
    fn a_share_above_one_is_refused_by_name() {
        let config = LinkConfig {
            loss: 1.5,
            ..LinkConfig::default()
        };

        let error = Link::new(config, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "loss is a share between 0 and 1, not 1.5"
        );
    }
}
