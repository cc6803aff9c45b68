//! One of a site's processes: own group, output in a file, ended with its owner.
//!
//! The launcher ends the process as well when the test itself was killed: it watches its
//! standard input, whose other end goes with the test.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use crate::harness::process::POLL;

/// How long a process may take to end once it is told to.
const STOP: Duration = Duration::from_secs(10);
/// Lines of the output that a failing test shows.
const SHOWN_LINES: usize = 40;
const LAUNCHER: &str = include_str!("launch.py");

/// A Python module, or a program, that can be run, killed and run again.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) name: &'static str,
    pub(super) python: PathBuf,
    /// The module's name, or the program's whole path.
    pub(super) module: String,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(&'static str, String)>,
    pub(super) log: PathBuf,
    pub(super) child: Option<Child>,
}

impl Daemon {
    /// Runs the module; output is appended to the log.
    pub(super) fn start(&mut self) -> Result<()> {
        self.kill();
        let log = open_log(&self.log)?;
        let errors = log.try_clone().context("the log can't be shared")?;
        let inherited =
            std::env::vars_os().filter(|(key, _)| !key.to_str().is_some_and(belongs_to_a_site));
        let child = Command::new(&self.python)
            .args(["-c", LAUNCHER, &self.module])
            .args(&self.arguments)
            .env_clear()
            .envs(inherited)
            .envs(self.environment.iter().cloned())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("{} doesn't start", self.module))?;
        self.child = Some(child);
        Ok(())
    }

    /// SIGKILL, as a machine that loses power: nothing is said to anyone.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only for a process that has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, upon which it says goodbye; SIGKILL if it takes too long.
    pub(super) async fn stop(&mut self) {
        let Some(child) = &mut self.child else {
            return;
        };
        // The shell's built-in, so that neither unsafe code nor another package is needed.
        let tell = format!("kill -TERM {}", child.id());
        let _ = Command::new("sh").args(["-c", &tell]).status();
        let deadline = Instant::now() + STOP;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(POLL).await;
        }
        self.kill();
    }

    /// Whether it was started and has ended without being killed here.
    pub(super) fn ended_by_itself(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// The end of the output so far.
    pub(super) fn last_output(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Variables that would let a site see another one, or the user's own Dynamo.
fn belongs_to_a_site(key: &str) -> bool {
    ["DYN_", "ETCD_", "KUBE", "NATS_", "POD_", "PYTHON"]
        .iter()
        .any(|prefix| key.starts_with(prefix))
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("no log file {}", path.display()))
}
