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

mod eviction;
mod figure;
mod join;
mod publishers;

/// What to measure.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Bench {
    /// How soon a new edge has a whole view of eight sites
    Join,
    /// How wrong edges are about what a busy site will have cached
    Eviction,
    /// What two thousand publishers cost a relay
    Publishers,
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
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvgrid-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
