//! An emulated inference site as a process.

use std::process::ExitCode;

use kvgrid_tests::emulator::Emulator;

fn main() -> ExitCode {
    kvgrid_tests::node::run::<Emulator>(std::env::args_os().skip(1))
}
