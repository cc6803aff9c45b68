//! The relay: a sidecar beside a frontend.
//!
//! It learns what the site's workers have cached (`sources`, `pools`), how loaded they are
//! (`load`), what a Dynamo site says of itself (`discovery`) and what the frontend serves
//! (`frontend`, `card`, `catalog`), tells edges (`publish`), and hands their requests to the
//! frontend (`proxy`). It dials them where they can't dial it (`edges`).

mod admin;
mod card;
mod catalog;
mod config;
mod discovery;
mod edges;
mod fetch;
mod frontend;
mod gossip;
mod leaving;
mod load;
mod metrics;
mod pools;
mod prepared;
mod proxy;
mod publish;
mod retry;
mod secret;
mod services;
mod sources;
mod start;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use kvgrid_runtime::{args, telemetry};

use prepared::Prepared;

const NAME: &str = "kvgrid-relay";
const ABOUT: &str = "Tells edges what a site has cached, and hands it their requests";

/// Runs a relay until it is told to stop. Takes the arguments after the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match args::parse(NAME, ABOUT, arguments) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let prepared = match Prepared::from_file(&arguments.config) {
        Ok(prepared) => prepared,
        Err(error) => return args::usage_error(NAME, &error),
    };
    if arguments.check {
        return print(&prepared);
    }
    if let Err(error) = telemetry::init() {
        return args::usage_error(NAME, &error);
    }
    match start::run(prepared) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => args::failure(NAME, &error),
    }
}

fn print(prepared: &Prepared) -> ExitCode {
    let written = prepared
        .to_toml()
        .and_then(|text| io::stdout().write_all(text.as_bytes()));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => args::failure(NAME, &error),
    }
}
