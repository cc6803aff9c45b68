//! The demo: a grid around the world on one machine.
//!
//! Three emulated sites with a relay beside each, two edges, and links between them with the
//! round trips of an ocean, over mutual TLS with certificates made on the spot. A growing
//! conversation runs, and each line says where a request went and why.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use kvgrid_runtime::args::EXIT_USAGE;
use kvgrid_runtime::{Tasks, Termination};

use crate::harness::{Conversation, Grid, GridPlan};

mod print;
mod script;

use print::Printer;

/// Long enough that its warmth outweighs an ocean.
const SYSTEM_TOKENS: usize = 20_000;
/// Turns after which the running demo begins another conversation.
const TURNS: usize = 12;
/// Time in which a client reads an answer and thinks of a question.
const THINKING: Duration = Duration::from_millis(1_500);
/// Which edge each turn of the running demo asks.
const ASKED: [&str; 4] = ["eu-1", "eu-1", "eu-1", "ap-1"];

/// What the demo is told.
#[derive(Parser)]
#[command(
    name = "kvgrid-demo",
    version,
    about = "A grid around the world on one machine"
)]
#[command(after_help = "kvgrid-demo node relay|edge|emulator|link --config FILE runs one node.")]
struct Options {
    /// Play a fixed script, check each claim, and end
    #[arg(long)]
    once: bool,
    /// Say the same words as an earlier run, which printed this number
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the demo with the arguments that follow the program's name. `program` is what runs
/// nodes: this binary itself.
#[allow(
    clippy::print_stderr,
    reason = "the last words of a program go to its stderr"
)]
pub fn run(arguments: impl IntoIterator<Item = OsString>, program: &Path) -> ExitCode {
    let name = OsString::from("kvgrid-demo");
    let options = match Options::try_parse_from(std::iter::once(name).chain(arguments)) {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 });
        }
    };
    match play(&options, program) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kvgrid-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn play(options: &Options, program: &Path) -> anyhow::Result<ExitCode> {
    let printer = Printer::default();
    let mut termination = Termination::new(&Tasks::new())?;
    let seed = options.seed.unwrap_or_else(new_seed);
    let plan = GridPlan::around_the_world();
    printer.plan(&plan, seed);
    // Whatever an arm drops ends with all its processes.
    let mut grid = tokio::select! {
        grid = Grid::start(plan.clone(), program) => grid?,
        () = termination.next() => return Ok(ExitCode::FAILURE),
    };
    printer.addresses(&grid, &plan)?;
    let kept = tokio::select! {
        kept = converse(options.once, seed, &mut grid, &printer) => kept?,
        () = termination.next() => !options.once,
    };
    printer.line("");
    printer.line("Stopping all nodes ...");
    // Again interrupted, nodes are killed where they stand.
    let mut stopped = Ok(());
    termination
        .unless_again(async { stopped = grid.stop().await })
        .await;
    stopped?;
    printer.line("Stopped.");
    Ok(if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Plays the script, or talks without an end; says whether all claims were kept.
async fn converse(
    once: bool,
    seed: u64,
    grid: &mut Grid,
    printer: &Printer,
) -> anyhow::Result<bool> {
    if once {
        return script::play(seed, grid, printer).await;
    }
    printer.turns_head();
    for round in 0.. {
        let mut conversation = Conversation::new(seed.wrapping_add(round), SYSTEM_TOKENS)?;
        for edge in ASKED.iter().cycle().take(TURNS) {
            let turn = grid.turn(edge, &mut conversation).await?;
            printer.turn(conversation.turns(), &turn);
            if printer.is_unread() {
                return Ok(true);
            }
            tokio::time::sleep(THINKING).await;
        }
        printer.line("  Another conversation begins, with other words.");
    }
    Ok(true)
}

/// A number that differs from run to run, short enough to be typed again.
fn new_seed() -> u64 {
    RandomState::new().hash_one("kvgrid-demo") >> 40
}
