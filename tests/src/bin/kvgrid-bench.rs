//! Measures what the project promises, a JSON line for each figure.

use std::process::ExitCode;

use kvgrid_tests::{bench, node};

fn main() -> ExitCode {
    node::run_or("kvgrid-bench", bench::run)
}
