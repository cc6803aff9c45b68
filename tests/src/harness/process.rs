//! A node as a process of its own: started, stopped, killed and started again.
//!
//! Its output goes to a file. It ends with its owner, even one that is killed: it watches
//! its standard input, whose other end goes with the owner ([`hold_leash`]).

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep};

use crate::node::Addresses;

/// How long a node may take to start on a busy machine.
const START: Duration = Duration::from_secs(30);
/// How long a node may take to end once it is told to: its grace for requests, and a little.
const STOP: Duration = Duration::from_secs(35);
/// How often conditions are looked at.
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// Lines of the output that an error shows.
const SHOWN_LINES: usize = 40;
/// Tells a node that its standard input is a leash.
pub(crate) const LEASH: &str = "KVGRID_NODE_LEASH";

/// A node that can be stopped and started again.
#[derive(Debug)]
pub struct Process {
    /// Names it in errors and files.
    name: String,
    /// The binary that has the `node` subcommand.
    program: PathBuf,
    /// Which node it is, and what it is told.
    arguments: Vec<OsString>,
    ready_file: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// A node of this kind (`relay`, `edge`, `emulator`, `link`) with its configuration
    /// already written to `<dir>/<name>.toml`; not yet started.
    pub(crate) fn new(program: &Path, kind: &str, dir: &Path, name: &str) -> Self {
        let path = |suffix: &str| dir.join(format!("{name}.{suffix}"));
        let arguments = ["node", kind, "--config"].map(OsString::from);
        Self {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments: Vec::from(arguments)
                .into_iter()
                .chain([path("toml").into()])
                .collect(),
            ready_file: ready_file(dir, name),
            log: path("log"),
            child: None,
        }
    }

    /// The same node, in a network namespace of the machine.
    pub(crate) fn within(mut self, namespace: &str) -> Self {
        let program = std::mem::replace(&mut self.program, "ip".into());
        let entering = ["netns", "exec", namespace].map(OsString::from);
        let entering = entering.into_iter().chain([program.into()]);
        self.arguments.splice(0..0, entering);
        self
    }

    /// Starts it; output is appended to its file.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.kill();
        // A node that was killed has left its own.
        let _ = std::fs::remove_file(&self.ready_file);
        let log = open_log(&self.log)?;
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            // What overrides the user's own daemons is not meant for these.
            if text.starts_with("KVGRID_EDGE_") || text.starts_with("KVGRID_RELAY_") {
                command.env_remove(&name);
            }
        }
        let child = command
            .args(&self.arguments)
            .env(LEASH, "1")
            // Out of the terminal's group: Ctrl-C is for the owner, who stops all in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} can't be started", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until it says that it is ready, and where it listens.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<Addresses> {
        let deadline = Instant::now() + START;
        loop {
            if let Ok(text) = std::fs::read(&self.ready_file) {
                return Ok(serde_json::from_slice(&text)?);
            }
            if !self.is_running() {
                bail!("{} ended at its start:\n{}", self.name, self.last_output());
            }
            if Instant::now() > deadline {
                bail!("{} does not get ready:\n{}", self.name, self.last_output());
            }
            sleep(POLL).await;
        }
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// SIGKILL, as a machine that loses power: nothing is said to anyone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only for a process that has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and SIGKILL if that is not enough; says whether it was.
    pub(crate) async fn stop(&mut self) -> bool {
        let Some(child) = &self.child else {
            return true;
        };
        // The shell's built-in, so that neither unsafe code nor another package is needed.
        let tell = format!("kill -TERM {}", child.id());
        let _ = Command::new("sh").args(["-c", &tell]).status();
        let deadline = Instant::now() + STOP;
        while self.is_running() && Instant::now() < deadline {
            sleep(POLL).await;
        }
        let ended = !self.is_running();
        self.kill();
        ended
    }

    /// The end of its output so far.
    pub fn last_output(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }

    /// The system's number of it, while it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where a node of this name says that it is ready.
pub(crate) fn ready_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.ready"))
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("no log file {}", path.display()))
}

/// Ends this process when its owner is gone, if a harness has started it.
#[allow(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "the owner is gone: nobody is left for whom to end in order"
)]
pub fn hold_leash() {
    if std::env::var_os(LEASH).is_none() {
        return;
    }
    std::thread::spawn(|| {
        // The owner writes nothing: this returns when the other end is closed.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
}
