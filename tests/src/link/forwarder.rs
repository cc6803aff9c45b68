//! A UDP forwarder with a link inside.
//!
//! One task for all of it. Each client address has a socket of its own towards the target,
//! as behind a NAT, so that answers find their way back. Packets wait in one line per
//! direction and go out in batches, on one timer.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use anyhow::Context as _;
use kvgrid_core::Instant;
use kvgrid_runtime::{Clock, Tasks};
use kvgrid_sim::{DelayLine, Fate, Link};
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::time::Sleep;

use super::{IN_FLIGHT, LinkProperties, Switch, TICK};

/// Client addresses that are remembered; the one not heard of for longest makes place.
const FLOWS: usize = 256;

/// The largest UDP packet.
const PACKET: usize = 65_535;

/// Kernel buffers: a batch that is due at once must fit.
const SOCKET_BUFFER: usize = 4 << 20;

/// One link of a configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwarderConfig {
    /// What the link is called.
    pub name: String,
    /// Where clients send to.
    pub listen: SocketAddr,
    /// Where it goes.
    pub target: SocketAddr,
    /// Where loss and reordering come from.
    #[serde(default)]
    pub seed: u64,
    /// What the link is like.
    #[serde(default)]
    pub link: LinkProperties,
    /// Links of a process with the same name here share the first one's rate and buffer.
    #[serde(default)]
    pub bottleneck: Option<String>,
}

/// A running link between processes. It ends with its tasks.
#[derive(Debug)]
pub struct Forwarder {
    address: SocketAddr,
    switch: Switch,
}

impl Forwarder {
    /// Binds the client side and forwards from now on.
    pub fn start(config: &ForwarderConfig, tasks: &Tasks) -> anyhow::Result<Self> {
        let wires = Wires::new(config).with_context(|| format!("link {}", config.name))?;
        Self::start_on(config, &wires, tasks)
    }

    /// The same, on wires that others may use as well.
    pub(super) fn start_on(
        config: &ForwarderConfig,
        wires: &Wires,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        let name = &config.name;
        let socket = bind(config.listen)
            .with_context(|| format!("link {name}: {} can't be bound", config.listen))?;
        let address = socket.local_addr()?;
        let direction = |wire: &Arc<Mutex<Link>>| Direction {
            link: Arc::clone(wire),
            line: DelayLine::new(IN_FLIGHT),
        };
        let switch = Switch::default();
        let mut driver = Driver {
            clock: Clock::start(),
            socket,
            target: config.target,
            flows: BTreeMap::new(),
            up: direction(&wires.up),
            down: direction(&wires.down),
            switch: switch.clone(),
            timer: Box::pin(tokio::time::sleep(TICK)),
            buffer: vec![0; PACKET],
        };
        let token = tasks.token().clone();
        tasks.spawn("link", async move {
            let forever = std::future::poll_fn(|context| driver.poll(context));
            token.run_until_cancelled(forever).await;
        });
        Ok(Self { address, switch })
    }

    /// Where clients send to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the link and mends it.
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }
}

/// What packets of one or more forwarders go through, each way.
#[derive(Clone)]
pub(super) struct Wires {
    up: Arc<Mutex<Link>>,
    down: Arc<Mutex<Link>>,
}

impl Wires {
    pub(super) fn new(config: &ForwarderConfig) -> anyhow::Result<Self> {
        let wire = |seed| {
            let link = Link::new(config.link.model(), seed)?;
            anyhow::Ok(Arc::new(Mutex::new(link)))
        };
        Ok(Self {
            up: wire(config.seed)?,
            down: wire(config.seed.wrapping_add(1))?,
        })
    }
}

/// One way through the link.
struct Direction {
    link: Arc<Mutex<Link>>,
    line: DelayLine<Packet>,
}

/// A packet under way, and whose flow it belongs to.
struct Packet {
    client: SocketAddr,
    data: Box<[u8]>,
}

struct Flow {
    socket: UdpSocket,
    last_heard: Instant,
}

struct Driver {
    clock: Clock,
    socket: UdpSocket,
    target: SocketAddr,
    flows: BTreeMap<SocketAddr, Flow>,
    up: Direction,
    down: Direction,
    switch: Switch,
    timer: Pin<Box<Sleep>>,
    buffer: Vec<u8>,
}

impl Direction {
    fn handle_packet(&mut self, now: Instant, is_up: bool, client: SocketAddr, data: &[u8]) {
        let fate = {
            // The link is whole after every call, so a panic elsewhere can't spoil it.
            let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
            link.set_up(is_up);
            link.handle_packet(now, data.len())
        };
        if let Fate::Arrives(due) = fate {
            let packet = Packet {
                client,
                data: data.into(),
            };
            // A full line loses the packet, as a full buffer on the way would.
            let _ = self.line.push(due, packet);
        }
    }
}

impl Driver {
    /// Moves everything that can be moved; never ends.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            self.poll_clients(context);
            self.poll_flows(context);
            let now = self.clock.now() + TICK;
            self.send_due(now);
            let due = [&self.up, &self.down]
                .into_iter()
                .filter_map(|direction| direction.line.poll_timeout())
                .min();
            let Some(due) = due else {
                return Poll::Pending;
            };
            self.timer.as_mut().reset(self.clock.deadline(due) - TICK);
            if self.timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn poll_clients(&mut self, context: &mut Context<'_>) {
        loop {
            let mut buffer = ReadBuf::new(&mut self.buffer);
            let client = match self.socket.poll_recv_from(context, &mut buffer) {
                Poll::Ready(Ok(client)) => client,
                // The error of an earlier packet, such as a port that nobody listens on.
                Poll::Ready(Err(_)) => continue,
                Poll::Pending => return,
            };
            let now = self.clock.now();
            let length = buffer.filled().len();
            if self.note_flow(client, now).is_ok() {
                let data = &self.buffer[..length];
                self.up
                    .handle_packet(now, self.switch.is_up(), client, data);
            }
        }
    }

    fn poll_flows(&mut self, context: &mut Context<'_>) {
        for (client, flow) in &self.flows {
            loop {
                let mut buffer = ReadBuf::new(&mut self.buffer);
                match flow.socket.poll_recv(context, &mut buffer) {
                    Poll::Ready(Ok(())) => {
                        let now = self.clock.now();
                        self.down
                            .handle_packet(now, self.switch.is_up(), *client, buffer.filled());
                    }
                    Poll::Ready(Err(_)) => {}
                    Poll::Pending => break,
                }
            }
        }
    }

    fn send_due(&mut self, now: Instant) {
        // A socket that can't take a packet loses it: this is UDP. Sent past tokio, which
        // takes a socket for unwritable until it has heard otherwise.
        while let Some(packet) = self.up.line.pop_due(now) {
            if let Some(flow) = self.flows.get(&packet.client) {
                let _ = SockRef::from(&flow.socket).send(&packet.data);
            }
        }
        while let Some(packet) = self.down.line.pop_due(now) {
            let _ = SockRef::from(&self.socket).send_to(&packet.data, &packet.client.into());
        }
    }

    fn note_flow(&mut self, client: SocketAddr, now: Instant) -> io::Result<()> {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.last_heard = now;
            return Ok(());
        }
        if self.flows.len() >= FLOWS {
            let oldest = self.flows.iter().min_by_key(|(_, flow)| flow.last_heard);
            if let Some(oldest) = oldest.map(|(client, _)| *client) {
                self.flows.remove(&oldest);
            }
        }
        let any: IpAddr = match self.target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = bind(SocketAddr::new(any, 0))?;
        SockRef::from(&socket).connect(&self.target.into())?;
        let flow = Flow {
            socket,
            last_heard: now,
        };
        self.flows.insert(client, flow);
        Ok(())
    }
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    let options = SockRef::from(&socket);
    // The kernel may give less; then a large batch loses packets, which QUIC repairs.
    let _ = options.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = options.set_send_buffer_size(SOCKET_BUFFER);
    UdpSocket::from_std(socket)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::harness::config::ANY;

    #[test]
    fn packets_of_two_links_wait_for_one_bottleneck() {
        let config = ForwarderConfig {
            name: "one".into(),
            listen: ANY,
            target: ANY,
            seed: 1,
            link: LinkProperties {
                // A thousand bytes in a millisecond.
                rate: NonZeroU64::new(8_000_000),
                ..LinkProperties::default()
            },
            bottleneck: None,
        };
        let wires = Wires::new(&config).unwrap();
        let mut links = [(); 2].map(|()| Direction {
            link: Arc::clone(&wires.up),
            line: DelayLine::new(IN_FLIGHT),
        });

        for link in &mut links {
            link.handle_packet(Instant::ZERO, true, ANY, &[0; 1_000]);
        }

        let due = links.map(|link| link.line.poll_timeout());
        let after = |milliseconds| Some(Instant::ZERO + Duration::from_millis(milliseconds));
        assert_eq!(due, [after(1), after(2)]);
    }
}
