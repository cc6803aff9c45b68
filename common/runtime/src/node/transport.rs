//! QUIC's windows and timers, per kind of connection.
//!
//! One end of a view or request connection is an edge, and its settings say what an edge will
//! hold in memory; the other end is a relay. Either may have dialled. Idle time and keep-alive
//! are the edge's, for the smaller idle time of both ends counts; in gossip the dialler's.

use std::sync::Arc;
use std::time::Duration;

use crate::config::ConfigError;
use kvgrid_certs::RoleKind;
use quinn::{IdleTimeout, VarInt};
use serde::{Deserialize, Serialize};

use super::Protocol;
use super::congestion::{ByRate, Congestion, StartRate};

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;
/// Unread bytes of any stream: fewer than two times 1,024 packets, the holes that QUIC takes.
const MOST_OF_A_STREAM: u32 = 2 * MIB;
/// Streams that an edge may have open at a relay on a connection that is not for requests.
const RELAY_STREAMS: u32 = 8;

/// What an operator may change of the transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportConfig {
    /// Lets the kernel cut batches into packets. Off for network cards that get it wrong.
    pub gso: bool,
    /// Looks for larger packets than the 1,200 bytes that always pass.
    pub mtu_discovery: bool,
    /// Wanted size of the socket's receive and send buffers; the kernel may give less.
    pub socket_buffer_bytes: usize,
    /// What a fresh connection sends at before it knows the path, in Mbit/s: about the link's
    /// rate divided by the number of sites. The window follows from it by the round-trip time.
    pub start_rate_mbit: u32,
    /// What no connection sends faster than, in Mbit/s.
    pub max_rate_mbit: u32,
    /// By what a connection knows how much to send.
    pub congestion: Congestion,
    /// Streams of requests that an edge may have open on one connection.
    pub request_streams: u32,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            gso: true,
            mtu_discovery: true,
            socket_buffer_bytes: 4 << 20,
            start_rate_mbit: 80,
            max_rate_mbit: 1_000,
            congestion: Congestion::Rate,
            request_streams: 512,
        }
    }
}

impl TransportConfig {
    /// Itself, if its values make sense; else which doesn't.
    pub fn checked(&self) -> Result<Self, ConfigError> {
        let wrong = |key: &str, reason: &str| Err(ConfigError::key(key, &reason));
        if self.start_rate_mbit == 0 {
            return wrong("transport.start_rate_mbit", "at least 1 Mbit/s");
        }
        if self.max_rate_mbit < self.start_rate_mbit {
            return wrong("transport.max_rate_mbit", "less than start_rate_mbit");
        }
        if self.request_streams == 0 {
            return wrong("transport.request_streams", "at least 1 stream");
        }
        Ok(self.clone())
    }
}

/// How quickly a dead peer is noticed, and what that costs.
struct Timers {
    idle: Duration,
    keep_alive: Duration,
}

/// What one connection may hold, in bytes and streams.
struct Windows {
    /// Unread bytes of one stream, which the sender may count on.
    stream: u32,
    /// Unread bytes of all streams.
    receive: u32,
    /// Bytes sent and not acknowledged; at the limit every stream waits, the urgent ones too.
    send: u32,
    bidi_streams: u32,
    uni_streams: u32,
}

impl TransportConfig {
    /// For connections that we dial, being a relay or an edge.
    pub(super) fn dialled(&self, protocol: Protocol, own: RoleKind) -> quinn::TransportConfig {
        let mut transport = match (protocol, own) {
            (Protocol::Gossip, _) => return self.gossip(),
            (_, RoleKind::Edge) => return self.edge(protocol),
            (Protocol::View, RoleKind::Relay) => self.relay(RELAY_STREAMS),
            (Protocol::Request, RoleKind::Relay) => self.relay(self.request_streams),
        };
        transport.datagram_receive_buffer_size(None);
        transport
    }

    /// For connections that dial a relay; their protocol is known only after the handshake,
    /// when [`Self::raise_streams`] adds what it needs.
    pub(super) fn served(&self) -> quinn::TransportConfig {
        self.relay(RELAY_STREAMS)
    }

    /// An edge's end of a connection, whoever has dialled.
    pub(super) fn edge(&self, protocol: Protocol) -> quinn::TransportConfig {
        let (windows, timers) = match protocol {
            // An edge lives by its view: a relay that was killed says no goodbye, and until its
            // silence is noticed requests are sent to it. Three keep-alives fit in the idle
            // time, so that two lost in a row don't cost the connection and a resync.
            Protocol::View => (
                Windows {
                    stream: MOST_OF_A_STREAM,
                    receive: 64 * MIB,
                    send: 8 * MIB,
                    bidi_streams: 0,
                    uni_streams: 128,
                },
                Timers {
                    idle: Duration::from_secs(6),
                    keep_alive: Duration::from_secs(2),
                },
            ),
            // The stream window is what an edge holds for a client that does not read. The view
            // tells sooner when the relay is dead, so this one may be calmer.
            Protocol::Request | Protocol::Gossip => (
                Windows {
                    stream: 64 * KIB,
                    receive: 32 * MIB,
                    send: 64 * MIB,
                    bidi_streams: 0,
                    uni_streams: 0,
                },
                Timers {
                    idle: Duration::from_secs(12),
                    keep_alive: Duration::from_secs(3),
                },
            ),
        };
        let mut transport = self.transport(&windows, Some(&timers));
        transport.datagram_receive_buffer_size(None);
        transport
    }

    /// A relay's end of a connection to an edge, whoever has dialled.
    fn relay(&self, bidi_streams: u32) -> quinn::TransportConfig {
        let windows = Windows {
            // A prompt of 500,000 tokens comes in one flight. QUIC's receiver ends a connection
            // when a stream has a thousand holes; in so many bytes there is no room for them.
            stream: MOST_OF_A_STREAM,
            receive: 64 * MIB,
            send: 64 * MIB,
            bidi_streams,
            uni_streams: 0,
        };
        self.transport(&windows, None)
    }

    /// The dialler's end of a connection between relays.
    fn gossip(&self) -> quinn::TransportConfig {
        // Two of many relays meet about once a minute, and a handshake costs more than this.
        self.transport(
            &Windows {
                stream: 64 * KIB,
                receive: MIB,
                send: MIB,
                bidi_streams: 0,
                uni_streams: 0,
            },
            Some(&Timers {
                idle: Duration::from_secs(30),
                keep_alive: Duration::from_secs(10),
            }),
        )
    }

    /// What a served connection may have once its protocol is known.
    pub(super) fn raise_streams(&self, protocol: Protocol, connection: &quinn::Connection) {
        if protocol == Protocol::Request {
            let streams = VarInt::from_u32(self.request_streams);
            connection.set_max_concurrent_bi_streams(streams);
        }
    }

    fn transport(&self, windows: &Windows, timers: Option<&Timers>) -> quinn::TransportConfig {
        let mut transport = quinn::TransportConfig::default();
        transport
            .stream_receive_window(windows.stream.into())
            .receive_window(windows.receive.into())
            .send_window(windows.send.into())
            .max_concurrent_bidi_streams(windows.bidi_streams.into())
            .max_concurrent_uni_streams(windows.uni_streams.into())
            .enable_segmentation_offload(self.gso);
        match self.congestion {
            Congestion::Rate => {
                let controller = ByRate::mbit(self.start_rate_mbit, self.max_rate_mbit);
                transport.congestion_controller_factory(Arc::new(controller))
            }
            Congestion::Cubic => {
                let controller = StartRate::mbit(self.start_rate_mbit);
                transport.congestion_controller_factory(Arc::new(controller))
            }
        };
        if !self.mtu_discovery {
            transport.mtu_discovery_config(None);
        }
        // An end without timers keeps nothing alive, and waits longer than any other.
        let idle = timers.map_or(Duration::from_secs(60), |timers| timers.idle);
        let idle = IdleTimeout::try_from(idle).expect("seconds fit in QUIC's milliseconds");
        transport
            .max_idle_timeout(Some(idle))
            .keep_alive_interval(timers.map(|timers| timers.keep_alive));
        transport
    }
}
