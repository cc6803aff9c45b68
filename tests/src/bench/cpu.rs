//! Time that threads and processes have computed, and the memory they have: the wall clock would
//! count what else runs on a machine. What others do to caches and memory stays in it.

use std::fs::File;
use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};

/// What the calling thread has computed.
pub(super) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Nanoseconds of computing that some work took, and what it came to.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = thread_time();
    let done = work();
    ((thread_time() - start).as_secs_f64() * 1e9, done)
}

/// The middle of the nanoseconds that one of `steps` took, over some rounds of them.
pub(super) fn median_ns(rounds: usize, steps: usize, mut work: impl FnMut()) -> f64 {
    let mut each: Vec<f64> = (0..rounds)
        .map(|_| timed(&mut work).0 / steps as f64)
        .collect();
    super::figure::median(&mut each)
}

/// CPU time of all threads of a process, to the hundredth of a second.
pub(super) fn process_time(process: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The program's name may have spaces, and stands in parentheses.
    let (_, fields) = stat.rsplit_once(") ").context("no CPU time is told")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let ticks =
        |place: usize| -> Result<u64> { Ok(fields.get(place).context("no time")?.parse()?) };
    Ok(Duration::from_millis(10) * u32::try_from(ticks(11)? + ticks(12)?)?)
}

/// Bytes of memory that a process has.
pub(super) fn resident_bytes(process: u32) -> Result<u64> {
    let mut status = String::new();
    File::open(format!("/proc/{process}/status"))?.read_to_string(&mut status)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = kib.context("no memory is told")?.parse()?;
    Ok(kib * 1024)
}
