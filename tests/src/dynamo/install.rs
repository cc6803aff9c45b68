//! Installs the pinned Python packages into the target directory, once.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};

use crate::lock;

/// Pythons to look for; the requirements file has hashes for 3.10 to 3.14.
const PYTHONS: [&str; 6] = [
    "python3",
    "python3.14",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
];
const MINORS: std::ops::RangeInclusive<u32> = 10..=14;

/// A virtual environment with the packages in it.
#[derive(Clone, Debug)]
pub struct Installation {
    python: PathBuf,
}

impl Installation {
    /// The interpreter that can import the packages.
    pub fn python(&self) -> &Path {
        &self.python
    }
}

/// The packages of `requirements`, installed below `target` unless an earlier run did it.
///
/// The directory's name comes from the file's text and the Python's version, and appears
/// in one rename when all is in it, so a run that was killed leaves nothing half done.
pub fn python_packages(target: &Path, requirements: &Path) -> Result<Installation> {
    let text = fs::read(requirements)
        .with_context(|| format!("{} can't be read", requirements.display()))?;
    let found = find_python()?;
    let mut hasher = DefaultHasher::new();
    (text, &found.version).hash(&mut hasher);
    let name = format!("dynamo-venv-{:016x}", hasher.finish());
    let venv = target.join(&name);
    let python = venv.join("bin").join("python");

    let _lock = lock::file(&target.join("kvgrid-dynamo-install.lock"))?;
    if !python.exists() {
        let unfinished = target.join(format!("{name}.unfinished"));
        remove_if_there(&unfinished)?;
        remove_if_there(&venv)?;
        create_venv(&found, &unfinished)?;
        install(&unfinished.join("bin").join("python"), requirements, &[])?;
        fs::rename(&unfinished, &venv)
            .with_context(|| format!("{} can't be renamed", unfinished.display()))?;
    }
    Ok(Installation { python })
}

/// The packages of `requirements` in a directory of their own, for who has it in `PYTHONPATH`.
pub(super) fn older_packages(
    target: &Path,
    installation: &Installation,
    requirements: &Path,
) -> Result<PathBuf> {
    let text = fs::read(requirements)
        .with_context(|| format!("{} can't be read", requirements.display()))?;
    let mut hasher = DefaultHasher::new();
    (text, installation.python()).hash(&mut hasher);
    let name = format!("dynamo-older-{:016x}", hasher.finish());
    let directory = target.join(&name);

    let _lock = lock::file(&target.join("kvgrid-dynamo-install.lock"))?;
    if !directory.exists() {
        let unfinished = target.join(format!("{name}.unfinished"));
        remove_if_there(&unfinished)?;
        let into = ["--target", &unfinished.display().to_string()].map(str::to_owned);
        install(installation.python(), requirements, &into)?;
        // Imported for what the tests don't ask for, and much too large to be installed.
        fs::write(unfinished.join("transformers.py"), "AutoConfig = None\n")?;
        fs::rename(&unfinished, &directory)
            .with_context(|| format!("{} can't be renamed", unfinished.display()))?;
    }
    Ok(directory)
}

struct Python {
    command: &'static str,
    version: String,
}

fn find_python() -> Result<Python> {
    let mut seen = Vec::new();
    for command in PYTHONS {
        let Ok(output) = Command::new(command).arg("--version").output() else {
            continue;
        };
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && minor(&version).is_some_and(|m| MINORS.contains(&m)) {
            return Ok(Python { command, version });
        }
        seen.push(version);
    }
    bail!(
        "the tests with real Dynamo need Python 3.{} to 3.{} as python3 in PATH (found: {})",
        MINORS.start(),
        MINORS.end(),
        if seen.is_empty() {
            "none".to_owned()
        } else {
            seen.join(", ")
        },
    )
}

/// The minor version in `Python 3.11.7`.
fn minor(version: &str) -> Option<u32> {
    let (minor, _) = version.strip_prefix("Python 3.")?.split_once('.')?;
    minor.parse().ok()
}

fn create_venv(python: &Python, directory: &Path) -> Result<()> {
    let output = Command::new(python.command)
        .args(["-m", "venv"])
        .arg(directory)
        .output()
        .with_context(|| format!("{} doesn't run", python.command))?;
    if !output.status.success() {
        bail!(
            "the tests with real Dynamo need Python's venv module \
             (Debian: apt-get install python3-venv); {} said: {}",
            python.version,
            last_lines(&output),
        );
    }
    Ok(())
}

fn install(python: &Path, requirements: &Path, more: &[String]) -> Result<()> {
    let output = Command::new(python)
        .args(["-m", "pip", "install", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--no-deps"])
        .args(["--require-hashes", "--only-binary", ":all:"])
        .args(more)
        .arg("--requirement")
        .arg(requirements)
        .output()
        .with_context(|| format!("{} doesn't run", python.display()))?;
    if !output.status.success() {
        bail!(
            "the tests with real Dynamo need a package index that serves what {} pins \
             and 350 MB of room in the target directory; pip said: {}",
            requirements.display(),
            last_lines(&output),
        );
    }
    Ok(())
}

/// The end of what a command said, for a person who must find out why it stopped.
fn last_lines(output: &Output) -> String {
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(6)..].join(" / ")
}

fn remove_if_there(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} can't be removed", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_pythons_own_words() {
        assert_eq!(minor("Python 3.11.7"), Some(11));
        assert_eq!(minor("Python 3.13.0rc1"), Some(13));
        assert_eq!(minor("Python 2.7.18"), None);
    }

    #[test]
    fn every_requirement_is_pinned_and_hashed() {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        let text = read(super::super::requirements_file()) + &read(super::super::older_file());

        let joined = text.replace("\\\n", " ");
        let requirements: Vec<&str> = joined
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();

        assert!(requirements.iter().any(|r| r.starts_with("ai-dynamo==")));
        for requirement in requirements {
            assert!(requirement.contains("=="), "{requirement}");
            assert!(requirement.contains("--hash=sha256:"), "{requirement}");
        }
    }
}
