//! A link between QUIC and its socket, for nodes in the test's own process.
//!
//! What the node sends goes through the link; what it receives has come through the link of
//! the node that sent it. With both ends wrapped, a round trip is twice the delay.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use kvgrid_core::Instant;
use kvgrid_runtime::{Clock, Tasks, WrapSocket};
use kvgrid_sim::link::ShareError;
use kvgrid_sim::{DelayLine, Fate, Link};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::sync::Notify;

use super::{IN_FLIGHT, LinkProperties, Switch, TICK};

/// A wrapper for `NodeConfig::wrap_socket`, and the switch of all links it makes.
pub fn wrap(
    properties: &LinkProperties,
    seed: u64,
    tasks: &Tasks,
) -> Result<(WrapSocket, Switch), ShareError> {
    let link = Link::new(properties.model(), seed)?;
    let switch = Switch::default();
    let wrap = {
        let (switch, tasks) = (switch.clone(), tasks.clone());
        move |inner: Arc<dyn AsyncUdpSocket>| -> Arc<dyn AsyncUdpSocket> {
            let socket = Arc::new(EmulatedSocket {
                inner,
                clock: Clock::start(),
                switch: switch.clone(),
                state: Mutex::new(State {
                    link: link.clone(),
                    line: DelayLine::new(IN_FLIGHT),
                }),
                changed: Arc::new(Notify::new()),
            });
            let token = tasks.token().clone();
            let driver = drive(
                Arc::downgrade(&socket),
                socket.clock,
                socket.changed.clone(),
            );
            tasks.spawn("link", async move {
                token.run_until_cancelled(driver).await;
            });
            socket
        }
    };
    Ok((Arc::new(wrap), switch))
}

struct EmulatedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    clock: Clock,
    switch: Switch,
    state: Mutex<State>,
    /// An earlier packet may be due now, or the socket is gone.
    changed: Arc<Notify>,
}

struct State {
    link: Link,
    line: DelayLine<Packet>,
}

struct Packet {
    destination: SocketAddr,
    source: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    data: Box<[u8]>,
}

impl EmulatedSocket {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is due and says when to come again.
    fn send_due(&self) -> Option<Instant> {
        let now = self.clock.now() + TICK;
        let mut state = self.state();
        while let Some(packet) = state.line.pop_due(now) {
            // A socket that can't take a packet loses it: this is UDP.
            let _ = self.inner.try_send(&Transmit {
                destination: packet.destination,
                ecn: packet.ecn,
                contents: &packet.data,
                segment_size: None,
                src_ip: packet.source,
            });
        }
        state.line.poll_timeout()
    }
}

impl Drop for EmulatedSocket {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

async fn drive(socket: Weak<EmulatedSocket>, clock: Clock, changed: Arc<Notify>) {
    loop {
        // Held for no longer than a batch, so that the socket goes with its endpoint.
        let Some(due) = socket.upgrade().map(|socket| socket.send_due()) else {
            return;
        };
        let timer = async {
            match due {
                Some(due) => tokio::time::sleep_until(clock.deadline(due) - TICK).await,
                None => std::future::pending().await,
            }
        };
        // Both arms only wait; a notification that comes meanwhile is kept.
        tokio::select! {
            () = changed.notified() => {}
            () = timer => {}
        }
    }
}

impl fmt::Debug for EmulatedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedSocket")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for EmulatedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let now = self.clock.now();
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        let mut state = self.state();
        state.link.set_up(self.switch.is_up());
        let next = state.line.poll_timeout();
        for data in transmit.contents.chunks(segment.max(1)) {
            let Fate::Arrives(due) = state.link.handle_packet(now, data.len()) else {
                continue;
            };
            let packet = Packet {
                destination: transmit.destination,
                source: transmit.src_ip,
                ecn: transmit.ecn,
                data: data.into(),
            };
            // A full line loses the packet, as a full buffer on the way would.
            let _ = state.line.push(due, packet);
        }
        if state.line.poll_timeout() != next {
            self.changed.notify_one();
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// The link takes everything at once; what does not fit is lost on the way.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
