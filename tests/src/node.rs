//! Nodes of a grid as processes of a program of this crate, and what the small daemons among
//! them share: a configuration file, a file that says they are ready, and an end by signal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use kvgrid_runtime::config::Environment;
use kvgrid_runtime::{ReadyFile, Tasks, Termination, args, config, telemetry};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::emulator::Emulator;
use crate::harness;
use crate::link::Links;

/// Runs a node if the command line says so, else the program itself, which is told the
/// arguments and which binary can run nodes.
#[allow(
    clippy::print_stderr,
    reason = "a program's last words go to its stderr"
)]
pub fn run_or(name: &str, program: impl FnOnce(Vec<OsString>, &Path) -> ExitCode) -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|first| first == "node").is_some() {
        return run_node(name, arguments);
    }
    match std::env::current_exe() {
        Ok(binary) => program(arguments.collect(), &binary),
        Err(error) => {
            eprintln!("{name}: this program does not find itself: {error}");
            ExitCode::FAILURE
        }
    }
}

#[allow(
    clippy::print_stderr,
    reason = "a wrong command line is answered on stderr"
)]
fn run_node(name: &str, mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    harness::hold_leash();
    let kind = arguments.next().unwrap_or_default();
    match kind.to_str() {
        Some("relay") => kvgrid_relay::run(arguments),
        Some("edge") => kvgrid_edge::run(arguments),
        Some("emulator") => run::<Emulator>(arguments),
        Some("link") => run::<Links>(arguments),
        _ => {
            eprintln!("usage: {name} node relay|edge|emulator|link --config FILE");
            ExitCode::from(args::EXIT_USAGE)
        }
    }
}

/// Addresses by what listens there.
pub type Addresses = BTreeMap<String, SocketAddr>;

/// How long connections may take to end after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// A daemon with a configuration of its own.
pub trait Daemon: Sized {
    /// What the configuration file holds.
    type Config: DeserializeOwned + Serialize;
    /// The program's name.
    const NAME: &'static str;
    /// What it is, in a few words.
    const ABOUT: &'static str;

    /// Where to say that everything is up.
    fn ready_file(config: &Self::Config) -> Option<PathBuf>;

    /// Starts it.
    fn start(config: Self::Config) -> impl Future<Output = anyhow::Result<Self>>;

    /// What it has bound.
    fn addresses(&self) -> Addresses;

    /// Ends with the tasks it runs.
    fn tasks(&self) -> &Tasks;
}

/// Runs a daemon until a signal ends it; takes the arguments after the program's name.
pub fn run<D: Daemon>(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match args::parse(D::NAME, D::ABOUT, arguments) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let config: D::Config = match config::load(&arguments.config, &Environment::default()) {
        Ok(config) => config,
        Err(error) => return args::usage_error(D::NAME, &error),
    };
    if let Err(error) = telemetry::init() {
        return args::usage_error(D::NAME, &error);
    }
    let outcome = match arguments.check {
        true => print(&config),
        false => serve::<D>(config),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // With all that led to it.
        Err(error) => args::failure(D::NAME, &*anyhow::anyhow!("{error:#}")),
    }
}

#[allow(clippy::print_stdout, reason = "`--check` answers on stdout")]
fn print(config: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", toml::to_string(config)?);
    Ok(())
}

#[tokio::main]
async fn serve<D: Daemon>(config: D::Config) -> anyhow::Result<()> {
    let ready_file = D::ready_file(&config);
    let daemon = D::start(config).await?;
    let mut termination = Termination::new(daemon.tasks())?;
    // Removed at the end of this function, with the daemon.
    let addresses = daemon.addresses();
    let bound = addresses.iter().map(|(name, at)| (name.as_str(), *at));
    let _ready = ready_file
        .map(|path| ReadyFile::write(&path, &bound.collect()))
        .transpose()?;
    termination.next().await;
    daemon.tasks().finish(GRACE).await;
    Ok(())
}
