//! Programs from Debian packages, unpacked into the target directory, once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::lock;

/// A program and the package that has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packaged {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
}

impl Packaged {
    /// The program's path: the one that is installed, or one unpacked below `target`.
    pub(super) fn find(self, target: &Path) -> Result<PathBuf> {
        if let Some(installed) = installed(self.program) {
            return Ok(installed);
        }
        let directory = target.join(format!("kvgrid-{}", self.package));
        let unpacked = || {
            let places = ["usr/bin", "usr/sbin"].into_iter();
            let mut places = places.map(|place| directory.join(place).join(self.program));
            places.find(|program| program.is_file())
        };
        let _lock = lock::file(&target.join("kvgrid-dynamo-install.lock"))?;
        if unpacked().is_none() {
            self.unpack(&directory).with_context(|| {
                let Self { program, package } = self;
                format!(
                    "the tests with real Dynamo need {program}, in PATH or from a Debian \
                     package index (Debian: apt-get install {package})"
                )
            })?;
        }
        let Self { program, package } = self;
        unpacked().with_context(|| format!("there is no {program} in {package}"))
    }

    /// Downloads the package and unpacks it, without installing it.
    fn unpack(self, directory: &Path) -> Result<()> {
        let unfinished = directory.with_extension("unfinished");
        for old in [&unfinished, &directory.to_owned()] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
        }
        fs::create_dir_all(&unfinished)?;
        let download = || run("apt-get", &["-q", "download", self.package], &unfinished);
        if download().is_err() {
            // A fresh machine knows no packages yet; without rights the download says it again.
            let _ = run("apt-get", &["-q", "update"], &unfinished);
            download()?;
        }
        let files: Vec<_> = fs::read_dir(&unfinished)?.collect::<Result<_, _>>()?;
        let package = files.iter().map(fs::DirEntry::path);
        let mut package = package.filter(|path| path.extension().is_some_and(|e| e == "deb"));
        let package = package.next().context("nothing was downloaded")?;
        let package = package.display().to_string();
        run("dpkg", &["-x", &package, "."], &unfinished)?;
        fs::rename(&unfinished, directory)?;
        Ok(())
    }
}

fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Daemons are not in everybody's PATH.
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let mut found = directories.map(|directory| directory.join(program));
    found.find(|path| path.is_file())
}

fn run(program: &str, arguments: &[&str], directory: &Path) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .with_context(|| format!("{program} doesn't run"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", arguments.join(" "), said.trim());
    }
    Ok(())
}
