//! Real Dynamo sites for tests: frontend, mocker and its events, raw or Dynamo's own, no GPU.
//!
//! [`Dynamo::for_test`] is where a test starts. It waits for its turn, since these tests
//! run one at a time on the machine, and installs the pinned packages into `target/` when
//! they aren't there yet. With `KVGRID_SKIP_DYNAMO=1` it prints a line
//! `skipped: <test>: <reason>` past cargo's capture, which `.ci/run` counts, and gives
//! nothing. [`Site`] is one site: its processes can be killed and started again apart.
//! [`Grid`] is several of them behind an edge.

mod answer;
mod cluster;
mod commands;
mod debian;
mod engine;
mod filter;
mod grid;
mod heard;
mod install;
mod live;
mod meeting;
mod nats;
mod options;
mod plane;
mod ports;
mod process;
mod services;
mod site;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

pub use answer::Answer;
pub use engine::Engine;
pub use grid::Grid;
pub use heard::{Heard, Held, Place};
pub use install::{Installation, python_packages};
pub use live::tell as tell_live;
pub use options::{KvSource, OtherWorker, Release, SiteOptions};
pub use plane::Published;
pub use services::Services;
pub use site::{EngineRequests, Site};

use crate::lock::{self, target_dir};
use crate::skip::skip;

/// Set to `1` to leave out the tests that need real Dynamo.
pub const SKIP_VARIABLE: &str = "KVGRID_SKIP_DYNAMO";

/// A test's turn with real Dynamo; the next test waits until it is dropped.
#[derive(Debug)]
pub struct Dynamo {
    test: String,
    installation: Installation,
    /// What its sites were.
    kinds: Mutex<BTreeSet<(KvSource, Release)>>,
    _machine: File,
}

impl Dynamo {
    /// Waits for the turn and installs Dynamo, or says that `test` is skipped.
    ///
    /// # Panics
    ///
    /// Where Dynamo can't be had and the tests weren't asked to do without it.
    pub fn for_test(test: &str) -> Option<Self> {
        if std::env::var_os(SKIP_VARIABLE).is_some_and(|value| value == "1") {
            skip(test, &format!("{SKIP_VARIABLE}=1"));
            return None;
        }
        match Self::ready(test) {
            Ok(dynamo) => Some(dynamo),
            Err(error) => panic!("{error:#} (or set {SKIP_VARIABLE}=1 to skip these tests)"),
        }
    }

    fn ready(test: &str) -> Result<Self> {
        let target = target_dir()?;
        let machine = lock::machine()?;
        let installation = python_packages(&target, &requirements_file())?;
        Ok(Self {
            test: test.to_owned(),
            installation,
            kinds: Mutex::default(),
            _machine: machine,
        })
    }

    /// A site of this kind takes part.
    fn note(&self, source: KvSource, release: Release) {
        let kinds = self.kinds.lock();
        kinds
            .unwrap_or_else(PoisonError::into_inner)
            .insert((source, release));
    }

    /// Where an older Dynamo is, for who looks there first.
    pub(crate) fn older(&self) -> Result<PathBuf> {
        install::older_packages(&target_dir()?, &self.installation, &older_file())
    }

    /// Where Dynamo is installed.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }
}

impl Drop for Dynamo {
    #[allow(
        clippy::print_stderr,
        reason = "the test runner shows it with the test"
    )]
    fn drop(&mut self) {
        let kinds = self.kinds.get_mut();
        let kinds = kinds.unwrap_or_else(PoisonError::into_inner);
        if std::thread::panicking() || kinds.is_empty() {
            return;
        }
        if let Err(error) = live::note(&self.test, kinds) {
            eprintln!("{} is not noted as run: {error:#}", self.test);
        }
    }
}

fn requirements_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dynamo-requirements.txt")
}

fn older_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dynamo-older-requirements.txt")
}
