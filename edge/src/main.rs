//! The edge as a program.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvgrid_edge::run(std::env::args_os().skip(1))
}
