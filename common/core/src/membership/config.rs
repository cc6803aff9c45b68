//! The protocol's periods and bounds.

use core::num::{NonZeroU8, NonZeroUsize};
use core::time::Duration;

use foca::{Config, PeriodicParams};

use crate::backoff::BackoffConfig;

/// Most bytes of a packet. Fixed for ever: a relay refuses larger ones, so it could never be
/// raised while relays of two versions talk to each other.
pub const PACKET_BYTES: usize = 1_100;

/// How members watch each other. All relays of a grid should agree on the periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembershipConfig {
    /// How often a member is probed; above `probe_rtt` by two round trips at least, for
    /// the indirect probes.
    pub probe_period: Duration,
    /// How long a direct answer may take before others are asked to probe.
    pub probe_rtt: Duration,
    /// Members that are asked to probe in our stead.
    pub indirect_probes: NonZeroUsize,
    /// How often each relay passes a piece of news on.
    pub transmissions: NonZeroU8,
    /// How long a suspect has to answer before it is declared down.
    pub suspect_after: Duration,
    /// How often a suspect is told so, directly, by who suspects it. Well below
    /// `suspect_after`, so that lost datagrams alone can't let it be declared down.
    pub remind_every: Duration,
    /// How often news is sent outside of probes; nothing is sent while there is none.
    pub gossip_every: Duration,
    /// Members that are sent the news each time.
    pub gossip_members: NonZeroUsize,
    /// Delays between announcements while no member has answered.
    pub announce: BackoffConfig,
    /// How often one relay that was known and is no member is announced to, so that parts
    /// of a mesh which lost each other meet again. Also for seeds, once there are members.
    pub rediscover_every: Duration,
    /// How long a relay that went down is remembered.
    pub forget_after: Duration,
    /// Most relays known at once, members and those that went down; further ones are refused
    /// unless one that is down can be forgotten for them.
    pub most_members: usize,
}

impl Default for MembershipConfig {
    fn default() -> Self {
        Self {
            // How long a death stays unnoticed is a matter of chance, exponential in this
            // period: at 1.5 s the worst of 200 deaths among 64 was known to all after 15.6 s.
            probe_period: Duration::from_millis(1_200),
            // Leaves 700 ms for indirect probes: four ways of 175 ms.
            probe_rtt: Duration::from_millis(500),
            indirect_probes: at_least_one(8),
            transmissions: NonZeroU8::new(20).unwrap_or(NonZeroU8::MIN),
            suspect_after: Duration::from_millis(4_500),
            // At 239 ms there and back 17 of them count; each is answered with 64 % at 20 % loss.
            remind_every: Duration::from_millis(250),
            gossip_every: Duration::from_millis(500),
            gossip_members: at_least_one(3),
            announce: BackoffConfig {
                first: Duration::from_secs(1),
                most: Duration::from_secs(10),
                healthy_after: Duration::from_secs(30),
            },
            rediscover_every: Duration::from_secs(30),
            forget_after: Duration::from_secs(24 * 60 * 60),
            most_members: 4_096,
        }
    }
}

impl MembershipConfig {
    pub(super) fn for_foca(&self) -> Config {
        Config {
            probe_period: self.probe_period,
            probe_rtt: self.probe_rtt,
            num_indirect_probes: self.indirect_probes,
            max_transmissions: self.transmissions,
            suspect_to_down_after: self.suspect_after,
            // Far above the seconds for which old news goes round: what is forgotten too early
            // comes back to life by it.
            remove_down_after: Some(self.forget_after),
            max_packet_size: at_least_one(PACKET_BYTES),
            // A relay that was declared down by mistake hears of it and takes its next generation.
            notify_down_members: true,
            // Our own catching up stops when there is nothing to learn; this one would cost a
            // full packet a period for ever, more in a large mesh than in a small one.
            periodic_announce: None,
            // Rediscovery does this with a bound, for seeds as well and without members.
            periodic_announce_to_down_members: None,
            // Probes alone take several periods to carry a death to everyone.
            periodic_gossip: Some(PeriodicParams {
                frequency: self.gossip_every,
                num_members: self.gossip_members,
            }),
        }
    }

    /// For a relay's last words: told to `listeners` members, each in turn.
    pub(super) fn for_leaving(&self, listeners: usize) -> Config {
        Config {
            num_indirect_probes: at_least_one(listeners),
            max_transmissions: NonZeroU8::MAX,
            ..self.for_foca()
        }
    }
}

fn at_least_one(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)
}
