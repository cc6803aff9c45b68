//! The edge as a program.

use std::process::ExitCode;

use kvgrid_runtime::HugePages;

#[global_allocator]
static MEMORY: HugePages = HugePages;

fn main() -> ExitCode {
    kvgrid_edge::run(std::env::args_os().skip(1))
}
