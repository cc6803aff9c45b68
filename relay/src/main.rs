//! The relay's own program; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvgrid_relay::run(std::env::args_os().skip(1))
}
