//! The same prompts given to the index that Dynamo searches many sites with, where it is built
//! (`tests/peer`): a program of its own, so that nothing of it is needed to build kvgrid.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::errors::Errors;
use super::workload::Group;
use crate::bench::figure::Figure;

/// Sites that the peer's index has room for.
const MOST_SITES: usize = 16;

/// What the peer came to.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Nanoseconds of a search, for each group of prompts.
    searches: Vec<f64>,
    pub(super) still: Errors,
    pub(super) churning: Errors,
}

impl Peer {
    /// Runs it; `None` if it isn't built or can't take so many sites.
    pub(super) fn run(sites: usize, blocks: u64, groups: &[Group]) -> anyhow::Result<Option<Self>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peer");
        let program = folder.join("target/release/kvgrid-peer");
        if sites > MOST_SITES {
            return Ok(None);
        }
        if !program.exists() {
            say(
                "no peer to compare with: build it by `cargo build --release --manifest-path tests/peer/Cargo.toml`",
            );
            return Ok(None);
        }
        let mut prompts = tempfile::NamedTempFile::new()?;
        write(sites, blocks, groups, &mut prompts)?;
        let output = Command::new(&program).arg(prompts.path()).output()?;
        let words = String::from_utf8(output.stdout)?;
        if !output.status.success() {
            anyhow::bail!("the peer: {}", String::from_utf8_lossy(&output.stderr));
        }
        let mut peer = Self::default();
        for line in words.lines() {
            peer.take(line)
                .with_context(|| format!("the peer said: {line}"))?;
        }
        Ok(Some(peer))
    }

    /// Nanoseconds of a search in a group of prompts.
    pub(super) fn search_ns(&self, group: usize) -> Option<f64> {
        self.searches.get(group).copied()
    }

    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let numbers: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>()?;
        match (kind, numbers.as_slice()) {
            ("search", [ns]) => self.searches.push(*ns),
            ("still", numbers) => self.still = errors(numbers)?,
            ("churning", numbers) => self.churning = errors(numbers)?,
            ("bytes", [filter, exact]) => {
                Figure::less("decision", "peer_filter", *filter, "bytes a block").print()?;
                Figure::less("decision", "peer_exact_state", *exact, "bytes a block").print()?;
            }
            _ => anyhow::bail!("that isn't known"),
        }
        Ok(())
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts that were printed as whole numbers"
)]
fn errors(numbers: &[f64]) -> anyhow::Result<Errors> {
    let &[depths, over, most_over, under] = numbers else {
        anyhow::bail!("four numbers were expected");
    };
    Ok(Errors {
        depths: depths as u64,
        over: over as u64,
        most_over: most_over as u32,
        under: under as u64,
    })
}

/// Writes prompts as the peer reads them: words of eight bytes, low end first.
fn write(
    sites: usize,
    blocks: u64,
    groups: &[Group],
    to: &mut impl std::io::Write,
) -> anyhow::Result<()> {
    let mut to = std::io::BufWriter::new(to);
    let mut word = |word: u64| to.write_all(&word.to_le_bytes());
    word(sites as u64)?;
    word(blocks)?;
    word(groups.len() as u64)?;
    for group in groups {
        word(u64::from(group.length))?;
        word(group.prompts.len() as u64)?;
        for prompt in &group.prompts {
            prompt.blocks.iter().try_for_each(|block| word(block.0))?;
            let depths = prompt.depths.iter();
            depths
                .map(|depth| u64::from(*depth))
                .try_for_each(&mut word)?;
        }
    }
    Ok(to.flush()?)
}

#[allow(clippy::print_stderr, reason = "figures alone go to stdout")]
fn say(what: &str) {
    eprintln!("kvgrid-bench: {what}");
}
