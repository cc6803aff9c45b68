//! The node's UDP socket.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};
use tracing::warn;

/// Binds a socket with large buffers: a burst of one bandwidth-delay product arrives faster
/// than a busy process reads, and what does not fit in the buffer is lost.
pub(super) fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.set_recv_buffer_size(buffer_bytes)?;
    socket.set_send_buffer_size(buffer_bytes)?;
    warn_if_clamped(&socket, buffer_bytes)?;
    Ok(socket.into())
}

/// The kernel takes the wish as said and silently gives less.
fn warn_if_clamped(socket: &Socket, wanted: usize) -> io::Result<()> {
    let (receive, send) = (socket.recv_buffer_size()?, socket.send_buffer_size()?);
    // Linux counts its own bookkeeping and reports twice of what it granted.
    let doubled = if cfg!(target_os = "linux") { 2 } else { 1 };
    if receive < wanted.saturating_mul(doubled) || send < wanted.saturating_mul(doubled) {
        warn!(
            wanted,
            receive = receive / doubled,
            send = send / doubled,
            "Socket buffers are smaller than wanted; raise net.core.rmem_max and wmem_max"
        );
    }
    Ok(())
}
