//! The relay's own program; everything is in the library.

use std::process::ExitCode;

use kvgrid_runtime::HugePages;

#[global_allocator]
static MEMORY: HugePages = HugePages;

fn main() -> ExitCode {
    kvgrid_relay::run(std::env::args_os().skip(1))
}
