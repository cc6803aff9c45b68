//! Benchmarks: what the project promises, measured.
//!
//! Each prints JSON lines with the figures, the bounds that they should keep and, where there
//! is one, what a peer did in the same run. It fails only where it can't run: whether a figure
//! is good is for the reader to say.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use kvgrid_runtime::args::EXIT_USAGE;

mod beside;
mod codec;
mod cpu;
mod decision;
mod eviction;
mod fed;
mod figure;
mod filter;
mod frontend;
mod ground;
mod join;
mod machine;
mod memory;
mod prompts;
mod publisher;
mod publishers;
mod relay;
mod replicate;
mod resync;
mod steady;
mod transfer;

/// What to measure.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Bench {
    /// How soon a new edge has a whole view of eight sites
    Join,
    /// How wrong edges are about what a busy site will have cached
    Eviction,
    /// What two thousand publishers cost a relay
    Publishers,
    /// What a relay's state costs, in time and memory
    Relay,
    /// How fast an edge far away learns what a site has cached
    Replicate,
    /// How soon a new edge has a whole view of thirteen large sites
    Resync,
    /// What a resync does to requests beside it
    Beside,
    /// What an edge spends on following sites that change all the time
    Steady,
    /// What waiting for memory costs here, which other figures are told in
    Machine,
    /// What lookups and changes of a filter cost
    Filter,
    /// What a pool takes on the wire, and what coding it costs
    Codec,
    /// What an edge's view takes of memory
    Memory,
    /// What a decision costs, and how wrong the depths are that it goes by
    Decision,
}

#[derive(Parser)]
#[command(
    name = "kvgrid-bench",
    version,
    about = "Measures what kvgrid promises"
)]
struct Options {
    /// What to measure
    bench: Bench,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
}

/// Runs a benchmark. `program` is what runs nodes.
#[allow(
    clippy::print_stderr,
    reason = "the last words of a program go to its stderr"
)]
pub fn run(arguments: Vec<OsString>, program: &Path) -> ExitCode {
    let name = OsString::from("kvgrid-bench");
    let options = match Options::try_parse_from(std::iter::once(name).chain(arguments)) {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 });
        }
    };
    let measured = match options.bench {
        Bench::Join => join::run(options.quick, program),
        Bench::Publishers => publishers::run(options.quick, program),
        Bench::Eviction => eviction::run(options.quick),
        Bench::Relay => relay::run(options.quick),
        Bench::Replicate => replicate::run(options.quick, program),
        Bench::Resync => resync::run(options.quick, program),
        Bench::Beside => beside::run(options.quick, program),
        Bench::Steady => steady::run(options.quick, program),
        Bench::Machine => machine::run(options.quick),
        Bench::Filter => filter::run(options.quick),
        Bench::Codec => codec::run(options.quick),
        Bench::Memory => memory::run(options.quick),
        Bench::Decision => decision::run(options.quick),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvgrid-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
