//! Measures what the project promises, a JSON line for each figure.

use std::process::ExitCode;

use kvgrid_runtime::HugePages;
use kvgrid_tests::{bench, node};

#[global_allocator]
static MEMORY: HugePages = HugePages;

fn main() -> ExitCode {
    node::run_or("kvgrid-bench", bench::run)
}
