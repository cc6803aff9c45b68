//! Which tests have run against which real sites, and the table of it in `docs/dynamo.md`.
//!
//! A test that passes leaves a file in `target/dynamo-live`; the table is made of these, so
//! that it says what was run and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::options::{KvSource, Release};
use crate::lock::target_dir;

const DIRECTORY: &str = "dynamo-live";
const BEGIN: &str = "<!-- begin: kvgrid-live -->\n";
const END: &str = "<!-- end: kvgrid-live -->\n";

/// What a site's relay follows, and of which Dynamo.
type Kind = (KvSource, Release);

/// Remembers that a test has passed with sites of these kinds.
pub(super) fn note(test: &str, kinds: &BTreeSet<Kind>) -> Result<()> {
    let directory = target_dir()?.join(DIRECTORY);
    fs::create_dir_all(&directory)?;
    let lines = kinds
        .iter()
        .map(|(source, release)| format!("{} {}\n", source.word(), release.version()));
    let text: String = lines.collect();
    fs::write(directory.join(test), text)?;
    Ok(())
}

/// Puts the table of what has run into a page, or says that another one stands there.
pub fn tell(page: &Path, check: bool) -> Result<()> {
    let table = table(&read(&target_dir()?.join(DIRECTORY))?);
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let (before, rest) = text.split_once(BEGIN).context("no place for the table")?;
    let (_, after) = rest.split_once(END).context("the table has no end")?;
    let told = format!("{before}{BEGIN}{table}{END}{after}");
    if check {
        ensure!(
            text == told,
            "{} is not what has run; kvgrid-live mends it:\n{table}",
            page.display()
        );
        return Ok(());
    }
    Ok(fs::write(page, told)?)
}

/// What has run: the sentence, and the kinds of sites.
fn read(directory: &Path) -> Result<BTreeMap<String, BTreeSet<Kind>>> {
    let mut all: BTreeMap<String, BTreeSet<Kind>> = BTreeMap::new();
    for file in fs::read_dir(directory).context("no test with real Dynamo has run")? {
        let file = file?;
        let test = file.file_name().to_string_lossy().into_owned();
        let kinds = all.entry(sentence(&test)).or_default();
        for line in fs::read_to_string(file.path())?.lines() {
            kinds.insert(kind(line)?);
        }
    }
    Ok(all)
}

/// What a test shows: its name, without how the sites are followed.
fn sentence(test: &str) -> String {
    let name = test.strip_prefix("dynamo_").unwrap_or(test);
    let ways = KvSource::ALL.iter().filter_map(|source| source.suffix());
    let mut stripped = ways.filter_map(|suffix| name.strip_suffix(suffix));
    stripped.next().unwrap_or(name).replace('_', " ")
}

fn kind(line: &str) -> Result<Kind> {
    let known = KvSource::ALL
        .iter()
        .flat_map(|source| Release::ALL.iter().map(move |release| (*source, *release)));
    for (source, release) in known {
        if line == format!("{} {}", source.word(), release.version()) {
            return Ok((source, release));
        }
    }
    bail!("{line:?} is no kind of site")
}

fn table(all: &BTreeMap<String, BTreeSet<Kind>>) -> String {
    let kinds: BTreeSet<Kind> = all.values().flatten().copied().collect();
    let mut table = String::from("| |");
    for (source, release) in &kinds {
        let _ = write!(table, " {}, Dynamo {} |", source.shown(), release.version());
    }
    table.push_str("\n|---|");
    table.push_str(&"---|".repeat(kinds.len()));
    table.push_str("\n| a relay that starts late learns |");
    for (source, _) in &kinds {
        let _ = write!(table, " {} |", source.recovered());
    }
    for (sentence, run) in all {
        let _ = write!(table, "\n| {sentence} |");
        for kind in &kinds {
            table.push_str(if run.contains(kind) { " run |" } else { " |" });
        }
    }
    table.push('\n');
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_run_is_told_by_kind_of_site_and_nothing_else() {
        let events = (KvSource::DynamoEvents, Release::Current);
        let older = (KvSource::EngineZmq, Release::Older);
        let all = [
            ("a b".to_owned(), [events].into()),
            ("c".to_owned(), [older].into()),
        ];

        let table = table(&all.into());

        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(
            rows,
            [
                "| | `engine-zmq`, Dynamo 1.5.1 | `dynamo-events` over ZMQ, files, Dynamo 1.6.1 |",
                "|---|---|---|",
                "| a relay that starts late learns | all | what happens from then on |",
                "| a b | | run |",
                "| c | run | |",
            ]
        );
    }

    #[test]
    fn a_sentence_is_the_tests_name_without_the_way() {
        let events = sentence("dynamo_worker_death_takes_its_blocks_along_by_dynamos_events");
        let raw = sentence("dynamo_worker_death_takes_its_blocks_along");

        assert_eq!(events, "worker death takes its blocks along");
        assert_eq!(raw, events);
    }

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        for source in KvSource::ALL {
            for release in Release::ALL {
                let line = format!("{} {}", source.word(), release.version());
                assert_eq!(kind(&line).unwrap(), (source, release));
            }
        }
        assert!(kind("gossip 1.6.1").is_err());
    }
}
