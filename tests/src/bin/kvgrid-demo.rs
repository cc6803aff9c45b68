//! The demo, and every node of a grid as a process of this one binary.

use std::process::ExitCode;

use kvgrid_runtime::HugePages;
use kvgrid_tests::{demo, node};

#[global_allocator]
static MEMORY: HugePages = HugePages;

fn main() -> ExitCode {
    node::run_or("kvgrid-demo", demo::run)
}
