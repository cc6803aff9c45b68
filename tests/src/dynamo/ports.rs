//! Ports that a child process can bind a moment later, and again after a restart.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

/// Below what the kernel hands out for port 0, so that nobody else is given one of these
/// between the look and the bind, or while a site's process is down.
const PORTS: Range<u16> = 20_000..30_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port that nobody listens on now and that this process hasn't given out before.
pub(super) fn free() -> Result<u16> {
    first_of(1)
}

/// The first of so many such ports in a row.
pub(super) fn first_of(count: u16) -> Result<u16> {
    // Processes start at different places, so that two test runs rarely look at the same.
    let start = u16::try_from(std::process::id() % 97).unwrap_or(0) * 100;
    for _ in PORTS {
        let step = NEXT.fetch_add(count, Ordering::Relaxed);
        let first = PORTS.start + (start.wrapping_add(step)) % (PORTS.end - PORTS.start);
        let mut all = first..first + count;
        if all.all(|port| TcpListener::bind(("0.0.0.0", port)).is_ok()) {
            return Ok(first);
        }
    }
    bail!(
        "no {count} ports are free between {} and {}",
        PORTS.start,
        PORTS.end
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_passed_over() {
        let taken = free().unwrap();
        let _listener = TcpListener::bind(("0.0.0.0", taken)).unwrap();

        let others: Vec<u16> = (0..5).map(|_| free().unwrap()).collect();

        assert!(!others.contains(&taken));
    }
}
