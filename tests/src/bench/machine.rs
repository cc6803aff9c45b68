//! What the machine's memory can do, which other figures are told in multiples of.
//!
//! C is the time of a load that has to wait for the one before it, R that of one that hasn't,
//! both from lines all over as much memory as the tables take.

use std::hint::black_box;

use kvgrid_core::filter::Geometry;

use crate::bench::cpu::median_ns;
use crate::bench::figure::Figure;

const BENCH: &str = "machine";

/// Blocks of a site's table in all benches that don't say otherwise.
pub(super) const BLOCKS: u64 = 10_000_000;

/// A cache line, of which only the first word is used.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u64; 8]);

/// Memory to look into.
pub(super) struct Memory {
    lines: Vec<Line>,
    rounds: usize,
}

/// Looks of a round.
const LOOKS: usize = 100_000;
const FACTOR: u64 = 0x5851_f42d_4c95_7f2d;

impl Memory {
    /// So many bytes, all written once.
    pub(super) fn new(bytes: u64, quick: bool) -> Self {
        let lines = usize::try_from(bytes / 64).unwrap_or(usize::MAX);
        Self {
            lines: vec![Line([1; 8]); lines],
            rounds: if quick { 9 } else { 31 },
        }
    }

    /// C: nanoseconds of a load whose place the load before it tells.
    pub(super) fn latency_ns(&self) -> f64 {
        let mut state = 1_u64;
        median_ns(self.rounds, LOOKS, || {
            for _ in 0..LOOKS {
                state = state.wrapping_mul(FACTOR).wrapping_add(self.word(state));
            }
            black_box(state);
        })
    }

    /// R: nanoseconds of a load whose place is known beforehand.
    pub(super) fn line_ns(&self) -> f64 {
        let mut state = 2_u64;
        median_ns(self.rounds, LOOKS, || {
            let mut sum = 0_u64;
            for _ in 0..LOOKS {
                state = state.wrapping_mul(FACTOR).wrapping_add(1);
                sum = sum.wrapping_add(self.word(state));
            }
            black_box(sum);
        })
    }

    /// Reads everything, so that it takes the place of what was in the caches.
    pub(super) fn sweep(&self) {
        let words = self.lines.iter().map(|line| line.0[0]);
        black_box(words.fold(0, u64::wrapping_add));
    }

    /// The word of the line that a random number leads to.
    #[inline]
    fn word(&self, random: u64) -> u64 {
        let place = ((random >> 32) * self.lines.len() as u64) >> 32;
        self.lines
            .get(usize::try_from(place).unwrap_or(0))
            .map_or(1, |line| line.0[0])
    }
}

/// C and R over as much memory as so many tables take.
pub(super) fn latency_and_line(bytes: u64, quick: bool) -> (f64, f64) {
    let memory = Memory::new(bytes, quick);
    (memory.latency_ns(), memory.line_ns())
}

pub(super) fn run(quick: bool) -> anyhow::Result<()> {
    let table = Geometry::for_capacity(BLOCKS, 0).bytes();
    for (sites, latency, line) in [
        (1, "latency_1_site", "line_1_site"),
        (13, "latency_13_sites", "line_13_sites"),
        (100, "latency_100_sites", "line_100_sites"),
    ] {
        let (c, r) = latency_and_line(sites * table, quick);
        Figure::less(BENCH, latency, c, "ns").print()?;
        Figure::less(BENCH, line, r, "ns").print()?;
    }
    print_huge_pages(BENCH, 13 * table)
}

/// The share of memory like the tables' that the kernel backs by huge pages.
pub(super) fn print_huge_pages(bench: &str, bytes: u64) -> anyhow::Result<()> {
    let before = memory_bytes("AnonHugePages:")?;
    let memory = Memory::new(bytes, true);
    let share = (memory_bytes("AnonHugePages:")? - before) / bytes as f64;
    drop(memory);
    Figure::more(bench, "huge_pages", share, "share of memory").print()
}

/// Bytes of this process, by a line of what the kernel says of its memory.
pub(super) fn memory_bytes(line: &str) -> anyhow::Result<f64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = smaps.lines().find(|found| found.starts_with(line));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.map_or(Ok(0.0), str::parse::<f64>)? * 1024.0)
}
