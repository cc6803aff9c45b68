//! The edge: the router in a region.
//!
//! Clients speak HTTP to it (`api`); it keeps a view of the grid (`subscribe`), decides
//! which site a request goes to (`route`) and passes it to that site's relay (`forward`).
//! [`run`] is the whole program, so that others can start an edge as a process of their own.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use kvgrid_runtime::{args, telemetry};

mod admin;
mod api;
mod config;
mod forward;
mod metrics;
mod node;
mod open;
mod route;
mod subscribe;

const NAME: &str = "kvgrid-edge";

/// Runs an edge with the arguments that follow the program's name, until it is told to stop.
///
/// Ends with 64 if the command line or the configuration is wrong, with 1 if what they name
/// cannot be had, such as an address that is taken.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let about = "Routes requests to the site that will answer soonest";
    let arguments = match args::parse(NAME, about, arguments) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let loaded = config::load(&arguments.config)
        .map(config::ConfigFile::complete)
        .and_then(|file| Ok((file.resolve()?, file)));
    let (config, file) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return args::usage_error(NAME, &error),
    };
    let shown = kvgrid_runtime::config::render(&file);
    if arguments.check {
        if let Err(error) = node::identify(&config) {
            return args::usage_error(NAME, &error);
        }
        return match io::stdout().write_all(shown.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => args::failure(NAME, &error),
        };
    }
    if let Err(error) = telemetry::init() {
        return args::usage_error(NAME, &error);
    }
    tracing::info!(configuration = shown.replace('\n', "; "), "Starting");
    match node::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_usage() => args::usage_error(NAME, &error),
        Err(error) => args::failure(NAME, &error),
    }
}
