//! The demo, and every node of a grid as a process of this one binary.

use std::ffi::OsString;
use std::process::ExitCode;

use kvgrid_runtime::args::EXIT_USAGE;
use kvgrid_tests::emulator::Emulator;
use kvgrid_tests::link::Links;
use kvgrid_tests::{demo, harness, node};

#[allow(
    clippy::print_stderr,
    reason = "a wrong command line is answered on stderr"
)]
fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|first| first == "node").is_some() {
        return run_node(arguments);
    }
    match std::env::current_exe() {
        Ok(program) => demo::run(arguments, &program),
        Err(error) => {
            eprintln!("kvgrid-demo: this program does not find itself: {error}");
            ExitCode::FAILURE
        }
    }
}

#[allow(
    clippy::print_stderr,
    reason = "a wrong command line is answered on stderr"
)]
fn run_node(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    harness::hold_leash();
    let kind = arguments.next().unwrap_or_default();
    match kind.to_str() {
        Some("relay") => kvgrid_relay::run(arguments),
        Some("edge") => kvgrid_edge::run(arguments),
        Some("emulator") => node::run::<Emulator>(arguments),
        Some("link") => node::run::<Links>(arguments),
        _ => {
            eprintln!("usage: kvgrid-demo node relay|edge|emulator|link --config FILE");
            ExitCode::from(EXIT_USAGE)
        }
    }
}
