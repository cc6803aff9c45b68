//! What the index that Dynamo searches many sites with makes of kvgrid-bench's prompts.
//!
//! Each site is a lane of one `GlobalCkfIndexer`, fed by the snapshot of a `DcCkfState` that was
//! told the prompts' blocks and others besides. Timed is `find_prefix_matches`, in time that the
//! thread has computed; no prompt is asked for twice, and a sweep through memory comes before.
//!
//! Reads the file that kvgrid-bench has written, and prints a line for each thing measured.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use dynamo_kv_router::indexer::cuckoo::GlobalCkfIndexer;
use dynamo_kv_router::protocols::LocalBlockHash;
use rustix::time::{ClockId, clock_gettime};

use lanes::Lanes;
use prompts::{Group, Prompts};

mod lanes;
mod prompts;

/// Words that are read between two measurements.
const SWEPT: usize = 32 << 20;
/// Rounds over all prompts while blocks come and go.
const ROUNDS: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("no file of prompts is named")?;
    let prompts = Prompts::read(&std::fs::read(path)?).ok_or("the file ends early")?;
    let memory = vec![1_u64; SWEPT];

    let (lanes, bytes) = Lanes::full(&prompts)?;
    for group in &prompts.groups {
        println!("search {}", median_ns(group, lanes.index(), &memory));
    }
    println!("still {}", errors(&prompts, lanes.index()));
    println!("bytes {} {}", bytes.filter, bytes.exact);
    drop(lanes);

    let (mut lanes, mut states) = Lanes::alive(&prompts)?;
    let index = lanes.index().clone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churning = scope.spawn(|| {
            let mut replaced = 0;
            while !stop.load(Ordering::Relaxed) {
                replaced += lanes.churn(&mut states);
            }
            replaced
        });
        let mut sum = Errors::default();
        for _ in 0..ROUNDS {
            sum.merge(&errors(&prompts, &index));
        }
        stop.store(true, Ordering::Relaxed);
        println!("churning {sum}");
        let replaced = churning.join().unwrap_or(0);
        eprintln!("blocks replaced: {replaced}");
    });
    Ok(())
}

/// How wrong depths are.
#[derive(Default)]
struct Errors {
    depths: u64,
    over: u64,
    most_over: u64,
    under: u64,
}

impl Errors {
    fn merge(&mut self, other: &Self) {
        self.depths += other.depths;
        self.over += other.over;
        self.most_over = self.most_over.max(other.most_over);
        self.under += other.under;
    }
}

impl std::fmt::Display for Errors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            depths,
            over,
            most_over,
            under,
        } = self;
        write!(f, "{depths} {over} {most_over} {under}")
    }
}

fn errors(prompts: &Prompts, index: &GlobalCkfIndexer) -> Errors {
    let mut errors = Errors::default();
    for prompt in prompts.groups.iter().flat_map(|group| &group.prompts) {
        let found = find(index, &prompt.blocks);
        for (found, right) in found.into_iter().zip(&prompt.depths) {
            errors.depths += 1;
            errors.over += found.saturating_sub(*right);
            errors.most_over = errors.most_over.max(found.saturating_sub(*right));
            errors.under += u64::from(found < *right);
        }
    }
    errors
}

/// The depth of each lane.
fn find(index: &GlobalCkfIndexer, blocks: &[LocalBlockHash]) -> [u64; 16] {
    let Ok(found) = index.find_prefix_matches(blocks) else {
        return [0; 16];
    };
    (*found.lanes()).map(|lane| lane.map_or(0, |lane| u64::from(lane.prefix_depth())))
}

fn median_ns(group: &Group, index: &GlobalCkfIndexer, memory: &[u64]) -> f64 {
    let mut each = Vec::new();
    let batch = (8_192 / group.length).clamp(2, 32) as usize;
    black_box(memory.iter().step_by(8).sum::<u64>());
    for prompts in group.prompts.chunks(batch) {
        let blocks = prompts.iter().flat_map(|prompt| &prompt.blocks);
        black_box(blocks.fold(0, |sum: u64, block| sum.wrapping_add(block.0)));
        let start = computed_ns();
        for prompt in prompts {
            black_box(index.find_prefix_matches(&prompt.blocks).is_ok());
        }
        each.push((computed_ns() - start) / prompts.len() as f64);
    }
    each.sort_by(f64::total_cmp);
    each.get(each.len() / 2).copied().unwrap_or(f64::NAN)
}

fn computed_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
