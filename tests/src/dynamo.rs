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
mod install;
mod meeting;
mod nats;
mod plane;
mod ports;
mod process;
mod services;
mod site;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;

pub use answer::Answer;
pub use engine::Engine;
pub use grid::Grid;
pub use install::{Installation, python_packages};
pub use plane::Published;
pub use services::Services;
pub use site::{KvSource, Release, Site, SiteOptions};

use crate::lock::{self, target_dir};
use crate::skip::skip;

/// Set to `1` to leave out the tests that need real Dynamo.
pub const SKIP_VARIABLE: &str = "KVGRID_SKIP_DYNAMO";

/// A test's turn with real Dynamo; the next test waits until it is dropped.
#[derive(Debug)]
pub struct Dynamo {
    installation: Installation,
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
        match Self::ready() {
            Ok(dynamo) => Some(dynamo),
            Err(error) => panic!("{error:#} (or set {SKIP_VARIABLE}=1 to skip these tests)"),
        }
    }

    fn ready() -> Result<Self> {
        let target = target_dir()?;
        let machine = lock::machine()?;
        let installation = python_packages(&target, &requirements_file())?;
        Ok(Self {
            installation,
            _machine: machine,
        })
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

fn requirements_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dynamo-requirements.txt")
}

fn older_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dynamo-older-requirements.txt")
}
