//! Time that a thread has spent on a CPU, which other programs on the machine don't add to.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The CPU time of the thread that has made it.
pub(super) struct ThreadClock(File);

impl ThreadClock {
    pub(super) fn of_this_thread() -> Result<Self> {
        let clock = File::open("/proc/thread-self/schedstat").context("thread's CPU time")?;
        Ok(Self(clock))
    }

    /// Nanoseconds are told; a look takes some thousand of them.
    pub(super) fn now(&self) -> Result<Duration> {
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..length])?;
        let nanos = text.split(' ').next().context("no CPU time is told")?;
        Ok(Duration::from_nanos(nanos.parse()?))
    }
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
